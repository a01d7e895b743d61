/** The server's picture of a span, with its times as numbers. */

import type {
  Dependent,
  Lane_Anchor,
  Lane_Mark,
  Lane_Position,
  Lane_TimelineSnapshot,
  Timeline,
} from '../api/schema';
import { parseTime, parseTimeUp } from '../lib/time';
import type { Span } from './scale';

/**
 * A point of a lane. `name` is empty for flushes and anchors. Its time is rounded up to a whole
 * microsecond, as addresses and requests have it: the moment of that time then contains the point.
 */
export interface Point {
  time: number;
  name: string;
  lsn: number | null;
}

export interface LaneData {
  count: number;
  points: Point[];
  /** Points of each bucket, where there are too many to list. */
  counts: number[] | null;
  /** True: there are more points in the window, older than those that are listed or counted. */
  partial: boolean;
}

export interface TimelineData {
  span: Span;
  now: number;
  /** Length of a bucket in milliseconds. */
  bucket: number;
  begins: number | null;
  records: number[];
  written: number[];
  stored: number[];
  waiting: number[];
  regions: { count: number; bytesEach: number; written: number[] } | null;
  coarse: boolean;
  gaps: Span[];
  /** Rollbacks, and the times to which the volume went back, where they are known and earlier. */
  rollbacks: (Point & { to: number | null })[];
  /** Sizes of the volume, oldest first, each from its time on. */
  sizes: { time: number; size: number }[];
  snapshots: LaneData;
  marks: LaneData;
  anchors: LaneData;
  flushes: LaneData;
  dependents: (Omit<Dependent, 'time'> & { time: number })[];
  /** Time that moments stay recoverable, in milliseconds. Null: without a limit. */
  retain: number | null;
  /** About when the first moment expires. Null: without a limit. */
  expires: number | null;
}

type Lane = Lane_Anchor | Lane_Mark | Lane_Position | Lane_TimelineSnapshot;

function pointOf(point: Lane['items'][number]): Point {
  return { time: parseTimeUp(point.time), name: 'name' in point ? point.name : '', lsn: point.lsn ?? null };
}

function laneOf(lane: Lane): LaneData {
  const counts = lane.items.length === 0 && lane.counts?.length ? lane.counts : null;
  return { count: lane.count, points: lane.items.map(pointOf), counts, partial: lane.partial ?? false };
}

/** The times between two stretches of the history that can be recovered. */
function gapsOf(spans: Timeline['spans']): Span[] {
  const gaps: Span[] = [];
  for (const [index, span] of spans.entries()) {
    const next = spans[index + 1];
    if (span.to && next) gaps.push({ from: parseTime(span.to.time), to: parseTime(next.from.time) });
  }
  return gaps;
}

export function readTimeline(timeline: Timeline): TimelineData {
  const { regions } = timeline;
  return {
    span: { from: parseTime(timeline.from), to: parseTime(timeline.to) },
    now: parseTime(timeline.now),
    bucket: timeline.bucket_seconds * 1000,
    begins: timeline.begins ? parseTimeUp(timeline.begins.time) : null,
    records: timeline.records,
    written: timeline.written,
    stored: timeline.stored,
    waiting: timeline.waiting,
    regions: regions
      ? { count: regions.count, bytesEach: regions.bytes_each, written: regions.written }
      : null,
    coarse: timeline.coarse,
    gaps: gapsOf(timeline.spans),
    rollbacks: timeline.rollbacks.map((rollback) => {
      const to = rollback.to ? parseTime(rollback.to) : Infinity;
      return { ...pointOf(rollback), to: to < parseTime(rollback.time) ? to : null };
    }),
    sizes: (timeline.sizes ?? []).map(({ time, size }) => ({ time: parseTime(time), size })),
    snapshots: laneOf(timeline.snapshots),
    marks: laneOf(timeline.marks),
    anchors: laneOf(timeline.anchors),
    flushes: laneOf(timeline.flushes),
    // The line of a rollback shows already where the volume itself went back to.
    dependents: timeline.dependents
      .filter(({ kind, name }) => kind === 'view' || name !== timeline.volume)
      .map((dependent) => ({ ...dependent, time: parseTime(dependent.time) })),
    retain: timeline.retain_seconds ? timeline.retain_seconds * 1000 : null,
    expires: timeline.expires ? parseTime(timeline.expires) : null,
  };
}

/** The number of the bucket that holds a time. */
export function bucketAt(data: TimelineData, time: number): number {
  return Math.floor((time - data.span.from) / data.bucket);
}

export function bucketStart(data: TimelineData, bucket: number): number {
  return data.span.from + bucket * data.bucket;
}
