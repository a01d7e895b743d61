/** Where the line stops while only consistent points are wanted. */

import type { Point } from './data';
import { type Found, HALF_MICROSECOND } from './points';

/** The direction of a move. A drag has none, and snaps back to what was safe at the moment. */
export type Way = 'back' | 'forth';

/**
 * What the line stands at. `off`: consistent points are not wanted, or it is the present.
 * `looking`: the server was asked. `none`: there is no flush. `unknown`: the server did not tell.
 */
export type Snap = 'off' | 'flush' | 'looking' | 'none' | 'unknown';

/**
 * The flush that a move reaches, the present behind the last one, or why there is no such place.
 */
export type Stop = Point | 'present' | 'none' | 'unknown';

/** Looks for the neighbour of a time. */
export type Look = (time: number, forwards: boolean) => Found;

/**
 * Where a move to a time ends. A move forth reaches the first flush at or after the time, so that
 * it can't stay at the flush it comes from. Where there is none, it reaches the present.
 */
export function stopOf(time: number, way: Way, look: Look): Stop {
  if (way === 'forth') {
    const after = look(time - HALF_MICROSECOND, true);
    if (after) return after;
    if (after === undefined) return 'unknown';
  }
  const before = look(time, false);
  if (before === undefined) return 'unknown';
  if (before === null) return 'none';
  return way === 'forth' ? 'present' : before;
}

/** What the panel and a screen reader say of the place of the line. Empty: nothing. */
export function snapText(snap: Snap): string {
  switch (snap) {
    case 'flush':
      return 'At a flush';
    case 'looking':
      return 'Looking for a flush';
    case 'none':
      return 'Not at a flush: none is known at or before this moment';
    case 'unknown':
      return 'Not at a flush: the server did not say where one is';
    default:
      return '';
  }
}
