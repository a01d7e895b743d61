import { useState } from 'preact/hooks';
import { apiPath, post } from '../../api/client';
import { useResource } from '../../api/resource';
import type { ConnectedClient, RolledBack, Volume } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { plural } from '../../lib/format';
import { toRfc3339 } from '../../lib/time';
import { closeDialog, FormDialog } from '../../parts/dialog';
import { TextField } from '../../parts/fields';
import { attempt, notify } from '../../parts/notices';
import type { TimelineState } from '../state';
import { LastFlush, MomentLine } from './moment-line';

/** Returns a volume to a snapshot of its content before a rollback. */
function undoRollback(volume: string, undo: string): Promise<void> {
  return attempt('Undoing the rollback', async () => {
    await post(apiPath`/volumes/${volume}/snapshots/${undo}/rollback`, { force: true });
    notify(`${volume} has its content from before the rollback again.`);
  });
}

interface GoBackProps {
  state: TimelineState;
  moment: number;
  volume: Volume;
}

/** Returns the volume itself to a moment. The person types the volume's name first. */
export function GoBackDialog({ state, moment, volume }: GoBackProps) {
  const [typed, setTyped] = useState('');
  const [lastFlush, setLastFlush] = useState(state.consistent.peek());
  const clients =
    useResource<ConnectedClient[]>('/clients').data?.filter(({ exports }) => exports.includes(volume.name)) ??
    [];
  const to = toRfc3339(moment);
  const force = clients.length > 0;
  const submit = async () => {
    const body = { to, volumes: [volume.name], force, last_flush: lastFlush };
    const [result] = await post<RolledBack[]>('/recoveries/in-place', body);
    state.moveTo(Number.POSITIVE_INFINITY);
    state.loader.refresh();
    closeDialog();
    const undo = result?.undo.name;
    if (!undo) return;
    notify(`${volume.name} is as it was then. Snapshot ${undo} keeps its content from before.`, {
      label: 'Undo',
      run: () => void undoRollback(volume.name, undo),
    });
  };
  return (
    <FormDialog
      title={`Take ${volume.name} back to this moment`}
      what="Going back"
      danger
      command={hindcast('rollback', `${volume.name}@${to}`, lastFlush && '--last-flush', force && '--force')}
      submit="Go back"
      disabled={typed !== volume.name}
      onSubmit={submit}
    >
      <MomentLine state={state} moment={moment} />
      <ul class="facts">
        <li>The volume gets the content of that moment.</li>
        <li>A new snapshot keeps the present content, so you can undo this.</li>
        <li>All snapshots, marks and moments stay.</li>
      </ul>
      <Connected clients={clients} />
      <LastFlush checked={lastFlush} onInput={setLastFlush} />
      <TextField label={`Type ${volume.name} to confirm`} value={typed} onInput={setTyped} first />
    </FormDialog>
  );
}

function Connected({ clients }: { clients: ConnectedClient[] }) {
  if (clients.length === 0) return <p class="soft">No client uses the volume now.</p>;
  const names = clients.map(({ initiator, addresses }) => initiator || addresses[0]).join(', ');
  return (
    <p class="warning-text">
      {plural(clients.length, 'client uses', 'clients use')} the volume: {names}. Stop their programs first.
      The server closes NBD connections and reports the change to iSCSI initiators.
    </p>
  );
}
