import { apiPath, post } from '../../api/client';
import { hindcast } from '../../lib/command';
import { FormDialog } from '../../parts/dialog';
import { TextField, useName } from '../../parts/fields';
import type { TimelineState } from '../state';

/** Names the present moment. */
export function MarkDialog({ state }: { state: TimelineState }) {
  const { name, valid, field } = useName();
  const submit = async () => {
    await post(apiPath`/volumes/${state.volume}/marks`, { name });
    state.loader.refresh();
    return { text: `Mark ${name} was set.` };
  };
  return (
    <FormDialog
      title={`Mark the present of ${state.volume}`}
      what="Setting the mark"
      command={hindcast('mark', state.volume, name || 'NAME')}
      submit="Set the mark"
      disabled={!valid}
      onSubmit={submit}
    >
      <p class="soft">
        A mark gives the present moment a name, such as "before-migration". It takes no space.
      </p>
      <TextField label="Name" {...field} />
    </FormDialog>
  );
}
