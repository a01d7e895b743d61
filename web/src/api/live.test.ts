import { expect, test } from 'vitest';
import { KEPT_RATES, mergeRates } from './live';
import type { ActivityPoint } from './schema';

const NOON = Date.UTC(2026, 10, 29, 12);
const point = (seconds: number, reads = seconds) =>
  ({ time: new Date(NOON + seconds * 1000).toISOString(), reads }) as ActivityPoint;
const shown = (points: ActivityPoint[]) => points.map(({ reads }) => reads);

test('the past of the server comes before what the stream brought, and each second once', () => {
  const past = [point(1), point(2), point(3, 30)];
  expect(shown(mergeRates(past, [point(3), point(4)]))).toEqual([1, 2, 3, 4]);
  // After a connection was lost, the past fills the gap.
  expect(shown(mergeRates([point(1), point(5)], [point(2), point(3), point(4)]))).toEqual([1, 2, 3, 4, 5]);
});

test('what is older than five minutes goes', () => {
  const old = KEPT_RATES / 1000;
  expect(shown(mergeRates([point(0), point(1)], [point(old)]))).toEqual([1, old]);
  expect(mergeRates([], [])).toEqual([]);
});
