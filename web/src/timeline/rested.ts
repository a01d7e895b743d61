/** What the panel knows of a moment after the playhead rested on it. */

import { effect, signal } from '@preact/signals';
import { apiPath, get, query } from '../api/client';
import type { Timeline } from '../api/pending';
import { toRfc3339 } from '../lib/time';
import { readTimeline } from './data';
import type { TimelineState } from './state';
import { bytesByRegion, type Sum, sumBetween } from './sums';

const REST = 150;
const BUCKETS = 50;
const REGIONS = 64;

export interface Rested {
  moment: number;
  /** What was written from the moment to now, and to which parts of the volume. */
  sum: Sum;
  regions: number[];
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
    const answer = await get<Timeline>(path, control.signal).catch(() => null);
    if (!answer || state.moment.peek() !== moment) return;
    const data = readTimeline(answer);
    rested.value = { moment, sum: sumBetween(data, moment, data.now), regions: bytesByRegion(data) };
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
