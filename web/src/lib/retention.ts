/** What a schedule's retention rule keeps, worked out in UTC from the times of its snapshots. */

import type { Retention, Schedule, Weekday } from '../api/schema';
import { DAY, HOUR } from './time';

export type Rule = keyof Retention;

export const RULES: Rule[] = ['last', 'hourly', 'daily', 'weekly', 'monthly'];

/** The period of a rule that a time belongs to, as a number. Two times of one period have one number. */
function periodOf(rule: Rule, time: number): number {
  if (rule === 'hourly') return Math.floor(time / HOUR);
  if (rule === 'daily') return Math.floor(time / DAY);
  // The first day of 1970 was a Thursday, and a week begins on Monday.
  if (rule === 'weekly') return Math.floor((time / DAY + 3) / 7);
  const date = new Date(time);
  return date.getUTCFullYear() * 12 + date.getUTCMonth();
}

/** The times that one rule keeps, of times that are sorted from new to old. */
export function keptBy(rule: Rule, limit: number, times: number[]): number[] {
  if (rule === 'last') return times.slice(0, limit);
  const kept: number[] = [];
  let period = Number.NaN;
  for (const time of times) {
    if (kept.length === limit) break;
    if (periodOf(rule, time) === period) continue;
    period = periodOf(rule, time);
    kept.push(time);
  }
  return kept;
}

/** Times at which a schedule would have run before `until`, from new to old, at most `most`. */
export function pastRuns(every: number, until: number, most: number): number[] {
  const step = every * 1000;
  const newest = Math.floor(until / step) * step;
  return Array.from({ length: most }, (_, index) => newest - index * step);
}

const DAYS: Weekday[] = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'];

/** The next runs of a schedule, from the next one that the server reports. A change of summer time can move them by an hour. */
export function nextRuns({ next, every, wall }: Schedule, most: number): number[] {
  if (!next) return [];
  const days = wall?.on ?? [];
  const runs: number[] = [];
  for (
    let time = Date.parse(next), tries = 0;
    runs.length < most && tries < 1000;
    time += every * 1000, tries += 1
  ) {
    const day = DAYS[new Date(time).getDay()] ?? 'mon';
    if (runs.length === 0 || days.length === 0 || days.includes(day)) runs.push(time);
  }
  return runs;
}
