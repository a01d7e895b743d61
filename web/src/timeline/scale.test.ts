import { describe, expect, test } from 'vitest';
import { DAY, HOUR, MINUTE } from '../lib/time';
import { digitsOf, exactDigits, stepOf, ticksOf } from './axis';
import { clamped, lengthOf, panned, SHORTEST, showing, toTime, toX, zoomed } from './scale';

const LIMITS = { from: 0, to: 10 * DAY };

describe('a span', () => {
  test('maps times to pixels and back', () => {
    const span = { from: 1000, to: 2000 };
    expect(toX(1500, span, 800)).toBe(400);
    expect(toTime(400, span, 800)).toBe(1500);
  });

  test('keeps the time under the pointer while it zooms', () => {
    const span = { from: DAY, to: 2 * DAY };
    const around = DAY + 6 * HOUR;
    const next = zoomed(span, 0.5, around, LIMITS);
    expect(toX(around, next, 1000)).toBeCloseTo(toX(around, span, 1000), 6);
    expect(lengthOf(next)).toBe(12 * HOUR);
  });

  test('stays inside its limits', () => {
    expect(panned({ from: 0, to: DAY }, -DAY, LIMITS)).toEqual({ from: 0, to: DAY });
    expect(zoomed({ from: 0, to: DAY }, 100, HOUR, LIMITS)).toEqual(LIMITS);
    expect(lengthOf(zoomed({ from: 0, to: 1 }, 1e-9, 0.5, LIMITS))).toBeCloseTo(SHORTEST, 9);
    expect(clamped({ from: 9 * DAY, to: 11 * DAY }, LIMITS)).toEqual({ from: 8 * DAY, to: 10 * DAY });
  });

  test('moves to a time outside of it', () => {
    const span = { from: 0, to: HOUR };
    expect(showing(span, MINUTE, LIMITS)).toBe(span);
    expect(showing(span, DAY, LIMITS)).toEqual({ from: DAY - HOUR / 2, to: DAY + HOUR / 2 });
  });
});

describe('an axis', () => {
  test('has round steps', () => {
    expect(stepOf(0.03)).toBeCloseTo(0.05, 9);
    expect(stepOf(700)).toBe(1000);
    expect(stepOf(7 * MINUTE)).toBe(10 * MINUTE);
    expect(stepOf(3 * DAY)).toBe(7 * DAY);
  });

  test('has ticks that are far enough apart, at every zoom', () => {
    const end = Date.UTC(2026, 10, 22, 12);
    for (let length = SHORTEST; length < 400 * DAY; length *= 1.7) {
      const ticks = ticksOf({ from: end - length, to: end }, 1000, 90);
      expect(ticks.length).toBeGreaterThan(0);
      expect(ticks.length).toBeLessThanOrEqual(12);
    }
  });

  test('calls days by their date', () => {
    const noon = new Date(2026, 10, 22, 12).getTime();
    const labels = ticksOf({ from: noon - DAY, to: noon }, 800).filter(({ major }) => major);
    expect(labels.map(({ label }) => label)).toEqual(['22 Nov']);
    expect(digitsOf({ from: 0, to: DAY })).toBe(0);
    expect(digitsOf({ from: 0, to: 10 })).toBe(6);
  });

  test('an exact time has milliseconds in every window', () => {
    expect([DAY, HOUR, 10_000, 10].map((to) => exactDigits({ from: 0, to }))).toEqual([3, 3, 3, 6]);
  });
});
