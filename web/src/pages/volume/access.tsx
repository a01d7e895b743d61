/** How clients reach a volume, who may, and who does. */

import { apiPath, remove } from '../../api/client';
import { useResource } from '../../api/resource';
import type { ConnectedClient, NbdAccess, NbdRule, Status, Target, Volume } from '../../api/schema';
import { may } from '../../api/session';
import { hindcast } from '../../lib/command';
import { Badge, Button, Card, Command, Empty, Failure, Skeleton } from '../../parts/basics';
import { openDialog } from '../../parts/dialog';
import { attempt } from '../../parts/notices';
import { ClientTable } from '../clients';
import { RuleList } from '../rules';
import { NbdRuleDialog } from './nbd-rule';
import { Views } from './views';

export function AccessTab({ volume }: { volume: Volume }) {
  const status = useResource<Status>('/status').data;
  const targets = useResource<Target[]>('/targets').data;
  const mapped = targets?.filter(({ luns }) => luns.some(({ source }) => source === volume.name)) ?? [];
  return (
    <>
      <div class="grid-2">
        <Addresses volume={volume} status={status} targets={mapped} />
        <NbdRules volume={volume} />
      </div>
      {mapped.map((target) => (
        <Card
          key={target.name}
          title={`Rules of ${target.name}`}
          actions={<a href={`/targets?name=${encodeURIComponent(target.name)}`}>Show the target</a>}
        >
          <RuleList rules={target.rules} unmatched={target.unmatched} />
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

function NbdRules({ volume }: { volume: Volume }) {
  const path = apiPath`/volumes/${volume.name}/nbd-access`;
  const { data, error, reload } = useResource<NbdAccess>(path);
  const add = () => openDialog(<NbdRuleDialog volume={volume.name} />);
  const drop = (number: number) =>
    attempt('Removing the rule', async () => {
      await remove(`${path}/rules/${number}`);
      await reload();
    });
  return (
    <Card
      title="NBD rules"
      actions={
        may('admin') && (
          <Button icon="plus" onClick={add}>
            Add a rule
          </Button>
        )
      }
    >
      {error && !data && <Failure what="The rules could not be read." error={error} retry={reload} />}
      {!data && !error && <Skeleton />}
      {data && (
        <>
          <ol class="list">
            {data.rules.map((rule, index) => (
              <li key={`${index}-${ruleText(rule)}`} class="still">
                <Badge tone={rule.access === 'denied' ? 'b' : 'a'}>{ACCESS[rule.access]}</Badge>
                <span>{ruleText(rule)}</span>
                {may('admin') && (
                  <span class="push">
                    <Button
                      icon="close"
                      kind="quiet"
                      label={`Remove rule ${index + 1}`}
                      onClick={() => drop(index + 1)}
                    />
                  </span>
                )}
              </li>
            ))}
          </ol>
          <p class="inside soft">{unmatchedText(data)}</p>
        </>
      )}
    </Card>
  );
}

export const ACCESS = { read_write: 'read and write', read_only: 'read only', denied: 'refused' } as const;

export function ruleText({ addresses, certificate }: NbdRule): string {
  const who = addresses.length > 0 ? addresses.join(', ') : 'every address';
  return certificate ? `${who} with a certificate of ${certificate}` : who;
}

function unmatchedText({ unmatched, unmatched_on_loopback }: NbdAccess): string {
  const word = { open: 'served', refused: 'refused' } as const;
  return `A client that no rule matches is ${word[unmatched]}. On this machine it is ${word[unmatched_on_loopback]}.`;
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
