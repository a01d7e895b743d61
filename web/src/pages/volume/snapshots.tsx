/** The snapshots of a volume, newest first, with the lines between them. */

import { useMemo, useState } from 'preact/hooks';
import { apiPath, patch } from '../../api/client';
import { useResource } from '../../api/resource';
import type { Snapshot, Timeline, Volume } from '../../api/schema';
import { may } from '../../api/session';
import { hindcast } from '../../lib/command';
import { splitAddress } from '../../lib/forest';
import { bytes } from '../../lib/format';
import type { GraphRow } from '../../lib/graph';
import { type SnapshotRow as Row, snapshotRows } from '../../lib/snapshot-rows';
import { parseTime, toRfc3339 } from '../../lib/time';
import { Badge, Button, Card, Empty, Failure, Labels, Skeleton, Time } from '../../parts/basics';
import { openDialog } from '../../parts/dialog';
import { SearchField } from '../../parts/fields';
import { attempt } from '../../parts/notices';
import { type Column, Table } from '../../parts/table';
import { volumePath } from '../../router';
import { CloneDialog, CreateSnapshotDialog, DeleteSnapshotsDialog, RollBackDialog } from './snapshot-dialogs';

const COLUMN = 14;
const HEIGHT = 40;

function Graph({ row, columns, kind }: { row: GraphRow; columns: number; kind: Row['kind'] }) {
  const x = (column: number) => 8 + column * COLUMN;
  const own = x(row.column);
  const middle = HEIGHT / 2;
  const straight = row.above.filter((column) => !row.joins.includes(column) && column !== row.column);
  return (
    <svg class="graph" width={16 + columns * COLUMN} height={HEIGHT} aria-hidden="true">
      {straight.map((column) => (
        <path key={column} d={`M${x(column)} 0V${HEIGHT}`} />
      ))}
      {row.above.includes(row.column) && <path d={`M${own} 0V${middle}`} />}
      {row.below.includes(row.column) && <path d={`M${own} ${middle}V${HEIGHT}`} />}
      {row.joins.map((column) => (
        <path key={`join-${column}`} d={`M${x(column)} 0Q${x(column)} ${middle} ${own} ${middle}`} />
      ))}
      <circle class={kind} cx={own} cy={middle} r={kind === 'now' ? 5 : 4} />
    </svg>
  );
}

export function SnapshotsTab({ volume }: { volume: Volume }) {
  const { data, error, reload } = useResource<Snapshot[]>(apiPath`/volumes/${volume.name}/snapshots`);
  const [search, setSearch] = useState('');
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const rows = useMemo(() => snapshotRows(volume, data ?? [], search), [volume, data, search]);
  const toggle = (name: string) => {
    const next = new Set(selected);
    if (!next.delete(name)) next.add(name);
    setSelected(next);
  };
  const drop = (names: string[]) =>
    openDialog(
      <DeleteSnapshotsDialog volume={volume.name} names={names} onDone={() => setSelected(new Set())} />,
    );
  const columns = columnsOf(volume, rows, selected, toggle, drop);
  const create = () => openDialog(<CreateSnapshotDialog volume={volume.name} />);
  return (
    <Card
      title="Snapshots"
      actions={
        <>
          <SearchField label="Search by name or label" value={search} onInput={setSearch} />
          {selected.size > 0 && may('admin') && (
            <Button icon="trash" onClick={() => drop([...selected])}>
              Delete {selected.size}
            </Button>
          )}
          {may('operator') && (
            <Button icon="camera" kind="main" onClick={create}>
              Take a snapshot
            </Button>
          )}
        </>
      }
    >
      {error && !data && <Failure what="The snapshots could not be read." error={error} retry={reload} />}
      {!data && !error && <Skeleton />}
      {data?.length === 0 && (
        <Empty title="No snapshots" command={hindcast('snapshot', 'create', volume.name)}>
          A snapshot keeps the volume's content. Take one here, let a schedule take them, or use the command.
        </Empty>
      )}
      {data && data.length > 0 && (
        <Table
          label={`Snapshots of ${volume.name}`}
          columns={columns}
          rows={rows}
          keyOf={({ address, snapshot }) => snapshot?.uuid ?? address}
          isSelected={({ snapshot }) => snapshot !== undefined && selected.has(snapshot.name)}
        />
      )}
    </Card>
  );
}

function columnsOf(
  volume: Volume,
  rows: Row[],
  selected: ReadonlySet<string>,
  toggle: (name: string) => void,
  drop: (names: string[]) => void,
): Column<Row>[] {
  const columns = rows.reduce((most, { graph }) => Math.max(most, graph.column), 0);
  const choose = ({ snapshot }: Row) =>
    snapshot && (
      <input
        type="checkbox"
        aria-label={`Select ${snapshot.name}`}
        checked={selected.has(snapshot.name)}
        onInput={() => toggle(snapshot.name)}
      />
    );
  const all: Column<Row>[] = [
    { name: 'Select', class: 'tick', cell: choose },
    {
      name: 'Line',
      class: 'graph-cell',
      cell: ({ graph, kind }) => <Graph row={graph} columns={columns} kind={kind} />,
    },
    { name: 'Name', class: 'clip wide', cell: (row) => <Name row={row} /> },
    { name: 'Taken', cell: (row) => <Taken row={row} volume={volume} /> },
    {
      name: 'Own data',
      number: true,
      class: 'medium-hide',
      cell: ({ snapshot }) => snapshot && bytes(snapshot.unique ?? 0),
    },
    {
      name: 'Shared',
      number: true,
      class: 'medium-hide',
      cell: ({ snapshot }) => snapshot && bytes(snapshot.shared ?? 0),
    },
    { name: 'Labels', class: 'medium-hide', cell: ({ snapshot }) => <Labels of={snapshot?.labels} /> },
    {
      name: 'Actions',
      class: 'actions',
      cell: ({ snapshot }) => snapshot && <Actions volume={volume} snapshot={snapshot} drop={drop} />,
    },
  ];
  return may('admin') ? all : all.slice(1);
}

function Name({ row: { address, snapshot, kind } }: { row: Row }) {
  if (kind === 'now') return <strong>Now</strong>;
  if (!snapshot) return <Origin address={address} own={kind === 'moment'} />;
  return (
    <>
      {snapshot.name} {snapshot.protected && <Badge tone="a">protected</Badge>}
      {snapshot.clones.length > 0 && <Badge>{`origin of ${snapshot.clones.join(', ')}`}</Badge>}
    </>
  );
}

/**
 * A moment of the volume to which it was rolled back, or the place of another volume where it
 * began.
 */
function Origin({ address, own }: { address: string; own: boolean }) {
  const [volume, moment] = splitAddress(address);
  if (own) {
    return (
      <>
        Moment {moment} <Badge tone="b">rolled back to</Badge>
      </>
    );
  }
  return (
    <>
      <a href={volumePath(volume)}>{address}</a> <Badge>origin</Badge>
    </>
  );
}

/**
 * When a snapshot was taken. Of a moment, the history in which it lies tells the time, while the
 * volume rests on it.
 */
function Taken({ row: { address, snapshot, kind }, volume }: { row: Row; volume: Volume }) {
  const rests = kind !== 'now' && !snapshot && address === volume.origin;
  const [source] = splitAddress(address);
  const path = `${apiPath`/volumes/${source}/timeline`}?buckets=1`;
  const { data } = useResource<Timeline>(rests ? path : null);
  if (snapshot) return <Time at={snapshot.created} />;
  if (kind === 'now') return <span class="soft">now</span>;
  const found = data?.dependents.find(({ name, kind }) => kind !== 'view' && name === volume.name);
  return found ? <Time at={found.time} /> : <span class="soft">–</span>;
}

interface ActionsProps {
  volume: Volume;
  snapshot: Snapshot;
  drop: (names: string[]) => void;
}

function Actions({ volume, snapshot, drop }: ActionsProps) {
  const { name } = snapshot;
  const protect = () =>
    attempt('Changing the protection', () =>
      patch(apiPath`/volumes/${volume.name}/snapshots/${name}`, { protected: !snapshot.protected }),
    );
  return (
    <span class="row-actions">
      {volume.cdp && (
        <a
          class="button quiet"
          href={`${volumePath(volume.name)}?at=${toRfc3339(parseTime(snapshot.created))}`}
        >
          Timeline
        </a>
      )}
      {may('operator') && (
        <Button
          icon="branch"
          kind="quiet"
          label={`Clone ${name}`}
          onClick={() => openDialog(<CloneDialog volume={volume.name} snapshot={name} />)}
        />
      )}
      {may('operator') && (
        <Button
          icon="flag"
          kind="quiet"
          label={`${snapshot.protected ? 'Unprotect' : 'Protect'} ${name}`}
          onClick={protect}
        />
      )}
      {may('admin') && (
        <Button
          icon="back"
          kind="quiet"
          label={`Roll back to ${name}`}
          onClick={() => openDialog(<RollBackDialog volume={volume} snapshot={name} />)}
        />
      )}
      {may('admin') && (
        <Button
          icon="trash"
          kind="quiet"
          label={`Delete ${name}`}
          disabled={snapshot.protected}
          onClick={() => drop([name])}
        />
      )}
    </span>
  );
}
