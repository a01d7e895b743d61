/** How clients reach a volume, who may, and who does. */

import { useResource } from '../../api/resource';
import type { ConnectedClient, Status, Target, TargetDefaults, Volume } from '../../api/schema';
import { addressesOf } from '../../lib/addresses';
import { hindcast } from '../../lib/command';
import { Card, Command, Empty, Failure, Skeleton } from '../../parts/basics';
import { ClientTable } from '../clients';
import { NbdRules } from '../nbd-rules';
import { initiatorText, RuleList, unmatchedWord } from '../rules';
import { Views } from './views';

export function AccessTab({ volume }: { volume: Volume }) {
  const targets = useResource<Target[]>('/targets').data;
  const mapped = targets?.filter(({ luns }) => luns.some(({ source }) => source === volume.name)) ?? [];
  return (
    <>
      <div class="grid-2">
        <Addresses volume={volume} />
        <NbdRules volume={volume.name} />
      </div>
      {mapped.map((target) => (
        <Card
          key={target.name}
          title={`Rules of ${target.name}`}
          actions={<a href={`/targets?name=${encodeURIComponent(target.name)}`}>Show the target</a>}
        >
          <RuleList rules={target.rules} textOf={initiatorText}>
            An initiator that no rule matches is {unmatchedWord(target.unmatched)}.
          </RuleList>
        </Card>
      ))}
      <Clients volume={volume} />
      <Views volume={volume.name} />
    </>
  );
}

function Addresses({ volume }: { volume: Volume }) {
  const status = useResource<Status>('/status');
  const targets = useResource<Target[]>('/targets');
  const defaults = useResource<TargetDefaults>('/target-defaults');
  const error = (status.data ? null : status.error) ?? (targets.data ? null : targets.error);
  const retry = () => void Promise.all([status.reload(), targets.reload()]);
  return (
    <Card title="Addresses">
      {error && <Failure what="The addresses could not be read." error={error} retry={retry} />}
      {!error && !(status.data && targets.data) && <Skeleton />}
      {status.data && targets.data && (
        <AddressList volume={volume} status={status.data} targets={targets.data} defaults={defaults.data} />
      )}
    </Card>
  );
}

interface AddressesProps {
  volume: Volume;
  status: Status;
  targets: Target[];
  defaults: TargetDefaults | undefined;
}

function AddressList({ volume, status: { listeners }, targets, defaults }: AddressesProps) {
  const ways = { listeners, targets, defaults, host: location.hostname };
  const addresses = addressesOf(volume, ways);
  if (addresses.length === 0) return <NoAddress volume={volume} listens={listeners.nbd.length > 0} />;
  return (
    <div class="inside stack tight">
      {addresses.map(({ text, note }) => (
        <div key={text} class="stack tight">
          <Command text={text} label="Copy the address" />
          {note && <span class="small soft">{note}</span>}
        </div>
      ))}
    </div>
  );
}

function NoAddress({ volume, listens }: { volume: Volume; listens: boolean }) {
  if (volume.nbd === false && listens) {
    return (
      <Empty title="No address" command={hindcast('volume', 'set', volume.name, '--nbd', 'yes')}>
        NBD is switched off for this volume, and no iSCSI listener of the server serves it.
      </Empty>
    );
  }
  return (
    <Empty title="No address" command={hindcast('serve', '--nbd', '0.0.0.0:10809')}>
      The server has no listener that serves this volume.
    </Empty>
  );
}

function Clients({ volume }: { volume: Volume }) {
  const { data, error, reload } = useResource<ConnectedClient[]>('/clients', 5);
  const clients = data?.filter(({ exports }) =>
    exports.some((name) => name === volume.name || name.startsWith(`${volume.name}@`)),
  );
  return (
    <Card title="Clients">
      {error && !data && <Failure what="The clients could not be read." error={error} retry={reload} />}
      {!data && !error && <Skeleton />}
      {clients?.length === 0 && (
        <Empty title="No client is connected">Copy an address above, and connect a client to it.</Empty>
      )}
      {clients && clients.length > 0 && <ClientTable clients={clients} />}
    </Card>
  );
}
