import { expect, test } from 'vitest';
import { dailyRate, fullDay } from './filling';

const measured_seconds = 604_800;

test('a pool that fills up tells the day', () => {
  const filling = { bytes_per_day: 2 ** 30, measured_seconds, full_at: '2026-12-24T12:00:00Z' };
  const before = Date.UTC(2026, 10, 24);
  expect(fullDay(filling, before)).toBe("full on 24 December at this week's rate");
  const later = { ...filling, full_at: '2029-02-14T12:00:00Z' };
  expect(fullDay(later, before)).toBe("full in Feb 2029 at this week's rate");
  expect(dailyRate(filling)).toBe('1 GiB a day');
});

test('no day is told that is not known or does not come', () => {
  expect(fullDay(undefined)).toBeUndefined();
  expect(dailyRate(undefined)).toBe('known after a day');
  const shrinking = { bytes_per_day: -(2 ** 20), measured_seconds };
  expect(fullDay(shrinking)).toBeUndefined();
  expect(dailyRate(shrinking)).toBe('1 MiB a day become free');
});
