import { describe, expect, test } from 'vitest';
import type { Timeline } from '../api/schema';
import { bucketAt, readTimeline } from './data';
import { allPoints, bytesByRegion, changedSince, neighbours, sizeAt, sumBetween } from './sums';

const EMPTY = { count: 0, items: [] };

function timeline(changes: Partial<Timeline> = {}): Timeline {
  return {
    volume: 'db',
    now: '1970-01-01T00:00:10Z',
    from: '1970-01-01T00:00:00Z',
    to: '1970-01-01T00:00:10Z',
    bucket_seconds: 2,
    begins: { lsn: 1, time: '1970-01-01T00:00:00Z' },
    records: [1, 2, 3, 4, 5],
    written: [10, 20, 30, 40, 50],
    stored: [1, 2, 3, 4, 5],
    waiting: [0, 0, 0, 0, 0],
    coarse: false,
    spans: [],
    rollbacks: [],
    sizes: [
      { time: '1970-01-01T00:00:00Z', size: 100 },
      { time: '1970-01-01T00:00:05Z', size: 200 },
    ],
    snapshots: EMPTY,
    marks: EMPTY,
    anchors: EMPTY,
    flushes: EMPTY,
    dependents: [],
    retain_seconds: 60,
    clock: [],
    ...changes,
  };
}

describe('sums', () => {
  const data = readTimeline(timeline());

  test('a size holds from its moment on', () => {
    expect([-1, 0, 4999, 5000, 9000].map((moment) => sizeAt(data, moment))).toEqual([
      null,
      100,
      100,
      200,
      200,
    ]);
    expect(sizeAt(null, 0)).toBeNull();
  });

  test('count a cut bucket by its share', () => {
    expect(sumBetween(data, 1000, 5000)).toEqual({ bytes: 5 + 20 + 15, records: 0.5 + 2 + 1.5 });
    expect(sumBetween(data, 0, 10_000).bytes).toBe(150);
    expect(sumBetween(data, 20_000, 30_000).bytes).toBe(0);
  });

  test('take the window where it covers, and the whole history elsewhere', () => {
    const detail = readTimeline(
      timeline({
        from: '1970-01-01T00:00:02Z',
        to: '1970-01-01T00:00:04Z',
        bucket_seconds: 1,
        written: [7, 7],
        records: [1, 1],
      }),
    );
    expect(changedSince(data, detail, 3000, 10_000)?.bytes).toBe(7 + 120);
    expect(changedSince(data, detail, 6000, 10_000)?.bytes).toBe(90);
    expect(changedSince(null, detail, 6000, 10_000)).toBeNull();
  });

  test('by region', () => {
    const regions = { count: 2, bytes_each: 5, written: [1, 2, 3, 4] };
    expect(bytesByRegion(readTimeline(timeline({ regions })))).toEqual([4, 6]);
  });
});

test('the points next to a time', () => {
  const points = [1, 3, 5].map((time) => ({ time, name: String(time), lsn: null }));
  expect(neighbours(points, 3)).toEqual({ before: points[1], after: points[2] });
  expect(neighbours(points, 0)).toEqual({ before: null, after: points[0] });
  expect(neighbours(points, 9)).toEqual({ before: points[2], after: null });
  const lists = [points, points.slice(1, 2), undefined];
  expect(allPoints(lists)).toEqual(points);
});

test('gaps lie between spans, and names stay with their points', () => {
  const at = (seconds: number) => ({ lsn: seconds, time: `1970-01-01T00:00:0${seconds}Z` });
  const data = readTimeline(
    timeline({
      spans: [
        { from: at(0), to: at(3) },
        { from: at(5), to: null },
      ],
      marks: { count: 1, items: [{ name: 'm', ...at(4) }] },
    }),
  );
  expect(data.gaps).toEqual([{ from: 3000, to: 5000 }]);
  expect(data.marks.points).toEqual([{ time: 4000, name: 'm', lsn: 4 }]);
  expect(bucketAt(data, 4100)).toBe(2);
});
