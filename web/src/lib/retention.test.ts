import { expect, test } from 'vitest';
import type { Schedule } from '../api/schema';
import { keepsLess, keptBy, nextRuns } from './retention';
import { DAY, HOUR, MINUTE } from './time';
import { timingOf } from './timing';

const NOON = Date.UTC(2026, 10, 25, 12);

test('a rule keeps the newest snapshot of each period', () => {
  const hourly = timingOf(3600, null);
  const now = NOON + MINUTE;
  expect(keptBy('last', 3, hourly, now)).toEqual([NOON, NOON - HOUR, NOON - 2 * HOUR]);
  expect(keptBy('hourly', 2, timingOf(600, null), now)).toEqual([NOON, NOON - 10 * MINUTE]);
  expect(keptBy('daily', 2, hourly, now)).toEqual([NOON, Date.UTC(2026, 10, 24, 23)]);
  // 22 November 2026 is a Sunday, the last day of its week.
  expect(keptBy('weekly', 2, hourly, now)).toEqual([NOON, Date.UTC(2026, 10, 22, 23)]);
  expect(keptBy('monthly', 2, hourly, now)).toEqual([NOON, Date.UTC(2026, 9, 31, 23)]);
});

test('days, weeks and months are those of the zone, and hours those of UTC', () => {
  const berlin = timingOf(3600, { tz: 'Europe/Berlin', between: '00:00-24:00' });
  // Midnight of Berlin is 23:00 in UTC in winter, and 22:00 in summer.
  expect(keptBy('daily', 2, berlin, NOON + 1000)).toEqual([NOON, Date.UTC(2026, 10, 24, 22)]);
  expect(keptBy('monthly', 3, berlin, NOON + 1000)).toEqual([
    NOON,
    Date.UTC(2026, 9, 31, 22),
    Date.UTC(2026, 8, 30, 21),
  ]);
  const half = timingOf(1800, { tz: 'Asia/Kolkata', between: '00:00-24:00' });
  expect(keptBy('hourly', 2, half, NOON + 1000)).toEqual([NOON, NOON - HOUR / 2]);
});

test('periods without a run do not count', () => {
  const mondays = timingOf(86_400, { tz: 'Europe/Berlin', at: '02:30', on: ['mon'] });
  const monday = Date.UTC(2026, 10, 23, 1, 30);
  expect(keptBy('daily', 3, mondays, NOON)).toEqual([monday, monday - 7 * DAY, monday - 14 * DAY]);
});

const schedule = { next: new Date(NOON).toISOString(), every: 86_400, wall: null } as Schedule;

test('the next runs follow the one that the server reports', () => {
  const day = { ...schedule, next: new Date(NOON - 12 * HOUR).toISOString() };
  expect(nextRuns(day, 3)).toEqual([NOON - 12 * HOUR, NOON + 12 * HOUR, NOON + 36 * HOUR]);
  expect(nextRuns({ ...schedule, next: null }, 3)).toEqual([]);
});

test('the next runs are on the days, in the window and by the clock of the zone', () => {
  const work = { every: 3600, wall: { on: ['fri'], between: '22:00-02:00', tz: 'America/New_York' } };
  const friday = Date.UTC(2026, 9, 31, 3); // 30 October, 23:00 in New York, a Saturday in UTC
  const next = new Date(friday).toISOString();
  expect(nextRuns({ ...schedule, ...work, next } as Schedule, 4)).toEqual([
    friday,
    friday + HOUR,
    friday + 2 * HOUR,
    // A week later, clocks are at standard time.
    Date.UTC(2026, 10, 7, 3),
  ]);
});

test('of a schedule whose zone the browser does not know, only the next run is known', () => {
  const wall = { at: '02:30', tz: 'Europe/Nowhere' };
  expect(nextRuns({ ...schedule, wall } as Schedule, 5)).toEqual([NOON]);
});

test('fewer snapshots are kept if a number gets smaller, or if all stayed so far', () => {
  expect(keepsLess({ hourly: 24, daily: 7 }, { hourly: 24, daily: 6 })).toBe(true);
  expect(keepsLess({ hourly: 24, daily: 7 }, { hourly: 25, daily: 7, weekly: 1 })).toBe(false);
  expect(keepsLess({ hourly: 24 }, { daily: 30 })).toBe(true);
  expect(keepsLess({}, { last: 100 })).toBe(true);
  expect(keepsLess({ last: 100 }, { last: 0 })).toBe(false);
  expect(keepsLess({}, {})).toBe(false);
});
