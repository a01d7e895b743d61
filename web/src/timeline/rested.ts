/** What the panel knows of a moment after the playhead rested on it. */

import { effect, signal } from '@preact/signals';
import { apiPath, get, query } from '../api/client';
import type { Timeline } from '../api/schema';
import { serverNow } from '../lib/clock';
import { toRfc3339 } from '../lib/time';
import { type Point, readTimeline, type TimelineData } from './data';
import type { TimelineState } from './state';
import { allPoints, bytesByRegion, neighbours, type Sum, sumBetween } from './sums';

const REST = 150;
const BUCKETS = 50;
const REGIONS = 64;

export interface Rested {
  moment: number;
  /** What was written from the moment to now, and to which parts of the volume. */
  sum: Sum;
  regions: number[];
  /** Flushes around the moment, which a wide window only counts. */
  flushes: Point[];
  /** The last position before the moment that the page knows. */
  lsn: number | null;
}

/** Time around the moment in which the panel looks for flushes. */
const AROUND = 30_000;

/** Flushes and anchors close to a moment, from a narrow window of the timeline. */
async function readAround(volume: string, moment: number, signal: AbortSignal): Promise<TimelineData | null> {
  const parameters = query({
    from: toRfc3339(moment - AROUND),
    to: toRfc3339(Math.min(moment + AROUND, serverNow())),
    buckets: BUCKETS,
  });
  const answer = await get<Timeline>(apiPath`/volumes/${volume}/timeline` + parameters, signal).catch(
    () => null,
  );
  return answer && readTimeline(answer);
}

/**
 * Follows the playhead. 150 ms after its last motion it reads the sums of the timeline's buckets
 * from the moment to now. It opens no moment: that would make the server write its history.
 */
export function followRest(state: TimelineState) {
  const rested = signal<Rested | null>(null);
  let timer: ReturnType<typeof setTimeout> | undefined;
  let control: AbortController | undefined;
  const read = async (moment: number) => {
    control = new AbortController();
    const parameters = query({ from: toRfc3339(moment), buckets: BUCKETS, regions: REGIONS });
    const path = apiPath`/volumes/${state.volume}/timeline` + parameters;
    const { signal } = control;
    const [answer, around] = await Promise.all([
      get<Timeline>(path, signal).catch(() => null),
      readAround(state.volume, moment, signal),
    ]);
    if (!answer || state.moment.peek() !== moment) return;
    const data = readTimeline(answer);
    const flushes = around?.flushes.points ?? [];
    const known = allPoints([
      flushes,
      around?.anchors.points,
      around?.snapshots.points,
      around?.marks.points,
    ]).filter(({ lsn }) => lsn !== null);
    const lsn = neighbours(known, moment).before?.lsn ?? null;
    rested.value = {
      moment,
      sum: sumBetween(data, moment, data.now),
      regions: bytesByRegion(data),
      flushes,
      lsn,
    };
  };
  const stop = effect(() => {
    const moment = state.moment.value;
    clearTimeout(timer);
    control?.abort();
    if (moment === null) rested.value = null;
    else timer = setTimeout(() => void read(moment), REST);
  });
  const dispose = () => {
    clearTimeout(timer);
    control?.abort();
    stop();
  };
  return { rested, dispose };
}
