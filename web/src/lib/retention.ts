/** What a schedule's retention rule keeps, and when the schedule runs next. */

import type { Retention, Schedule } from '../api/schema';
import { DAY, HOUR, SECOND } from './time';
import { type Timing, timingOf } from './timing';
import type { Zone } from './zone';

export type Rule = keyof Retention;

export const RULES: Rule[] = ['last', 'hourly', 'daily', 'weekly', 'monthly'];

/**
 * True if a change of the numbers can delete snapshots. All numbers 0 mean that every snapshot
 * stays.
 */
export function keepsLess(before: Retention, after: Retention): boolean {
  const countOf = (keep: Retention, rule: Rule) => keep[rule] ?? 0;
  const keepsAll = (keep: Retention) => RULES.every((rule) => countOf(keep, rule) === 0);
  if (keepsAll(before) || keepsAll(after)) return keepsAll(before) && !keepsAll(after);
  return RULES.some((rule) => countOf(after, rule) < countOf(before, rule));
}

/** Snapshots of one rule that the drawing shows at most. */
const MOST = 1000;

const DAY_SECONDS = DAY / SECOND;

/**
 * The first instant of the period of a rule that a time belongs to. Days, weeks and months are
 * those of the schedule's zone, and hours are those of UTC, as on the server.
 */
function beginOf(rule: Rule, time: number, zone: Zone): number {
  if (rule === 'hourly') return Math.floor(time / HOUR) * HOUR;
  const day = Math.floor(zone.shown(time) / DAY_SECONDS);
  if (rule === 'daily') return zone.timeOf(day * DAY_SECONDS);
  // The first day of 1970 was a Thursday, and a week begins on Monday.
  if (rule === 'weekly') return zone.timeOf((Math.floor((day + 3) / 7) * 7 - 3) * DAY_SECONDS);
  const date = new Date(day * DAY);
  return zone.timeOf(Date.UTC(date.getUTCFullYear(), date.getUTCMonth()) / SECOND);
}

/**
 * The times of the snapshots that one rule keeps, from new to old, if the schedule always ran until
 * now. Periods without a run do not count.
 */
export function keptBy(rule: Rule, limit: number, timing: Timing, now: number): number[] {
  const kept: number[] = [];
  let before = now;
  while (kept.length < Math.min(limit, MOST)) {
    const run = timing.previous(before);
    if (run === null) break;
    kept.push(run);
    before = rule === 'last' ? run : Math.min(run, beginOf(rule, run, timing.zone));
  }
  return kept;
}

/** The timing of a schedule. Null: this browser does not know its time zone. */
export function timingOfSchedule({ every, wall }: Pick<Schedule, 'every' | 'wall'>): Timing | null {
  try {
    return timingOf(every, wall);
  } catch {
    return null;
  }
}

/**
 * The next runs of a schedule. The server reports the first one, and the others follow its rule.
 */
export function nextRuns(schedule: Schedule, most: number): number[] {
  if (!schedule.next) return [];
  const timing = timingOfSchedule(schedule);
  const runs = [Date.parse(schedule.next)];
  while (timing && runs.length < most) {
    const run = timing.next(runs.at(-1) ?? 0);
    if (run === null) break;
    runs.push(run);
  }
  return runs;
}
