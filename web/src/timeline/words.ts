/** What the timeline says in words, for the panel and for assistive technology. */

import { bytes } from '../lib/format';
import { clockTime, dayOf, duration } from '../lib/time';
import { digitsOf } from './axis';
import type { Found, Kind } from './points';
import { snapText } from './snap';
import type { TimelineState } from './state';
import { changedSince } from './sums';

/** What is known of a neighbour of the moment: by the search for it, or as the pictures show it. */
export function nearOf(state: TimelineState, kind: Kind, moment: number, forwards: boolean): Found {
  const near = state.near.value;
  // The pictures are read so that a component draws again when they change.
  void [state.detail.value, state.whole.value];
  if (near?.moment === moment) return forwards ? near.of[kind].after : near.of[kind].before;
  return state.shown(kind, moment, forwards);
}

/** The point of a kind that is nearest to a time: "3 min before snapshot hourly". */
function nearest(state: TimelineState, kind: Kind, name: string, time: number) {
  const sides = [false, true].map((forwards) => nearOf(state, kind, time, forwards));
  const points = sides.filter((point) => point !== null && point !== undefined);
  const point = points.sort((a, b) => Math.abs(a.time - time) - Math.abs(b.time - time))[0];
  if (!point) return null;
  const distance = point.time - time;
  const text = `${name} ${point.name}`;
  if (Math.abs(distance) < 1) return { text: `at ${text}`, distance: 0 };
  return {
    text: `${duration(distance)} ${distance > 0 ? 'before' : 'after'} ${text}`,
    distance: Math.abs(distance),
  };
}

/**
 * The playhead's value as a sentence: time, what changed since, and the nearest snapshot or mark.
 */
export function valueText(state: TimelineState, now: number): string {
  const moment = state.moment.value;
  if (moment === null) return 'now';
  const parts = [`${dayOf(moment)} ${clockTime(moment, digitsOf(state.span.value))}`];
  const changed = changedSince(state.whole.value, state.detail.value, moment, now);
  if (changed) parts.push(`${bytes(changed.bytes)} changed since`);
  const near = [nearest(state, 'snapshots', 'snapshot', moment), nearest(state, 'marks', 'mark', moment)]
    .filter((candidate) => candidate !== null)
    .sort((a, b) => a.distance - b.distance)[0];
  if (near) parts.push(near.text);
  const snap = snapText(state.snap.value);
  if (snap) parts.push(snap.charAt(0).toLowerCase() + snap.slice(1));
  return parts.join(', ');
}

/** A moment as a part of a name: "1041". */
export function shortName(moment: number): string {
  return clockTime(moment).slice(0, 5).replace(':', '');
}
