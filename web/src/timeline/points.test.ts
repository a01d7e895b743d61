import { describe, expect, test } from 'vitest';
import { DAY, HOUR, MINUTE, toRfc3339 } from '../lib/time';
import { readTimeline } from './data';
import { type Kind, MOST_REQUESTS, nearestOf, Search, shownNeighbour } from './points';
import { answerFor, every, type Lanes } from './testing';

const NOW = Date.UTC(2026, 10, 29, 12);
const BEGINS = NOW - 30 * DAY;

function read(lanes: Lanes, from = BEGINS, to = NOW, buckets = 600) {
  const window = { from: toRfc3339(from), to: toRfc3339(to) };
  const parameters = new URLSearchParams({ ...window, buckets: String(buckets) });
  return readTimeline(answerFor({ now: NOW, begins: BEGINS, lanes }, parameters));
}

describe('the pictures', () => {
  const few = read({ snapshots: [NOW - DAY, NOW - HOUR] });

  test('tell the neighbours where they list points', () => {
    const time = NOW - 2 * HOUR;
    expect(shownNeighbour([few], 'snapshots', time, false)?.time).toBe(NOW - DAY);
    expect(shownNeighbour([few], 'snapshots', time, true)?.time).toBe(NOW - HOUR);
  });

  test('tell that there is none where they show all of that side', () => {
    expect(shownNeighbour([few], 'snapshots', NOW - MINUTE, true)).toBeNull();
    expect(shownNeighbour([few], 'snapshots', NOW - 2 * DAY, false)).toBeNull();
    expect(shownNeighbour([few], 'marks', NOW - 2 * DAY, false)).toBeNull();
  });

  test('do not tell of what is outside, or only counted', () => {
    const window = read({ snapshots: every(HOUR, BEGINS, NOW) }, NOW - 90 * MINUTE, NOW - 10 * MINUTE);
    expect(shownNeighbour([window], 'snapshots', NOW - 70 * MINUTE, true)?.time).toBe(NOW - HOUR);
    expect(shownNeighbour([window], 'snapshots', NOW - 50 * MINUTE, true)).toBeUndefined();
    expect(shownNeighbour([window], 'snapshots', NOW - 70 * MINUTE, false)).toBeUndefined();
    expect(shownNeighbour([window], 'snapshots', NOW - 5 * HOUR, true)).toBeUndefined();
    const counts = read({ snapshots: every(HOUR, BEGINS, NOW) });
    expect(shownNeighbour([counts], 'snapshots', NOW - 70 * MINUTE, true)).toBeUndefined();
    expect(shownNeighbour([window, counts, null], 'snapshots', NOW - 50 * MINUTE, true)).toBeUndefined();
    // A narrow window without a snapshot leaves the answer to the picture of all.
    const narrow = read({}, NOW - 50 * MINUTE, NOW - 40 * MINUTE);
    expect(shownNeighbour([narrow, few], 'snapshots', NOW - 45 * MINUTE, false)?.time).toBe(NOW - HOUR);
  });

  test('of earlier do not tell that nothing happened since', () => {
    const earlier = { ...read({}, NOW - 2 * HOUR, NOW - HOUR), now: NOW - HOUR - MINUTE };
    const time = NOW - 90 * MINUTE;
    expect(shownNeighbour([earlier], 'snapshots', time, true)).toBeNull();
    expect(shownNeighbour([earlier, few], 'snapshots', time, true)?.time).toBe(NOW - HOUR);
    const counts = read({ snapshots: every(HOUR, BEGINS, NOW) });
    expect(shownNeighbour([earlier, counts], 'snapshots', time, true)).toBeUndefined();
  });

  test('the nearest of several is not known while one is not', () => {
    const point = (time: number) => ({ time, name: '', lsn: null });
    expect(nearestOf([point(3), null, point(2)], true)?.time).toBe(2);
    expect(nearestOf([point(3), null, point(2)], false)?.time).toBe(3);
    expect(nearestOf([point(3), undefined], true)).toBeUndefined();
    expect(nearestOf([null, null], true)).toBeNull();
  });
});

/** A search of a made-up server, and the number of its requests. */
function searchOf(lanes: Lanes) {
  const asked = { count: 0 };
  const search = new Search(
    async ({ from, to }) => {
      asked.count += 1;
      return read(lanes, from, to, 400);
    },
    { from: BEGINS, to: NOW },
  );
  return { search, asked };
}

async function found(lanes: Lanes, kind: Kind, time: number, forwards: boolean) {
  const { search, asked } = searchOf(lanes);
  const point = await search.find(kind, time, forwards);
  expect(asked.count).toBeLessThanOrEqual(MOST_REQUESTS);
  return point;
}

describe('a search', () => {
  const crowd = { snapshots: every(4 * MINUTE, BEGINS, NOW), flushes: every(200, NOW - DAY, NOW - HOUR) };

  test('finds a near point by one request', async () => {
    const { search, asked } = searchOf({ flushes: every(5000, BEGINS, NOW) });
    expect((await search.find('flushes', NOW - HOUR - 1, true))?.time).toBe(NOW - HOUR);
    expect(asked.count).toBe(1);
  });

  test('finds a snapshot among ten thousand', async () => {
    expect((await found(crowd, 'snapshots', NOW - HOUR, true))?.time).toBe(NOW - 56 * MINUTE);
    expect((await found(crowd, 'snapshots', NOW - HOUR - 1, false))?.time).toBe(NOW - 64 * MINUTE);
    expect((await found(crowd, 'snapshots', NOW - HOUR, false))?.time).toBe(NOW - HOUR);
  });

  test('finds a far point among very many, from either side', async () => {
    expect((await found(crowd, 'flushes', NOW - 20 * DAY, true))?.time).toBe(NOW - DAY);
    expect((await found(crowd, 'flushes', NOW - 1, false))?.time).toBe(NOW - HOUR);
    expect((await found(crowd, 'flushes', NOW - 2 * HOUR + 1, true))?.time).toBe(NOW - 2 * HOUR + 200);
    expect((await found(crowd, 'flushes', NOW - 2 * HOUR - 1, false))?.time).toBe(NOW - 2 * HOUR - 200);
  });

  test('knows that there is none', async () => {
    expect(await found(crowd, 'flushes', NOW - 2 * DAY, false)).toBeNull();
    expect(await found(crowd, 'flushes', NOW - MINUTE, true)).toBeNull();
    expect(await found({}, 'marks', NOW - DAY, true)).toBeNull();
  });

  test('shares its answers between kinds', async () => {
    const { search, asked } = searchOf({ marks: [NOW - HOUR + 2], flushes: [NOW - HOUR + 1] });
    const both = await Promise.all([
      search.find('marks', NOW - HOUR, true),
      search.find('flushes', NOW - HOUR, true),
    ]);
    expect(both.map((point) => point?.time)).toEqual([NOW - HOUR + 2, NOW - HOUR + 1]);
    expect(asked.count).toBe(1);
  });

  test('without an answer does not know', async () => {
    const search = new Search(async () => null, { from: BEGINS, to: NOW });
    expect(await search.find('marks', NOW - HOUR, true)).toBeUndefined();
  });

  test('gives up after a number of requests', async () => {
    // A server that counts points everywhere, however narrow the window is.
    let asked = 0;
    const search = new Search(
      async (window) => {
        asked += 1;
        const { from, to } = window;
        const lane = { count: 900, points: [], counts: [900], partial: true };
        return { ...read({}), span: window, bucket: to - from, snapshots: lane, marks: lane, flushes: lane };
      },
      { from: BEGINS, to: NOW },
    );
    expect(await search.find('marks', NOW - HOUR, true)).toBeUndefined();
    expect(await search.find('flushes', NOW - HOUR, false)).toBeUndefined();
    expect(asked).toBeLessThanOrEqual(MOST_REQUESTS);
  });
});
