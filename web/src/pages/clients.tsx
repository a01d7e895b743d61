/** A table of clients that are connected now. */

import { apiPath } from '../api/client';
import type { ConnectedClient, Volume } from '../api/schema';
import { may } from '../api/session';
import { hindcast } from '../lib/command';
import { bytes, count } from '../lib/format';
import { duration } from '../lib/time';
import { Button } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { RemoveDialog } from '../parts/remove-dialog';
import { type Column, Table } from '../parts/table';

/**
 * Clients of a volume. An answer about one volume has only its open handles, one or more for each
 * client.
 */
export function clientsOf(volume: Volume): number {
  return volume.clients ?? volume.handles;
}

function DisconnectDialog({ client: { id, addresses, exports, protocol } }: { client: ConnectedClient }) {
  return (
    <RemoveDialog
      verb="Disconnect"
      object={addresses[0] ?? id}
      path={apiPath`/clients/${id}`}
      changes={['/clients']}
      command={hindcast('clients', 'disconnect', id)}
      done={`${addresses[0] ?? id} was disconnected.`}
    >
      <p class="warning-text">
        It uses {exports.join(', ')}. Requests without an answer fail there, and a mounted file system may
        stop.
      </p>
      <p>
        The client may connect again at once. To keep it out, add a rule that refuses it
        {protocol === 'nbd' ? ', or switch off NBD for the volume.' : ', or disable the target.'}
      </p>
    </RemoveDialog>
  );
}

const COLUMNS: Column<ConnectedClient>[] = [
  {
    name: 'Client',
    class: 'clip',
    cell: ({ initiator, addresses }) => initiator || addresses[0],
    sort: ({ initiator, addresses }) => initiator ?? addresses[0] ?? '',
  },
  { name: 'Address', cell: ({ addresses }) => addresses.join(', ') },
  {
    name: 'Protocol',
    cell: ({ protocol, tls }) => (protocol === 'nbd' ? `NBD${tls ? ' over TLS' : ''}` : 'iSCSI'),
  },
  { name: 'Uses', class: 'clip', cell: ({ exports }) => exports.join(', ') },
  { name: 'Connected', cell: ({ age }) => `for ${duration(age * 1000)}`, sort: ({ age }) => age },
  {
    name: 'Requests',
    number: true,
    wideOnly: true,
    cell: ({ requests }) => count(requests),
    sort: ({ requests }) => requests,
  },
  {
    name: 'Read',
    number: true,
    wideOnly: true,
    cell: ({ read_bytes }) => bytes(read_bytes),
    sort: ({ read_bytes }) => read_bytes,
  },
  {
    name: 'Written',
    number: true,
    wideOnly: true,
    cell: ({ write_bytes }) => bytes(write_bytes),
    sort: ({ write_bytes }) => write_bytes,
  },
];

const END: Column<ConnectedClient> = {
  name: 'Actions',
  class: 'actions',
  cell: (client) => (
    <Button
      kind="quiet"
      label={`Disconnect ${client.addresses[0]}`}
      icon="close"
      onClick={() => openDialog(<DisconnectDialog client={client} />)}
    />
  ),
};

export function ClientTable({ clients }: { clients: ConnectedClient[] }) {
  return (
    <Table
      label="Clients"
      columns={may('admin') ? [...COLUMNS, END] : COLUMNS}
      rows={clients}
      keyOf={({ id }) => id}
      sortBy="Client"
    />
  );
}
