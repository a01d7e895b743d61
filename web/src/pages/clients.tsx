/** A table of clients that are connected now. */

import { apiPath, remove } from '../api/client';
import { reload } from '../api/resource';
import type { ConnectedClient, Volume } from '../api/schema';
import { may } from '../api/session';
import { bytes, count } from '../lib/format';
import { duration } from '../lib/time';
import { Button } from '../parts/basics';
import { attempt } from '../parts/notices';
import { type Column, Table } from '../parts/table';

/** Clients of a volume. An answer about one volume has only its open handles, one or more for each client. */
export function clientsOf(volume: Volume): number {
  return volume.clients ?? volume.handles;
}

function disconnect(id: string): Promise<void> {
  return attempt('Disconnecting the client', async () => {
    await remove(apiPath`/clients/${id}`);
    await reload('/clients');
  });
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
  cell: ({ id, addresses }) => (
    <Button kind="quiet" label={`Disconnect ${addresses[0]}`} icon="close" onClick={() => disconnect(id)} />
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
