import { describe, expect, test } from 'vitest';
import {
  DAY,
  duration,
  HOUR,
  MINUTE,
  parseTime,
  parseTimeUp,
  relative,
  toRfc3339,
  typedTime,
  utcTime,
} from './time';

const NOON = Date.UTC(2026, 10, 22, 12, 0, 0);

describe('RFC 3339', () => {
  test('keeps microseconds', () => {
    const time = parseTime('2026-11-22T12:00:00.123456789Z');
    expect(time - NOON).toBeCloseTo(123.4568, 3);
    expect(toRfc3339(time)).toBe('2026-11-22T12:00:00.123457Z');
    expect(toRfc3339(NOON)).toBe('2026-11-22T12:00:00Z');
    expect(utcTime(time, 3)).toBe('2026-11-22 12:00:00.123Z');
  });

  test('is rounded up where a time must not be missed', () => {
    const up = (text: string) => toRfc3339(parseTimeUp(text));
    expect(up('2026-11-22T12:00:00.123456001Z')).toBe('2026-11-22T12:00:00.123457Z');
    expect(up('2026-11-22T12:00:00.123456000Z')).toBe('2026-11-22T12:00:00.123456Z');
    expect(up('2026-11-22T12:00:00.999999999Z')).toBe('2026-11-22T12:00:01Z');
    expect(up('2026-11-22T12:00:00.5Z')).toBe('2026-11-22T12:00:00.5Z');
    expect(up('2026-11-22T12:00:00Z')).toBe('2026-11-22T12:00:00Z');
    // The address has the same number again.
    const time = parseTimeUp('2026-11-22T12:00:00.123456789Z');
    expect(parseTime(toRfc3339(time))).toBe(time);
  });

  test('reads offsets', () => {
    expect(parseTime('2026-11-22T13:00:00.5+01:00')).toBe(NOON + 500);
  });
});

test('durations show two units while they are short', () => {
  expect(duration(3 * HOUR + 12 * MINUTE)).toBe('3 h 12 min');
  expect(duration(25 * HOUR)).toBe('1 d 1 h');
  expect(duration(12 * HOUR + 5 * MINUTE)).toBe('12 h');
  expect(duration(59_700)).toBe('1 min');
  expect(duration(12.3)).toBe('12 ms');
  expect(duration(0.004)).toBe('4 µs');
  expect(relative(NOON - 90_000, NOON)).toBe('1 min 30 s ago');
  expect(relative(NOON + 6 * HOUR, NOON)).toBe('in 6 h');
  expect(relative(NOON - 10, NOON)).toBe('now');
});

describe('typed times', () => {
  const local = new Date(2026, 10, 22, 12, 0, 0).getTime();

  test('a clock time is the latest one past', () => {
    expect(typedTime('10:41', local)).toBe(new Date(2026, 10, 22, 10, 41).getTime());
    expect(typedTime('12:30', local)).toBe(new Date(2026, 10, 22, 12, 30).getTime() - DAY);
    expect(typedTime('yesterday 10:41:30.5', local)).toBe(new Date(2026, 10, 21, 10, 41, 30, 500).getTime());
    expect(typedTime('2026-11-20 09:00', local)).toBe(new Date(2026, 10, 20, 9).getTime());
  });

  test('a distance and an RFC 3339 time', () => {
    expect(typedTime('-5m', local)).toBe(local - 5 * MINUTE);
    expect(typedTime('5m ago', local)).toBe(local - 5 * MINUTE);
    expect(typedTime('now', local)).toBe(local);
    expect(typedTime('2026-11-22T12:00:00Z', local)).toBe(NOON);
    expect(typedTime('later', local)).toBeNull();
  });
});
