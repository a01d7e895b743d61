/** All volumes along time: snapshots as dots, clones and recovered volumes as lines that leave. */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { apiPath, get } from '../api/client';
import { useResource } from '../api/resource';
import type { Snapshot, Timeline, Volume } from '../api/schema';
import { now } from '../lib/clock';
import { forestOf, type TreeRow } from '../lib/forest';
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
          a snapshot, and an orange curve to a volume that was recovered from a moment.
        </p>
      </Card>
    </>
  );
}

/** The times of the moments that volumes were recovered from, by the name of the recovered volume. */
function useMoments(rows: TreeRow[]): ReadonlyMap<string, number> {
  const [times, setTimes] = useState<ReadonlyMap<string, number>>(new Map());
  const sources = [
    ...new Set(
      rows.flatMap(({ parent, moment }) =>
        parent !== null && moment?.startsWith('lsn:') ? [rows[parent]?.volume.name ?? ''] : [],
      ),
    ),
  ];
  const key = sources.join('\n');
  useEffect(() => {
    const reads = sources.map((name) => get<Timeline>(`${apiPath`/volumes/${name}/timeline`}?buckets=1`));
    void Promise.allSettled(reads).then((answers) => {
      const found = answers.flatMap((answer) =>
        answer.status === 'fulfilled' ? answer.value.dependents : [],
      );
      setTimes(new Map(found.map(({ name, time }) => [name, parseTime(time)])));
    });
  }, [key]);
  return times;
}

function startOf(row: TreeRow): number {
  return Math.min(parseTime(row.volume.created), ...row.snapshots.map(({ created }) => parseTime(created)));
}

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
            key={row.volume.uuid}
            row={row}
            y={yOf(index)}
            x={x}
            end={names + plot}
            leaves={leaveOf(row, rows, moments)}
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

/** Where the line of a clone or recovered volume begins. */
function leaveOf(row: TreeRow, rows: TreeRow[], moments: ReadonlyMap<string, number>): Leave | null {
  if (row.parent === null) return null;
  const snapshot = rows[row.parent]?.snapshots.find(({ name }) => name === row.moment);
  const time = snapshot
    ? parseTime(snapshot.created)
    : (moments.get(row.volume.name) ?? parseTime(row.volume.created));
  return { y: yOf(row.parent), time, moment: !snapshot };
}

interface RowProps {
  row: TreeRow;
  y: number;
  x: (time: number) => number;
  end: number;
  leaves: Leave | null;
}

function Row({ row, y, x, end, leaves }: RowProps) {
  const { volume, depth, snapshots } = row;
  const start = leaves ? x(leaves.time) + 14 : x(startOf(row));
  return (
    <g>
      <a href={volumePath(volume.name)}>
        <text x={16 + depth * 16} y={y + 5}>
          {volume.name}
        </text>
      </a>
      {leaves && (
        <path
          class={`leave ${leaves.moment ? 'moment' : ''}`}
          d={`M${x(leaves.time)} ${leaves.y}C${x(leaves.time)} ${y} ${x(leaves.time)} ${y} ${start} ${y}`}
        />
      )}
      <line class="life" x1={Math.min(start, end - 2)} x2={end} y1={y} y2={y} />
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
