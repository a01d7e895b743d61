import { expect, test } from 'vitest';
import type { Schedule } from '../api/schema';
import { keptBy, nextRuns, pastRuns } from './retention';
import { DAY, HOUR } from './time';

const NOON = Date.UTC(2026, 10, 25, 12);

test('a rule keeps the newest snapshot of each period', () => {
  const runs = pastRuns(3600, NOON + 1, 24 * 40);
  expect(runs[0]).toBe(NOON);
  expect(keptBy('last', 3, runs)).toEqual([NOON, NOON - HOUR, NOON - 2 * HOUR]);
  expect(keptBy('daily', 2, runs)).toEqual([NOON, Date.UTC(2026, 10, 24, 23)]);
  // 22 November 2026 is a Sunday, the last day of its week.
  expect(keptBy('weekly', 2, runs)).toEqual([NOON, Date.UTC(2026, 10, 22, 23)]);
  expect(keptBy('monthly', 2, runs)).toEqual([NOON, Date.UTC(2026, 9, 31, 23)]);
});

test('the next runs follow the interval, on the chosen days', () => {
  const schedule = { next: new Date(NOON).toISOString(), every: 86400, wall: null } as Schedule;
  expect(nextRuns(schedule, 3)).toEqual([NOON, NOON + DAY, NOON + 2 * DAY]);
  expect(nextRuns({ ...schedule, wall: { on: ['wed'] } }, 2)).toEqual([NOON, NOON + 7 * DAY]);
  expect(nextRuns({ ...schedule, next: null }, 3)).toEqual([]);
});
