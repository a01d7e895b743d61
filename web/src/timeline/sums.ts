/**
 * What the panel says about a moment, from the buckets that the page already has. Nothing here asks
 * the server.
 */

import { bucketAt, bucketStart, type Point, type TimelineData } from './data';

export interface Sum {
  bytes: number;
  records: number;
}

/** What was written in a span. A bucket that the span cuts counts by its share. */
export function sumBetween(data: TimelineData, from: number, to: number): Sum {
  const sum = { bytes: 0, records: 0 };
  const first = Math.max(0, bucketAt(data, from));
  const last = Math.min(data.written.length - 1, bucketAt(data, to));
  for (let bucket = first; bucket <= last; bucket += 1) {
    const start = bucketStart(data, bucket);
    const share = (Math.min(to, start + data.bucket) - Math.max(from, start)) / data.bucket;
    if (share <= 0) continue;
    sum.bytes += (data.written[bucket] ?? 0) * share;
    sum.records += (data.records[bucket] ?? 0) * share;
  }
  return sum;
}

/**
 * What was written from a moment to now: exact buckets of the window where it covers, and the
 * coarser ones of the whole history elsewhere.
 */
export function changedSince(
  whole: TimelineData | null,
  detail: TimelineData | null,
  moment: number,
  now: number,
): Sum | null {
  if (!whole) return null;
  if (!detail || moment < detail.span.from || moment > detail.span.to) return sumBetween(whole, moment, now);
  const inside = sumBetween(detail, moment, detail.span.to);
  const after = detail.span.to < now ? sumBetween(whole, detail.span.to, now) : { bytes: 0, records: 0 };
  return { bytes: inside.bytes + after.bytes, records: inside.records + after.records };
}

/** The size of the volume at a moment. Null if it is not known. */
export function sizeAt(data: TimelineData | null, moment: number): number | null {
  return data?.sizes.findLast(({ time }) => time <= moment)?.size ?? null;
}

export interface Neighbours {
  before: Point | null;
  after: Point | null;
}

/** The points of a lane next to a time. A point at the time itself is the one before. */
export function neighbours(points: Point[], time: number): Neighbours {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((points[middle]?.time ?? 0) <= time) low = middle + 1;
    else high = middle;
  }
  return { before: points[low - 1] ?? null, after: points[low] ?? null };
}

/** Points of several lists, sorted, each once. */
export function allPoints(lists: (Point[] | undefined)[]): Point[] {
  const byTime = new Map<number, Point>();
  for (const list of lists) for (const point of list ?? []) byTime.set(point.time, point);
  return [...byTime.values()].sort((a, b) => a.time - b.time);
}

/** Bytes written by part of the volume, over all buckets. */
export function bytesByRegion(data: TimelineData): number[] {
  const { regions } = data;
  if (!regions) return [];
  const sums = new Array<number>(regions.count).fill(0);
  for (const [index, bytes] of regions.written.entries()) {
    const region = index % regions.count;
    sums[region] = (sums[region] ?? 0) + bytes;
  }
  return sums;
}
