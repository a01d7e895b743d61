/** Rates of the pool and of each volume, once a second, and what they were in the last minutes. */

import { signal } from '@preact/signals';
import { MINUTE, parseTime } from '../lib/time';
import { get } from './client';
import type { Activity, ActivityPoint, Live } from './schema';
import { openStream, streamProblem } from './stream';

/** Seconds of rates that the console keeps for spark lines. */
export const KEPT_SECONDS = 60;

export const live = signal<Live | null>(null);

/** Why there are no rates, and what to do. */
export const liveProblem = signal<string | null>(null);

const bytesMoved = new Map<string, number[]>();

/** Bytes that a volume moved in each of the last seconds, oldest first. */
export function recentBytes(volume: string): readonly number[] {
  return bytesMoved.get(volume) ?? [];
}

/** Milliseconds of the pool's rates that the console keeps. The server keeps as many. */
export const KEPT_RATES = 5 * MINUTE;

/** Rates of the pool in the last minutes, oldest first. */
export const poolRates = signal<ActivityPoint[]>([]);

/** The union of two lists of points by their times, oldest first, without what is too old. */
export function mergeRates(held: ActivityPoint[], arrived: ActivityPoint[]): ActivityPoint[] {
  const byTime = new Map([...held, ...arrived].map((point) => [parseTime(point.time), point]));
  const sorted = [...byTime].sort(([a], [b]) => a - b);
  const newest = sorted.at(-1)?.[0] ?? 0;
  return sorted.filter(([time]) => time > newest - KEPT_RATES).map(([, point]) => point);
}

/** Milliseconds between two events after which the seconds of a volume are no line any more. */
const HOLE = 5000;

/** Adds a second to what is kept of each volume. A volume that is gone is forgotten. */
export function noteLive(event: Live): void {
  const last = live.peek()?.time;
  if (last && parseTime(event.time) - parseTime(last) > HOLE) bytesMoved.clear();
  for (const name of bytesMoved.keys()) if (!event.volumes[name]) bytesMoved.delete(name);
  for (const [name, rates] of Object.entries(event.volumes)) {
    const points = bytesMoved.get(name) ?? [];
    points.push(rates.read_bytes + rates.write_bytes);
    bytesMoved.set(name, points.slice(-KEPT_SECONDS));
  }
  poolRates.value = mergeRates(poolRates.value, [{ ...event.pool, time: event.time }]);
  live.value = event;
}

/** Reads the minutes before the stream began, or those that it missed. */
async function readPast(): Promise<void> {
  const past = await get<Activity>('/activity?of=5m').catch(() => null);
  if (past) poolRates.value = mergeRates(past.points, poolRates.value);
}

/** Follows the rates until the returned function is called. */
export function followLive(): () => void {
  const close = openStream('/live', {
    onOpen: () => {
      liveProblem.value = null;
      void readPast();
    },
    onEvent: ({ data }) => {
      if (data) noteLive(JSON.parse(data) as Live);
    },
    onFail: (error) => {
      liveProblem.value = streamProblem(error);
      // Rates of earlier would look like those of now. Of a server that is away the page says so.
      if (liveProblem.value) live.value = null;
    },
  });
  return () => {
    close();
    live.value = null;
    liveProblem.value = null;
    poolRates.value = [];
    bytesMoved.clear();
  };
}
