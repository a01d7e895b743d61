/**
 * When a schedule runs, by the rule of the server (crates/server/src/schedule/when.rs). Intervals
 * are seconds, and times are milliseconds since 1970.
 */

import type { WallClock, Weekday } from '../api/schema';
import { SECOND } from './time';
import { type Zone, zoneNamed } from './zone';

const DAY = 86_400;

/** From the Monday before the first day of 1970, which was a Thursday, in days. */
const MONDAY = 3;

/** Days that are searched for a run. The longest interval is 31 days. */
const DAYS_SEARCHED = 40;

/** Changes of a zone's offset that are searched for a run. */
const CHANGES_SEARCHED = 16;

export const WEEKDAYS: readonly Weekday[] = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];

export const WEEKDAY_NAMES: Record<Weekday, string> = {
  mon: 'Monday',
  tue: 'Tuesday',
  wed: 'Wednesday',
  thu: 'Thursday',
  fri: 'Friday',
  sat: 'Saturday',
  sun: 'Sunday',
};

export interface Timing {
  zone: Zone;
  /** The first run after a time. Null: the schedule never runs. */
  next(after: number): number | null;
  /** The last run before a time. Null: none in the days that are searched. */
  previous(before: number): number | null;
}

/** The seconds of a time of day such as `02:30`, up to `24:00`, or null. */
export function parseTimeOfDay(text: string): number | null {
  const [, hours, minutes] = /^(\d{1,2}):(\d\d)$/.exec(text.trim()) ?? [];
  const seconds = Number(hours) * 3600 + Number(minutes) * 60;
  return hours !== undefined && Number(minutes) < 60 && seconds <= DAY ? seconds : null;
}

/** The two ends of a part of the day such as `08:00-18:00`, in seconds, or null. */
export function parseWindow(text: string): [number, number] | null {
  const [from, to, more] = text.split('-').map(parseTimeOfDay);
  if (from === null || from === undefined || to === null || to === undefined || more !== undefined)
    return null;
  return from !== to && from < DAY && to > 0 ? [from, to] : null;
}

/** The timing of a schedule. Throws a `RangeError` if the browser does not know its zone. */
export function timingOf(every: number, wall: WallClock | null | undefined): Timing {
  const zone = zoneNamed(wall?.tz ?? 'UTC');
  const next = wall ? onTheWall(every, wall, zone) : (after: number) => nextMultiple(every, after);
  return { zone, next, previous: (before) => lastBefore(next, before) };
}

function nextMultiple(every: number, after: number): number {
  return (Math.floor(after / SECOND / every) + 1) * every * SECOND;
}

/**
 * The last run before a time. The first run after a time never decreases as that time grows, so
 * this finds by halves the latest time whose next run is still before.
 */
function lastBefore(next: Timing['next'], before: number): number | null {
  const end = Math.ceil(before / SECOND);
  const isBefore = (second: number) => (next(second * SECOND) ?? Number.POSITIVE_INFINITY) < before;
  let [low, high] = [end - 2 * DAYS_SEARCHED * DAY, end];
  if (!isBefore(low)) return null;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (isBefore(middle)) low = middle;
    else high = middle;
  }
  return next(low * SECOND);
}

/** The restrictions by the clock on the wall, as the server reads them. */
class Wall {
  readonly at: number;
  private readonly between: [number, number];
  private readonly on: boolean[];

  constructor({ at, between, on = [] }: WallClock) {
    this.at = (at && parseTimeOfDay(at)) || 0;
    this.between = (between && parseWindow(between)) || [0, DAY];
    this.on = WEEKDAYS.map((day) => on.length === 0 || on.includes(day));
  }

  isOn(day: number): boolean {
    return this.on[(((day + MONDAY) % 7) + 7) % 7] ?? false;
  }

  /** True if an interval of `days` runs on this day. Weeks begin on Monday. */
  isDueOn(day: number, days: number): boolean {
    if (days === 1) return this.isOn(day);
    if (days % 7 === 0) return this.isOn(day) && Math.floor((day + MONDAY) / 7) % (days / 7) === 0;
    return day % days === 0;
  }

  /**
   * The parts of a day at which the schedule may run. Hours after midnight belong to the day
   * before.
   */
  open(day: number): [number, number][] {
    const [from, to] = this.between;
    if (from < to) return this.isOn(day) ? [[from, to]] : [];
    const parts: [number, number][] = [];
    if (this.isOn(day - 1)) parts.push([0, to]);
    if (this.isOn(day)) parts.push([from, DAY]);
    return parts;
  }

  /** The first multiple of `every` since midnight that is open, not before `shown` on the clock. */
  firstMultiple(every: number, shown: number): number | null {
    const today = Math.floor(shown / DAY);
    for (let day = today; day <= today + 8; day += 1) {
      for (const [begin, end] of this.open(day)) {
        const slot = Math.ceil(Math.max(begin, shown - day * DAY) / every) * every;
        if (slot < end) return day * DAY + slot;
      }
    }
    return null;
  }
}

function onTheWall(every: number, clock: WallClock, zone: Zone): Timing['next'] {
  const wall = new Wall(clock);
  if (every % DAY === 0) return (after) => nextDay(wall, zone, every / DAY, after);
  return (after) => nextOfDay(wall, zone, every, after);
}

/** The first run after a time, for an interval of whole days. */
function nextDay(wall: Wall, zone: Zone, days: number, after: number): number | null {
  const today = Math.floor(zone.shown(after) / DAY);
  // From yesterday on: clocks may skip the rest of a day.
  for (let day = today - 1; day < today + DAYS_SEARCHED; day += 1) {
    if (!wall.isDueOn(day, days)) continue;
    const time = zone.timeOf(day * DAY + wall.at);
    if (time > after) return time;
  }
  return null;
}

/**
 * The first run after a time, for an interval of less than a day. It goes on while clocks show an
 * hour again. If clocks skip one of its times, it runs at the end of the gap.
 */
function nextOfDay(wall: Wall, zone: Zone, every: number, after: number): number | null {
  let begin = Math.floor(after / SECOND) * SECOND;
  let shown = zone.shown(begin) + 1;
  for (let tries = 0; tries < CHANGES_SEARCHED; tries += 1) {
    const slot = wall.firstMultiple(every, shown);
    if (slot === null) return null;
    const time = (slot - zone.offset(begin)) * SECOND;
    const change = zone.changeAfter(begin, time);
    if (!change) return time;
    begin = change.at;
    shown = zone.shown(begin);
    if (slot < shown) return begin;
  }
  return null;
}
