import { useState } from 'preact/hooks';
import { post } from '../../api/client';
import { useResource } from '../../api/resource';
import type { ConnectedClient, RolledBack, Volume } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { toRfc3339 } from '../../lib/time';
import { FormDialog } from '../../parts/dialog';
import { ClientsWarning, rolledBack } from '../../parts/roll-back';
import type { TimelineState } from '../state';
import { LastFlush, MomentLine } from './moment-line';

interface GoBackProps {
  state: TimelineState;
  moment: number;
  volume: Volume;
}

/** Returns the volume itself to a moment. The person types the volume's name first. */
export function GoBackDialog({ state, moment, volume }: GoBackProps) {
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
    return result && rolledBack(`${volume.name} is as it was then.`, result);
  };
  return (
    <FormDialog
      title={`Take ${volume.name} back to this moment`}
      what="Going back"
      danger
      command={hindcast('rollback', `${volume.name}@${to}`, lastFlush && '--last-flush', force && '--force')}
      submit="Go back"
      confirm={volume.name}
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
    </FormDialog>
  );
}

function Connected({ clients }: { clients: ConnectedClient[] }) {
  if (clients.length === 0) return <p class="soft">No client uses the volume now.</p>;
  const names = clients.map(({ initiator, addresses }) => initiator || addresses[0]).join(', ');
  return <ClientsWarning clients={clients.length} names={names} />;
}
