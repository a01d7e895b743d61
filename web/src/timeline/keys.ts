/** Keys of the timeline. The playhead has the focus for the arrows; letters work on the whole page. */

import { apiPath, get, query } from '../api/client';
import type { Timeline } from '../api/schema';
import { serverNow } from '../lib/clock';
import { parseTime, toRfc3339 } from '../lib/time';
import { isDialogOpen } from '../parts/dialog';
import type { TimelineState } from './state';
import { countedNeighbour, neighbours } from './sums';

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
      state.moveTo(state.whole.peek()?.begins ?? 0);
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

function moveByArrow(event: KeyboardEvent, state: TimelineState, forwards: boolean): void {
  if (event.ctrlKey || event.metaKey) void moveByWrite(state, forwards);
  else if (event.shiftKey) moveByPoint(state, forwards);
  else state.moveTo(state.at() + (forwards ? 1 : -1) * (state.detail.peek()?.bucket ?? 1000));
}

/** Moves to the next snapshot, mark or flush. */
function moveByPoint(state: TimelineState, forwards: boolean): void {
  const time = state.at();
  const detail = state.detail.peek();
  const named = [state.snapshots, state.marks, state.flushes].map((points) => {
    const { before, after } = neighbours(points.peek(), forwards ? time : time - 0.001);
    return (forwards ? after : before)?.time ?? null;
  });
  const counted = detail ? countedNeighbour(detail, detail.flushes, time, forwards) : null;
  const candidates = [...named, counted].filter((candidate) => candidate !== null);
  if (candidates.length > 0) state.moveTo(forwards ? Math.min(...candidates) : Math.max(...candidates));
  else if (forwards) state.moveTo(serverNow());
}

let searching = false;

/** Moves over one write. A search narrows down to it by the counts of ever shorter buckets. */
async function moveByWrite(state: TimelineState, forwards: boolean): Promise<void> {
  if (searching) return;
  searching = true;
  try {
    const found = await findWrite(state, forwards);
    if (found !== null) state.moveTo(found);
  } finally {
    searching = false;
  }
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
