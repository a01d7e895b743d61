/** Deleted volumes that can be restored. */

import { apiPath, post, remove } from '../api/client';
import { reloadAll, useResource } from '../api/resource';
import type { TrashedVolume } from '../api/schema';
import { may } from '../api/session';
import { hindcast } from '../lib/command';
import { bytes } from '../lib/format';
import { Button, Card, Empty, Failure, PageHead, Skeleton, Time } from '../parts/basics';
import { FormDialog, openDialog } from '../parts/dialog';
import { TextField, useName } from '../parts/fields';
import { type Column, Table } from '../parts/table';
import { navigate, volumePath } from '../router';

const COLUMNS: Column<TrashedVolume>[] = [
  { name: 'Name', class: 'clip', cell: ({ name }) => name, sort: ({ name }) => name },
  { name: 'Deleted', cell: ({ deleted }) => <Time at={deleted} />, sort: ({ deleted }) => deleted },
  {
    name: 'Purged',
    wideOnly: true,
    cell: ({ purge_at }) => (purge_at ? <Time at={purge_at} /> : 'by hand'),
    sort: ({ purge_at }) => purge_at ?? '',
  },
  { name: 'Size', number: true, wideOnly: true, cell: ({ size }) => bytes(size), sort: ({ size }) => size },
  {
    name: 'Space',
    number: true,
    wideOnly: true,
    cell: ({ space }) => bytes(space),
    sort: ({ space }) => space,
  },
  {
    name: 'Snapshots',
    number: true,
    wideOnly: true,
    cell: ({ snapshots }) => snapshots,
    sort: ({ snapshots }) => snapshots,
  },
  { name: 'History', wideOnly: true, cell: ({ history }) => (history ? 'kept' : 'none') },
  { name: 'Actions', class: 'actions', cell: (volume) => <Actions volume={volume} /> },
];

function Actions({ volume }: { volume: TrashedVolume }) {
  if (!may('operator')) return null;
  return (
    <span class="row-actions">
      <Button onClick={() => openDialog(<RestoreDialog volume={volume} />)}>Restore</Button>
      {may('admin') && (
        <Button
          icon="trash"
          kind="quiet"
          label={`Delete ${volume.name} for good`}
          onClick={() => openDialog(<PurgeDialog volume={volume} />)}
        />
      )}
    </span>
  );
}

export function TrashPage() {
  const { data, error, reload } = useResource<TrashedVolume[]>('/trash', 30);
  return (
    <>
      <PageHead title="Trash" />
      <Card>
        {error && !data && <Failure what="The trash could not be read." error={error} retry={reload} />}
        {!data && !error && <Skeleton />}
        {data?.length === 0 && (
          <Empty title="The trash is empty" command="hindcast trash list">
            A deleted volume stays here for a day, with its snapshots and history. Then the server purges it.
          </Empty>
        )}
        {data && data.length > 0 && (
          <Table
            label="Deleted volumes"
            columns={COLUMNS}
            rows={data}
            keyOf={({ uuid }) => uuid}
            sortBy="Deleted"
            descending
          />
        )}
      </Card>
    </>
  );
}

function RestoreDialog({ volume }: { volume: TrashedVolume }) {
  const { name, valid, field } = useName(volume.name);
  const submit = async () => {
    await post(apiPath`/trash/${volume.uuid}/restore`, { name });
    reloadAll();
    return {
      text: `Volume ${name} was restored.`,
      action: { label: 'Show it', run: () => navigate(volumePath(name)) },
    };
  };
  return (
    <FormDialog
      title={`Restore ${volume.name}`}
      what="Restoring"
      command={hindcast('trash', 'restore', volume.uuid, ...(name === volume.name ? [] : ['--name', name]))}
      submit="Restore"
      disabled={!valid}
      onSubmit={submit}
    >
      <TextField label="Name" {...field} hint="Choose another name if a new volume has the old one." />
    </FormDialog>
  );
}

function PurgeDialog({ volume }: { volume: TrashedVolume }) {
  const submit = async () => {
    await remove(apiPath`/trash/${volume.uuid}`);
    reloadAll();
    return { text: `${volume.name} was deleted for good.` };
  };
  return (
    <FormDialog
      title={`Delete ${volume.name} for good`}
      what="The deletion"
      danger
      command={hindcast('trash', 'empty', volume.uuid)}
      submit="Delete for good"
      confirm={volume.name}
      onSubmit={submit}
    >
      <p class="warning-text">The volume, its snapshots and its history can't be restored afterwards.</p>
    </FormDialog>
  );
}
