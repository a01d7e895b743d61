/**
 * A made-up server for the tests of the timeline: it answers as `GET /volumes/{v}/timeline` does.
 */

import type { Timeline } from '../api/schema';
import { parseTime, toRfc3339 } from '../lib/time';
import type { Kind } from './points';

/** Times of the points of each lane, in milliseconds, oldest first. */
export type Lanes = Partial<Record<Kind, number[]>>;

/** Points that a lane lists, and flushes that the server looks up. */
const MOST_ITEMS = 500;
const MOST_FLUSHES = 20_000;

interface Made {
  now: number;
  begins: number;
  lanes: Lanes;
  /** Times of single writes. */
  writes?: number[];
}

/** The counts of times by bucket. */
function counted(times: number[], from: number, bucket: number, buckets: number): number[] {
  const counts = new Array<number>(buckets).fill(0);
  for (const time of times) {
    const at = Math.floor((time - from) / bucket);
    counts[at] = (counts[at] ?? 0) + 1;
  }
  return counts;
}

/**
 * The answer for a window. Like the server's, its buckets have a length in 1, 2, 5, and are
 * aligned.
 */
export function answerFor(made: Made, parameters: URLSearchParams): Timeline {
  const read = (name: string, otherwise: number) => parseTime(parameters.get(name) ?? '') || otherwise;
  const [wantedFrom, wantedTo] = [read('from', made.begins), read('to', made.now)];
  const least = Math.max((wantedTo - wantedFrom) / Number(parameters.get('buckets') ?? 200), 0.001);
  const power = 10 ** Math.floor(Math.log10(least));
  const bucket =
    [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999999) ?? least;
  const from = Math.floor(wantedFrom / bucket) * bucket;
  const buckets = Math.max(1, Math.ceil((wantedTo - from) / bucket));
  const to = from + buckets * bucket;
  const inside = (times: number[] = []) => times.filter((time) => time >= from && time < to);
  const lane = <T>(times: number[], toItem: (time: number) => T, most = Number.POSITIVE_INFINITY) => {
    const found = times.slice(-most);
    const partial = found.length < times.length;
    if (found.length <= MOST_ITEMS) return { count: found.length, items: found.map(toItem), partial };
    return { count: found.length, items: [], counts: counted(found, from, bucket, buckets), partial };
  };
  const at = (time: number) => ({ lsn: Math.round(time), time: toRfc3339(time) });
  const named = (time: number) => ({ name: `at-${time}`, ...at(time) });
  const zeros = new Array<number>(buckets).fill(0);
  return {
    volume: 'db',
    now: toRfc3339(made.now),
    from: toRfc3339(from),
    to: toRfc3339(to),
    bucket_seconds: bucket / 1000,
    begins: at(made.begins),
    records: counted(inside(made.writes), from, bucket, buckets),
    written: zeros,
    stored: zeros,
    waiting: zeros,
    coarse: false,
    spans: [],
    rollbacks: [],
    sizes: [],
    snapshots: lane(inside(made.lanes.snapshots), named),
    marks: lane(inside(made.lanes.marks), named),
    anchors: lane([], at),
    flushes: lane(inside(made.lanes.flushes), at, MOST_FLUSHES),
    dependents: [],
    retain_seconds: null,
    clock: [],
  };
}

/** Times at a distance from each other. */
export function every(distance: number, from: number, to: number): number[] {
  return Array.from({ length: Math.floor((to - from) / distance) + 1 }, (_, n) => from + n * distance);
}

/** Stands for a browser and a server whose volume `db` has this history. Returns what was asked. */
export function stubBrowser(made: Made) {
  const asked: string[] = [];
  const answer = { broken: false };
  const ignore = () => undefined;
  const fetch = async (path: string) => {
    asked.push(path);
    if (answer.broken) throw new TypeError('no server');
    const body = answerFor(made, new URLSearchParams(path.split('?')[1]));
    return { ok: true, status: 200, json: async () => body };
  };
  const document = { hidden: false, visibilityState: 'visible', querySelector: () => null, body: null };
  const globals = {
    location: { pathname: '/volumes/db', search: '', hash: '' },
    history: { replaceState: ignore, pushState: ignore },
    window: { addEventListener: ignore },
    document: { ...document, addEventListener: ignore, removeEventListener: ignore },
    matchMedia: () => ({ matches: true }),
    requestAnimationFrame: ignore,
    cancelAnimationFrame: ignore,
    fetch,
  };
  return { asked, answer, globals };
}
