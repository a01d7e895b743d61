/**
 * Keys of the timeline. The playhead has the focus for the arrows; letters work on the whole page.
 */

import { apiPath, get, query } from '../api/client';
import type { Timeline } from '../api/schema';
import { serverNow } from '../lib/clock';
import { parseTime, toRfc3339 } from '../lib/time';
import { isDialogOpen } from '../parts/dialog';
import { attempt } from '../parts/notices';
import { type Found, HALF_MICROSECOND, KINDS, nearestOf } from './points';
import type { Way } from './snap';
import type { TimelineState } from './state';

const ZOOM_STEP = 0.5;

/** Buckets of a search for one write. */
const SEARCH_BUCKETS = 2000;

/** The shortest bucket, in milliseconds, that a search looks into. */
const SHORTEST_BUCKET = 0.002;

export interface TimelineActions {
  typeTime(): unknown;
  mark(): unknown;
}

/** Moves the playhead by keys. Returns true if the key means something here. */
export function onPlayheadKey(event: KeyboardEvent, state: TimelineState): boolean {
  const forwards = event.key === 'ArrowRight' || event.key === 'ArrowUp';
  switch (event.key) {
    case 'ArrowLeft':
    case 'ArrowRight':
    case 'ArrowUp':
    case 'ArrowDown':
      moveByArrow(event, state, forwards);
      return true;
    case 'Home':
      state.moveTo(state.whole.peek()?.begins ?? 0, 'forth');
      return true;
    case 'End':
      state.moveTo(serverNow());
      return true;
    case 'PageUp':
      state.pan(-state.width.peek() * 0.8);
      return true;
    case 'PageDown':
      state.pan(state.width.peek() * 0.8);
      return true;
    default:
      return false;
  }
}

const wayOf = (forwards: boolean): Way => (forwards ? 'forth' : 'back');

function moveByArrow(event: KeyboardEvent, state: TimelineState, forwards: boolean): void {
  const bucket = state.detail.peek()?.bucket ?? 1000;
  if (event.ctrlKey || event.metaKey) void moveByWrite(state, forwards);
  else if (event.shiftKey) void moveByPoint(state, forwards);
  else state.moveTo(state.at() + (forwards ? bucket : -bucket), wayOf(forwards));
}

let searching = false;

/** Does one search at a time. A move of the line meanwhile is the newer wish, and stays. */
async function searched<T>(
  what: string,
  state: TimelineState,
  find: () => Promise<T>,
  use: (found: T) => void,
): Promise<void> {
  if (searching) return;
  searching = true;
  const { moves } = state;
  await attempt(`Looking for the next ${what}`, async () => {
    const found = await find();
    if (state.moves === moves) use(found);
  });
  searching = false;
}

/**
 * Moves to the next snapshot, mark or flush. While only consistent points are wanted, it is a
 * flush.
 */
export function moveByPoint(state: TimelineState, forwards: boolean): Promise<void> | undefined {
  const kinds = state.consistent.peek() ? (['flushes'] as const) : KINDS;
  const time = forwards ? state.at() : state.at() - HALF_MICROSECOND;
  const shown = nearestOf(
    kinds.map((kind) => state.shown(kind, time, forwards)),
    forwards,
  );
  if (shown !== undefined) {
    goTo(state, shown, forwards);
    return undefined;
  }
  const ask = async () => {
    const search = state.search();
    const found = kinds.map((kind) => state.neighbour(search, kind, time, forwards));
    return nearestOf(await Promise.all(found), forwards);
  };
  return searched('snapshot, mark or flush', state, ask, (found) => goTo(state, found, forwards));
}

/** Goes to a point. Behind the last one is the present, but only if it is known to be the last. */
function goTo(state: TimelineState, found: Found, forwards: boolean): void {
  if (found === undefined)
    throw new Error('The server did not say where it is. Zoom in around the line, and try again.');
  if (found && state.consistent.peek()) state.moveToFlush(found);
  else if (found) state.moveTo(found.time, wayOf(forwards));
  else if (forwards) state.moveTo(serverNow());
}

/** Moves over one write. A search narrows down to it by the counts of ever shorter buckets. */
function moveByWrite(state: TimelineState, forwards: boolean): Promise<void> {
  return searched(
    'write',
    state,
    () => findWrite(state, forwards),
    (found) => {
      if (found !== null) state.moveTo(found, wayOf(forwards));
    },
  );
}

async function findWrite(state: TimelineState, forwards: boolean): Promise<number | null> {
  const begins = state.whole.peek()?.begins ?? 0;
  const time = state.at();
  for (let length = (state.detail.peek()?.bucket ?? 1000) * 10; ; length *= 50) {
    const from = forwards ? time : Math.max(begins, time - length);
    const to = forwards ? Math.min(serverNow(), time + length) : time;
    const found = await narrow(state.volume, from, to, forwards);
    if (found !== null) return found;
    if (forwards ? to >= serverNow() - 5 : from <= begins) return null;
  }
}

/** The moment after the first write of a span, or before its last one. */
async function narrow(volume: string, from: number, to: number, forwards: boolean): Promise<number | null> {
  let span = { from, to };
  for (let tries = 0; tries < 8; tries += 1) {
    const parameters = query({ from: toRfc3339(span.from), to: toRfc3339(span.to), buckets: SEARCH_BUCKETS });
    const {
      records,
      bucket_seconds,
      from: begin,
    } = await get<Timeline>(apiPath`/volumes/${volume}/timeline` + parameters);
    const bucket = forwards
      ? records.findIndex((count) => count > 0)
      : records.findLastIndex((count) => count > 0);
    if (bucket < 0) return null;
    const start = parseTime(begin) + bucket * bucket_seconds * 1000;
    const end = start + bucket_seconds * 1000;
    if (records[bucket] === 1 || bucket_seconds * 1000 <= SHORTEST_BUCKET) return forwards ? end : start;
    span = { from: start, to: end };
  }
  return null;
}

function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  return target.matches('input, select, textarea') || isDialogOpen();
}

/** Keys of the whole page. Returns true if the key means something here. */
export function onPageKey(event: KeyboardEvent, state: TimelineState, actions: TimelineActions): boolean {
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return false;
  switch (event.key) {
    case '+':
    case '=':
      state.zoomByKey(ZOOM_STEP);
      return true;
    case '-':
    case '−':
      state.zoomByKey(1 / ZOOM_STEP);
      return true;
    case 't':
    case 'T':
      actions.typeTime();
      return true;
    case 'm':
    case 'M':
      actions.mark();
      return true;
    case 'b':
    case 'B':
      toggleSecond(state);
      return true;
    default:
      return false;
  }
}

/** Sets the second handle at the playhead, or removes it. */
export function toggleSecond(state: TimelineState): void {
  state.second.value = state.second.peek() === null ? state.at() : null;
}
