import { useState } from 'preact/hooks';
import { apiPath, post } from '../../api/client';
import { hindcast } from '../../lib/command';
import { closeDialog, FormDialog } from '../../parts/dialog';
import { nameProblem, TextField } from '../../parts/fields';
import { notify } from '../../parts/notices';
import type { TimelineState } from '../state';

/** Names the present moment. */
export function MarkDialog({ state }: { state: TimelineState }) {
  const [name, setName] = useState('');
  const submit = async () => {
    await post(apiPath`/volumes/${state.volume}/marks`, { name });
    state.loader.refresh();
    closeDialog();
    notify(`Mark ${name} was set.`);
  };
  return (
    <FormDialog
      title={`Mark the present of ${state.volume}`}
      what="Setting the mark"
      command={hindcast('mark', state.volume, name || 'NAME')}
      submit="Set the mark"
      disabled={name === '' || nameProblem(name) !== null}
      onSubmit={submit}
    >
      <p class="soft">
        A mark gives the present moment a name, such as "before-migration". It takes no space.
      </p>
      <TextField label="Name" value={name} onInput={setName} problem={nameProblem(name)} first />
    </FormDialog>
  );
}
