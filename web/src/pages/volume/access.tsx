/** How clients reach a volume, who may, and who does. */

import { useResource } from '../../api/resource';
import type { ConnectedClient, Status, Target, Volume } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { Card, Command, Empty, Failure, Skeleton } from '../../parts/basics';
import { ClientTable } from '../clients';
import { NbdRules } from '../nbd-rules';
import { initiatorText, RuleList, unmatchedWord } from '../rules';
import { Views } from './views';

export function AccessTab({ volume }: { volume: Volume }) {
  const status = useResource<Status>('/status').data;
  const targets = useResource<Target[]>('/targets').data;
  const mapped = targets?.filter(({ luns }) => luns.some(({ source }) => source === volume.name)) ?? [];
  return (
    <>
      <div class="grid-2">
        <Addresses volume={volume} status={status} targets={mapped} />
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

/** An address that a client can use: a listener on all addresses is reached by this page's host. */
function reachable(listener: string): string {
  const port = listener.split(':').at(-1);
  return /^(0\.0\.0\.0|\[?::\]?):/.test(listener) ? `${location.hostname}:${port}` : listener;
}

interface AddressesProps {
  volume: Volume;
  status: Status | undefined;
  targets: Target[];
}

function Addresses({ volume, status, targets }: AddressesProps) {
  if (!status) {
    return (
      <Card title="Addresses">
        <Skeleton />
      </Card>
    );
  }
  const { nbd, iscsi } = status.listeners;
  const network = nbd.filter((listener) => !listener.startsWith('unix:'));
  const lines = [
    ...(volume.nbd === false ? [] : network.map((listener) => `nbd://${reachable(listener)}/${volume.name}`)),
    ...targets.flatMap((target) =>
      iscsi.flatMap((listener) =>
        target.luns
          .filter(({ source }) => source === volume.name)
          .map(({ lun }) => `iscsi://${reachable(listener)}/${target.name}/${lun}`),
      ),
    ),
  ];
  return (
    <Card title="Addresses">
      <div class="inside stack tight">
        {lines.map((line) => (
          <Command key={line} text={line} label="Copy the address" />
        ))}
        {lines.length === 0 && (
          <Empty title="No address" command={hindcast('serve', '--nbd', '0.0.0.0:10809')}>
            The server has no listener that serves this volume.
          </Empty>
        )}
      </div>
    </Card>
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
