/** All volumes: search, sort, select, create, delete. */

import { useMemo, useState } from 'preact/hooks';
import { live, recentBytes } from '../api/live';
import { useResource } from '../api/resource';
import type { Volume } from '../api/schema';
import { may } from '../api/session';
import { byteRate, bytes, percent, plural } from '../lib/format';
import { parseTime } from '../lib/time';
import {
  Badge,
  Button,
  Card,
  Empty,
  Failure,
  Labels,
  Meter,
  PageHead,
  Skeleton,
  Time,
} from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { SearchField } from '../parts/fields';
import { Spark } from '../parts/spark';
import { type Column, Table } from '../parts/table';
import { parameters, setParameters, volumePath } from '../router';
import { clientsOf } from './clients';
import { CreateVolumeDialog } from './create-volume';
import { DeleteVolumeDialog } from './delete-volume';
import { HistoryText } from './history-text';

/** True if a volume has the words of a search in its name or its labels. */
function matches(volume: Volume, search: string): boolean {
  const labels = Object.entries(volume.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  const text = [volume.name, ...labels].join(' ').toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function stateOf(volume: Volume) {
  if ((volume.damaged?.length ?? 0) > 0) return <Badge tone="full">damaged</Badge>;
  if (volume.importing) return <Badge tone="b">importing</Badge>;
  if (volume.read_only) return <Badge tone="b">read-only</Badge>;
  return clientsOf(volume) > 0 ? <Badge tone="a">in use</Badge> : <Badge>idle</Badge>;
}

function Activity({ volume }: { volume: Volume }) {
  const rates = live.value?.volumes[volume.name];
  const moved = rates ? rates.read_bytes + rates.write_bytes : 0;
  return (
    <span class="line activity-cell">
      <Spark
        values={recentBytes(volume.name)}
        label={`Data moved in the last minute, now ${byteRate(moved)}`}
      />
      <span class="soft small nowrap">{moved > 0 ? byteRate(moved) : ''}</span>
    </span>
  );
}

const COLUMNS: Column<Volume>[] = [
  {
    name: 'Name',
    class: 'clip',
    cell: ({ name }) => <a href={volumePath(name)}>{name}</a>,
    sort: ({ name }) => name,
  },
  { name: 'Size', number: true, wideOnly: true, cell: ({ size }) => bytes(size), sort: ({ size }) => size },
  {
    name: 'Used',
    number: true,
    cell: ({ name, allocated, size }) => (
      <span class="used-cell">
        {bytes(allocated)}
        <Meter part={allocated} whole={size} label={`${percent(allocated, size)} of ${name} is used`} />
      </span>
    ),
    sort: ({ allocated }) => allocated,
  },
  {
    name: 'History',
    wideOnly: true,
    cell: ({ history, cdp }) => <HistoryText window={history} kept={Boolean(cdp)} />,
    sort: ({ history }) => history?.held_seconds ?? -1,
  },
  {
    name: 'Snapshots',
    number: true,
    wideOnly: true,
    cell: ({ snapshots }) => snapshots ?? 0,
    sort: ({ snapshots }) => snapshots ?? 0,
  },
  { name: 'Clients', number: true, wideOnly: true, cell: clientsOf, sort: clientsOf },
  {
    name: 'Changed',
    class: 'medium-hide',
    cell: ({ last_change }) => (last_change ? <Time at={last_change} /> : '–'),
    sort: ({ last_change }) => (last_change ? parseTime(last_change) : 0),
  },
  { name: 'Activity', class: 'medium-hide', cell: (volume) => <Activity volume={volume} /> },
  { name: 'State', cell: stateOf },
  { name: 'Labels', class: 'medium-hide', cell: ({ labels }) => <Labels of={labels} /> },
];

export function VolumesPage() {
  const { data, error, reload } = useResource<Volume[]>('/volumes', 10);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const search = parameters.value.get('search') ?? '';
  const rows = useMemo(() => data?.filter((volume) => matches(volume, search)), [data, search]);
  const toggle = (name: string) => {
    const next = new Set(selected);
    if (!next.delete(name)) next.add(name);
    setSelected(next);
  };
  const chosen = data?.filter(({ name }) => selected.has(name)) ?? [];
  const tick: Column<Volume> = {
    name: 'Select',
    class: 'tick',
    cell: ({ name }) => (
      <input
        type="checkbox"
        aria-label={`Select ${name}`}
        checked={selected.has(name)}
        onInput={() => toggle(name)}
      />
    ),
  };
  const create = may('operator') && (
    <Button kind="main" icon="plus" onClick={() => openDialog(<CreateVolumeDialog />)}>
      Create a volume
    </Button>
  );
  return (
    <>
      <PageHead title="Volumes">
        <SearchField
          label="Search by name or label"
          value={search}
          onInput={(value) => setParameters({ search: value || null })}
        />
        {chosen.length > 0 && may('admin') && (
          <Button icon="trash" onClick={() => openDialog(<DeleteVolumeDialog volumes={chosen} />)}>
            Delete {plural(chosen.length, 'volume')}
          </Button>
        )}
        {create}
      </PageHead>
      <Card>
        {error && !data && <Failure what="The volumes could not be read." error={error} retry={reload} />}
        {!data && !error && <Skeleton lines={8} />}
        {data?.length === 0 && (
          <Empty
            title="No volumes yet"
            command="hindcast volume create db --size 10G --cdp parity"
            action={create}
          >
            A volume is a disk that clients reach over NBD and iSCSI.
          </Empty>
        )}
        {data && data.length > 0 && rows?.length === 0 && (
          <Empty title="No volume matches">Change the search, or clear it.</Empty>
        )}
        {rows && rows.length > 0 && (
          <Table
            label="Volumes"
            columns={may('admin') ? [tick, ...COLUMNS] : COLUMNS}
            rows={rows}
            keyOf={({ uuid }) => uuid}
            sortBy="Name"
            isSelected={({ name }) => selected.has(name)}
          />
        )}
      </Card>
    </>
  );
}
