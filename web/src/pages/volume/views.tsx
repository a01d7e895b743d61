/** The open views of a volume: moments that the server keeps, and shows to clients. */

import { apiPath, remove } from '../../api/client';
import { reload, useResource } from '../../api/resource';
import type { View } from '../../api/schema';
import { may } from '../../api/session';
import { hindcast } from '../../lib/command';
import { count } from '../../lib/format';
import { Button, Card, Empty, Failure, Skeleton, Time } from '../../parts/basics';
import { openDialog } from '../../parts/dialog';
import { attempt, notify } from '../../parts/notices';
import { type Column, Table } from '../../parts/table';
import { ViewDialog } from '../../timeline/actions/open';

function close({ id, address }: View): Promise<void> {
  return attempt('Closing the view', async () => {
    await remove(apiPath`/views/${id}`);
    notify(`View ${address} is closed.`);
    await reload('/views');
  });
}

const COLUMNS: Column<View>[] = [
  { name: 'View', class: 'clip', cell: ({ address }) => address, sort: ({ address }) => address },
  { name: 'Moment', cell: ({ time }) => <Time at={time} />, sort: ({ time }) => time },
  { name: 'Clients', number: true, cell: ({ clients }) => count(clients), sort: ({ clients }) => clients },
  {
    name: 'Closes',
    wideOnly: true,
    cell: ({ expires }) => <Time at={expires} />,
    sort: ({ expires }) => expires,
  },
];

const ACTIONS: Column<View> = {
  name: 'Actions',
  class: 'actions',
  cell: (view) => (
    <span class="row-actions">
      <Button label={`Show ${view.address}`} onClick={() => openDialog(<ViewDialog view={view} />)}>
        Show
      </Button>
      <Button icon="close" kind="quiet" label={`Close ${view.address}`} onClick={() => close(view)} />
    </span>
  ),
};

export function Views({ volume }: { volume: string }) {
  const { data, error, reload: again } = useResource<View[]>('/views', 10);
  const views = data?.filter((view) => view.volume === volume);
  return (
    <Card title="Views">
      {error && !data && <Failure what="The views could not be read." error={error} retry={again} />}
      {!data && !error && <Skeleton />}
      {views?.length === 0 && (
        <Empty title="No view is open" command={hindcast('view', 'create', `${volume}@-1h`)}>
          A view is a read-only disk of a moment. The timeline opens one.
        </Empty>
      )}
      {views && views.length > 0 && (
        <Table
          label="Views"
          columns={may('operator') ? [...COLUMNS, ACTIONS] : COLUMNS}
          rows={views}
          keyOf={({ id }) => id}
          sortBy="View"
        />
      )}
    </Card>
  );
}
