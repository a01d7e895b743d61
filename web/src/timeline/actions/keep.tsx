import { post } from '../../api/client';
import type { Snapshot } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { toRfc3339 } from '../../lib/time';
import { FormDialog } from '../../parts/dialog';
import { TextField, useName } from '../../parts/fields';
import type { TimelineState } from '../state';
import { shortName } from '../words';
import { MomentLine } from './moment-line';

/** Keeps a past moment as a snapshot, which stays when the history expires. */
export function KeepDialog({ state, moment }: { state: TimelineState; moment: number }) {
  const { name, valid, field } = useName(`kept-${shortName(moment)}`);
  const at = toRfc3339(moment);
  const submit = async () => {
    await post<Snapshot[]>('/snapshots', { at, snapshots: [{ volume: state.volume, name }] });
    state.loader.refresh();
    return { text: `Snapshot ${state.volume}@${name} keeps the moment.` };
  };
  return (
    <FormDialog
      title="Keep this moment as a snapshot"
      what="Keeping the moment"
      command={hindcast('snapshot', 'create', `${state.volume}@${name}`, '--at', at)}
      submit="Keep"
      disabled={!valid}
      onSubmit={submit}
    >
      <MomentLine state={state} moment={moment} />
      <p class="soft">The snapshot is there at once. It stays when the history of this moment expires.</p>
      <TextField label="Name of the snapshot" {...field} />
    </FormDialog>
  );
}
