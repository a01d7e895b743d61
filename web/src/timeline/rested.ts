/** What the panel knows of a moment after the playhead rested on it. */

import { effect, signal } from '@preact/signals';
import { apiPath, get, query } from '../api/client';
import type { Timeline } from '../api/schema';
import { serverNow } from '../lib/clock';
import { toRfc3339 } from '../lib/time';
import { readTimeline, type TimelineData } from './data';
import { type Found, KINDS, type Kind, type Near, shownNeighbour } from './points';
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
  /** The last position before the moment that the page knows. */
  lsn: number | null;
}

/** Time around the moment in which the panel looks for flushes and positions first. */
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

/** The last position before a moment that a picture of its surroundings has. */
function lsnBefore(around: TimelineData | null, moment: number): number | null {
  const known = allPoints([
    around?.flushes.points,
    around?.anchors.points,
    around?.snapshots.points,
    around?.marks.points,
  ]).filter(({ lsn }) => lsn !== null);
  return neighbours(known, moment).before?.lsn ?? null;
}

/**
 * Looks for all neighbours of a moment: in the pictures, and by requests where they do not tell.
 */
export async function readNear(
  state: TimelineState,
  moment: number,
  around: TimelineData | null,
  signal: AbortSignal,
): Promise<Near> {
  const search = state.search(signal);
  const find = async (kind: Kind, forwards: boolean): Promise<Found> => {
    const close = shownNeighbour([around], kind, moment, forwards);
    return close === undefined ? state.neighbour(search, kind, moment, forwards) : close;
  };
  const sides = async (kind: Kind) => {
    const [before, after] = await Promise.all([find(kind, false), find(kind, true)]);
    return [kind, { before, after }] as const;
  };
  return { moment, of: Object.fromEntries(await Promise.all(KINDS.map(sides))) as Near['of'] };
}

/**
 * Follows the playhead. 150 ms after its last motion it reads the sums of the timeline's buckets
 * from the moment to now, and what is next to the moment. It opens no moment: that would make the
 * server write its history.
 */
export function followRest(state: TimelineState) {
  const rested = signal<Rested | null>(null);
  let timer: ReturnType<typeof setTimeout> | undefined;
  let control: AbortController | undefined;
  const read = async (moment: number) => {
    control = new AbortController();
    const { signal } = control;
    const parameters = query({ from: toRfc3339(moment), buckets: BUCKETS, regions: REGIONS });
    const path = apiPath`/volumes/${state.volume}/timeline` + parameters;
    const around = readAround(state.volume, moment, signal);
    void around
      .then((data) => readNear(state, moment, data, signal))
      .then((near) => {
        if (!signal.aborted) state.near.value = near;
      });
    const answer = await get<Timeline>(path, signal).catch(() => null);
    const lsn = lsnBefore(await around, moment);
    if (!answer || signal.aborted) return;
    const data = readTimeline(answer);
    const sum = sumBetween(data, moment, data.now);
    rested.value = { moment, sum, regions: bytesByRegion(data), lsn };
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
