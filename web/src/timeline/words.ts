/** What the timeline says in words, for the panel and for assistive technology. */

import { bytes } from '../lib/format';
import { clockTime, dayOf, duration } from '../lib/time';
import { digitsOf } from './axis';
import type { Point } from './data';
import type { TimelineState } from './state';
import { changedSince, neighbours } from './sums';

/** The point of a kind that is nearest to a time: "3 min before snapshot hourly". */
function nearest(kind: string, points: Point[], time: number): { text: string; distance: number } | null {
  const { before, after } = neighbours(points, time);
  const sides = [before, after].filter((point) => point !== null);
  const point = sides.sort((a, b) => Math.abs(a.time - time) - Math.abs(b.time - time))[0];
  if (!point) return null;
  const distance = point.time - time;
  const name = `${kind} ${point.name}`;
  if (Math.abs(distance) < 1) return { text: `at ${name}`, distance: 0 };
  return {
    text: `${duration(distance)} ${distance > 0 ? 'before' : 'after'} ${name}`,
    distance: Math.abs(distance),
  };
}

/** The playhead's value as a sentence: time, what changed since, and the nearest snapshot or mark. */
export function valueText(state: TimelineState, now: number): string {
  const moment = state.moment.value;
  if (moment === null) return 'now';
  const parts = [`${dayOf(moment)} ${clockTime(moment, digitsOf(state.span.value))}`];
  const changed = changedSince(state.whole.value, state.detail.value, moment, now);
  if (changed) parts.push(`${bytes(changed.bytes)} changed since`);
  const near = [
    nearest('snapshot', state.snapshots.value, moment),
    nearest('mark', state.marks.value, moment),
  ]
    .filter((candidate) => candidate !== null)
    .sort((a, b) => a.distance - b.distance)[0];
  if (near) parts.push(near.text);
  return parts.join(', ');
}

/** A moment as a part of a name: "1041". */
export function shortName(moment: number): string {
  return clockTime(moment).slice(0, 5).replace(':', '');
}
