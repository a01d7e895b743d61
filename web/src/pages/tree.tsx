/**
 * All volumes along time: snapshots as dots, clones and recovered volumes as lines that leave, and
 * the pasts that rollbacks ended.
 */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { apiPath, get } from '../api/client';
import { useResource } from '../api/resource';
import type { Snapshot, Timeline, Volume } from '../api/schema';
import { now } from '../lib/clock';
import { addressOf, forestOf, splitAddress, type TreeRow } from '../lib/forest';
import { plural } from '../lib/format';
import { localTime, parseTime } from '../lib/time';
import { Card, Empty, Failure, PageHead, Skeleton } from '../parts/basics';
import { volumePath } from '../router';
import { ticksOf } from '../timeline/axis';

const ROW = 36;
const NAMES = 208;
const NARROW_NAMES = 152;
const TOP = 28;
const RIGHT = 24;
const LEAST_WIDTH = 320;

/** Below this width, the names have less room. */
const NARROW = 640;

/** Snapshots that are closer than this many pixels become one dot. */
const MERGE = 10;

export function TreePage() {
  const volumes = useResource<Volume[]>('/volumes', 30);
  const snapshots = useResource<Snapshot[]>('/snapshots', 60);
  const error = volumes.error ?? snapshots.error;
  const loading = !volumes.data || !snapshots.data;
  const rows = useMemo(
    () => forestOf(volumes.data ?? [], snapshots.data ?? []),
    [volumes.data, snapshots.data],
  );
  return (
    <>
      <PageHead title="Tree" />
      <Card>
        {error && loading && (
          <Failure what="The tree could not be read." error={error} retry={volumes.reload} />
        )}
        {loading && !error && <Skeleton lines={8} />}
        {!loading && rows.length === 0 && (
          <Empty title="No volumes" action={<a href="/volumes">Create a volume</a>} />
        )}
        {!loading && rows.length > 0 && <Tree rows={rows} />}
        <p class="inside legend soft small">
          A line is a volume, from its creation to now. A dot is a snapshot. A blue curve leads to a clone of
          a snapshot, and an orange curve to what rests on a moment. A grey line ended in a rollback: its
          arrow leads to the time at which the volume went back.
        </p>
      </Card>
    </>
  );
}

/** The times of the moments on which volumes rest, by their addresses. */
function useMoments(rows: TreeRow[]): ReadonlyMap<string, number> {
  const [times, setTimes] = useState<ReadonlyMap<string, number>>(new Map());
  const rest = rows.flatMap(({ volume: { name, origin }, ended }) =>
    origin && !ended && splitAddress(origin)[1].startsWith('lsn:') ? [[name, origin] as const] : [],
  );
  const key = rest.flat().join('\n');
  useEffect(() => {
    const sources = [...new Set(rest.map(([, moment]) => splitAddress(moment)[0]))];
    const reads = sources.map((name) => get<Timeline>(`${apiPath`/volumes/${name}/timeline`}?buckets=1`));
    void Promise.allSettled(reads).then((answers) => {
      const found = answers.flatMap((answer) =>
        answer.status === 'fulfilled' ? answer.value.dependents : [],
      );
      const volumes = found.filter(({ kind }) => kind !== 'view');
      const byName = new Map(volumes.map(({ name, time }) => [name, parseTime(time)]));
      setTimes(new Map(rest.map(([name, moment]) => [moment, byName.get(name) ?? Number.NaN])));
    });
  }, [key]);
  return times;
}

function startOf({ volume, snapshots, ended }: TreeRow): number {
  const first = snapshots.map(({ created }) => parseTime(created));
  return Math.min(...(ended ? [] : [parseTime(volume.created)]), ...first);
}

/** When a past ended: at its last snapshot, which the rollback took. */
const endOf = ({ snapshots }: TreeRow) => parseTime(snapshots.at(-1)?.created ?? '');

function Tree({ rows }: { rows: TreeRow[] }) {
  const frame = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(1000);
  const moments = useMoments(rows);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) =>
      setWidth(Math.max(entry?.contentRect.width ?? 0, LEAST_WIDTH)),
    );
    if (frame.current) observer.observe(frame.current);
    return () => observer.disconnect();
  }, []);
  const until = now.peek();
  const span = useMemo(() => {
    const first = rows.reduce((least, row) => Math.min(least, startOf(row)), until);
    return { from: first - (until - first) * 0.02, to: until };
  }, [rows]);
  const names = width < NARROW ? NARROW_NAMES : NAMES;
  const plot = width - names - RIGHT;
  const x = (time: number) => names + ((time - span.from) / (span.to - span.from)) * plot;
  const height = TOP + rows.length * ROW + 12;
  return (
    <section class="tree-frame" ref={frame} aria-label={`${plural(rows.length, 'volume')} along time`}>
      {/* biome-ignore lint/a11y/noSvgWithoutTitle: the section names the drawing; a title would follow the pointer everywhere */}
      <svg width={width} height={height}>
        {ticksOf(span, plot, 110).map(({ time, label }) => (
          <g key={time}>
            <line class="grid" x1={x(time)} x2={x(time)} y1={TOP - 6} y2={height} />
            <text x={x(time) + 4} y={TOP - 10}>
              {label}
            </text>
          </g>
        ))}
        {rows.map((row, index) => (
          <Row
            key={`${row.volume.uuid} ${row.snapshots[0]?.uuid}`}
            row={row}
            y={yOf(index)}
            x={x}
            end={row.ended ? x(endOf(row)) : names + plot}
            leaves={leaveOf(row, rows, moments)}
            pauses={pausesOf(index, rows, moments)}
          />
        ))}
      </svg>
    </section>
  );
}

const yOf = (index: number) => TOP + index * ROW + ROW / 2;

interface Leave {
  y: number;
  time: number;
  moment: boolean;
}

/** Where a line begins that leaves another one. */
function leaveOf(row: TreeRow, rows: TreeRow[], moments: ReadonlyMap<string, number>): Leave | null {
  const parent = row.parent === null ? undefined : rows[row.parent];
  if (row.parent === null || !parent) return null;
  const snapshot = parent.snapshots.find((candidate) => addressOf(candidate) === row.leaves);
  const known = snapshot ? parseTime(snapshot.created) : moments.get(row.leaves ?? '');
  const time = known && Number.isFinite(known) ? known : startOf(row);
  return {
    y: yOf(row.parent),
    time: row.ended ? branching(row, parent, time, moments) : time,
    moment: !snapshot,
  };
}

/**
 * When a past left its volume's present line. After a rollback to a moment that is the moment,
 * which lies after the snapshot that both lines have in common.
 */
function branching(
  row: TreeRow,
  parent: TreeRow,
  time: number,
  moments: ReadonlyMap<string, number>,
): number {
  const moment = moments.get(parent.volume.origin ?? '') ?? Number.NaN;
  return moment > time && moment < startOf(row) ? moment : time;
}

/**
 * The stretches in which a volume was on a line that ended later: nothing of its present line is of
 * then.
 */
function pausesOf(index: number, rows: TreeRow[], moments: ReadonlyMap<string, number>): [number, number][] {
  return rows.flatMap((row) => {
    const leave = row.ended && row.parent === index ? leaveOf(row, rows, moments) : null;
    return leave ? [[leave.time, endOf(row)] as [number, number]] : [];
  });
}

interface RowProps {
  row: TreeRow;
  y: number;
  x: (time: number) => number;
  end: number;
  leaves: Leave | null;
  pauses: [number, number][];
}

/** Pixels that a curve takes before its line begins. */
const CURVE = 14;

function Row({ row, y, x, end, leaves, pauses }: RowProps) {
  const { volume, depth, snapshots, ended } = row;
  const from = leaves && x(leaves.time);
  const start = from === null ? x(startOf(row)) : Math.min(from + CURVE, ended ? (from + end) / 2 : end);
  return (
    <g class={ended ? 'ended' : ''}>
      <RowName volume={volume} at={16 + depth * 16} y={y + 5} ended={ended} />
      {leaves && from !== null && (
        <path
          class={`leave ${leaves.moment ? 'moment' : ''}`}
          d={`M${from} ${leaves.y}C${from} ${y} ${from} ${y} ${start} ${y}`}
        />
      )}
      <line class="life" x1={Math.min(start, end - 2)} x2={end} y1={y} y2={y} />
      {pauses.map(([begin, over]) => (
        <line key={begin} class="pause" x1={x(begin)} x2={x(over)} y1={y} y2={y} />
      ))}
      {ended && leaves && (
        <>
          <path class="back" d={`M${end} ${y - 5}V${leaves.y + 9}`} />
          <path class="head" d={`M${end - 4} ${leaves.y + 12}l4-6 4 6`} />
        </>
      )}
      {merged(snapshots, x).map(({ at, names, time }) => (
        <circle key={at} class={names.length > 1 ? 'dot many' : 'dot'} cx={at} cy={y} r="4">
          <title>
            {names.length > 1 ? plural(names.length, 'snapshot') : `${names[0]}, ${localTime(time)}`}
          </title>
        </circle>
      ))}
    </g>
  );
}

interface RowNameProps {
  volume: Volume;
  at: number;
  y: number;
  ended: boolean;
}

function RowName({ volume, at, y, ended }: RowNameProps) {
  if (ended) {
    return (
      <text class="soft" x={at} y={y}>
        before a rollback
      </text>
    );
  }
  return (
    <a href={volumePath(volume.name)}>
      <text x={at} y={y}>
        {volume.name}
      </text>
    </a>
  );
}

interface Dot {
  at: number;
  time: number;
  names: string[];
}

function merged(snapshots: Snapshot[], x: (time: number) => number): Dot[] {
  const dots: Dot[] = [];
  for (const { name, created } of [...snapshots].sort((a, b) => (a.created < b.created ? -1 : 1))) {
    const time = parseTime(created);
    const last = dots.at(-1);
    if (last && x(time) - last.at < MERGE) last.names.push(name);
    else dots.push({ at: x(time), time, names: [name] });
  }
  return dots;
}
