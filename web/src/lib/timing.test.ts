import { expect, test } from 'vitest';
import type { Weekday } from '../api/schema';
import { DAY, HOUR } from './time';
import { parseWindow, timingOf } from './timing';
import { zoneNamed } from './zone';

// The cases are those of the server, in crates/server/src/schedule/when.rs.

const UNITS: Record<string, number> = { m: 60, h: 3600, d: 86_400 };

function timing(every: string, at: string, on: string, between: string, tz: string) {
  const seconds = Number.parseInt(every, 10) * (UNITS[every.at(-1) ?? ''] ?? 1);
  const days = on.split(',').filter(Boolean) as Weekday[];
  return timingOf(seconds, { at: at || null, between: between || null, on: days, tz });
}

/** Runs in a row after a time, each by the clock on the wall with its offset. */
function runs(timed: ReturnType<typeof timing>, after: string, count: number): string[] {
  let time = Date.parse(after);
  return Array.from({ length: count }, () => {
    time = timed.next(time) ?? Number.NaN;
    return shownOf(timed, time);
  });
}

function shownOf({ zone }: ReturnType<typeof timing>, time: number): string {
  const offset = zone.offset(time);
  const date = new Date(time + offset * 1000).toISOString();
  const day = ['Sun', 'Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat'][new Date(time + offset * 1000).getUTCDay()];
  const size = new Date(Math.abs(offset) * 1000).toISOString().slice(11, 16);
  return `${day} ${date.slice(5, 10)} ${date.slice(11, 16)}${offset < 0 ? '-' : '+'}${size}`;
}

test('without a zone, runs are at multiples of the interval in UTC', () => {
  const { next } = timingOf(3600, null);
  expect(next(Date.parse('2026-11-22T03:14:15Z'))).toBe(Date.parse('2026-11-22T04:00:00Z'));
  expect(next(Date.parse('2026-11-22T04:00:00Z'))).toBe(Date.parse('2026-11-22T05:00:00Z'));
  expect(timingOf(86_400, null).next(Date.parse('2026-11-22T04:00:00Z'))).toBe(
    Date.parse('2026-11-23T00:00:00Z'),
  );
});

test.each([
  ['1d', '02:30', '', '2026-11-22T01:29:59Z', ['Sun 11-22 02:30+01:00', 'Mon 11-23 02:30+01:00']],
  ['1d', '02:30', '', '2026-11-22T01:30:00Z', ['Mon 11-23 02:30+01:00', 'Tue 11-24 02:30+01:00']],
  // Clocks skip from 02:00 to 03:00: the run is at the first instant after the gap.
  ['1d', '02:30', '', '2026-03-28T12:00:00Z', ['Sun 03-29 03:00+02:00', 'Mon 03-30 02:30+02:00']],
  ['1d', '02:00', '', '2026-03-28T12:00:00Z', ['Sun 03-29 03:00+02:00', 'Mon 03-30 02:00+02:00']],
  ['1d', '03:00', '', '2026-03-28T12:00:00Z', ['Sun 03-29 03:00+02:00', 'Mon 03-30 03:00+02:00']],
  // Clocks show 02:30 twice: the run is at the first one only.
  ['1d', '02:30', '', '2026-10-24T12:00:00Z', ['Sun 10-25 02:30+02:00', 'Mon 10-26 02:30+01:00']],
  ['1d', '02:30', '', '2026-10-25T00:45:00Z', ['Mon 10-26 02:30+01:00', 'Tue 10-27 02:30+01:00']],
  ['1d', '02:30', 'mon,wed', '2026-11-22T12:00:00Z', ['Mon 11-23 02:30+01:00', 'Wed 11-25 02:30+01:00']],
  ['1d', '02:30', 'sat', '2026-11-22T12:00:00Z', ['Sat 11-28 02:30+01:00', 'Sat 12-05 02:30+01:00']],
  ['7d', '02:30', 'sat', '2026-11-22T12:00:00Z', ['Sat 11-28 02:30+01:00', 'Sat 12-05 02:30+01:00']],
  ['14d', '02:30', 'mon', '2026-11-22T12:00:00Z', ['Mon 11-30 02:30+01:00', 'Mon 12-14 02:30+01:00']],
  ['31d', '23:59', '', '2026-01-30T12:00:00Z', ['Sat 02-07 23:59+01:00', 'Tue 03-10 23:59+01:00']],
  ['1d', '00:00', '', '2026-11-29T23:30:00Z', ['Tue 12-01 00:00+01:00', 'Wed 12-02 00:00+01:00']],
  ['1d', '23:30', '', '2026-12-31T22:00:00Z', ['Thu 12-31 23:30+01:00', 'Fri 01-01 23:30+01:00']],
  ['1d', '12:00', '', '2028-02-28T12:00:00Z', ['Tue 02-29 12:00+01:00', 'Wed 03-01 12:00+01:00']],
])('in Berlin, every %s at %s on %s after %s', (every, at, on, after, expected) => {
  expect(runs(timing(every, at, on, '', 'Europe/Berlin'), after, 2)).toEqual(expected);
});

test('Samoa skipped a day, and Lord Howe Island skips half an hour', () => {
  expect(runs(timing('1d', '12:00', '', '', 'Pacific/Apia'), '2011-12-29T21:00:00Z', 3)).toEqual([
    'Thu 12-29 12:00-10:00',
    'Sat 12-31 00:00+14:00',
    'Sat 12-31 12:00+14:00',
  ]);
  expect(runs(timing('1d', '02:15', '', '', 'Australia/Lord_Howe'), '2026-10-03T00:00:00Z', 1)).toEqual([
    'Sun 10-04 02:30+11:00',
  ]);
});

test.each([
  ['1h', '', '08:00-10:00', '2026-11-22T12:00:00Z', 'Mon 11-23 08:00, Mon 11-23 09:00, Tue 11-24 08:00'],
  ['3h', '', '08:00-18:00', '2026-11-22T03:00:00Z', 'Sun 11-22 09:00, Sun 11-22 12:00, Sun 11-22 15:00'],
  ['7h', '', '00:00-24:00', '2026-11-22T03:00:00Z', 'Sun 11-22 07:00, Sun 11-22 14:00, Sun 11-22 21:00'],
  ['7h', 'mon', '', '2026-11-22T23:00:01Z', 'Mon 11-23 07:00, Mon 11-23 14:00, Mon 11-23 21:00'],
  // The hours after midnight belong to the day on which the window begins.
  ['3h', 'fri', '22:00-06:00', '2026-11-22T12:00:00Z', 'Sat 11-28 00:00, Sat 11-28 03:00, Sat 12-05 00:00'],
  ['1h', 'fri', '23:00-01:00', '2026-11-27T21:59:59Z', 'Fri 11-27 23:00, Sat 11-28 00:00, Fri 12-04 23:00'],
  [
    '1h',
    'mon,wed',
    '08:00-09:00',
    '2026-11-29T12:00:00Z',
    'Mon 11-30 08:00, Wed 12-02 08:00, Mon 12-07 08:00',
  ],
])('in Berlin, every %s on %s between %s after %s', (every, on, between, after, expected) => {
  const found = runs(timing(every, '', on, between, 'Europe/Berlin'), after, 3);
  expect(found.map((run) => run.slice(0, -6)).join(', ')).toBe(expected);
});

test.each([
  // In spring no time of the window 02:00-03:00 exists. It runs once, after the gap.
  [
    ['15m', '', '02:00-03:00', '2026-03-28T01:30:00Z'],
    ['Sat 03-28 02:45+01:00', 'Sun 03-29 03:00+02:00', 'Mon 03-30 02:00+02:00'],
  ],
  [
    ['1h', 'sun', '', '2026-03-29T00:00:00Z'],
    ['Sun 03-29 03:00+02:00', 'Sun 03-29 04:00+02:00', 'Sun 03-29 05:00+02:00'],
  ],
  [
    ['2h', 'sun', '', '2026-03-29T00:00:00Z'],
    ['Sun 03-29 03:00+02:00', 'Sun 03-29 04:00+02:00', 'Sun 03-29 06:00+02:00'],
  ],
  // In autumn the schedule goes on while clocks show an hour again.
  [
    ['1h', 'sun', '', '2026-10-24T23:59:00Z'],
    ['Sun 10-25 02:00+02:00', 'Sun 10-25 02:00+01:00', 'Sun 10-25 03:00+01:00'],
  ],
  [
    ['6h', 'sun', '', '2026-10-24T21:00:00Z'],
    ['Sun 10-25 00:00+02:00', 'Sun 10-25 06:00+01:00', 'Sun 10-25 12:00+01:00'],
  ],
] as const)('short intervals go on while clocks change: %s', ([every, on, between, after], expected) => {
  expect(runs(timing(every, '', on, between, 'Europe/Berlin'), after, 3)).toEqual(expected);
});

test('an hour of a zone of half hours is the hour there', () => {
  const india = timing('1h', '', '', '00:00-24:00', 'Asia/Kolkata');
  expect(runs(india, '2026-11-22T03:14:15Z', 1)).toEqual(['Sun 11-22 09:00+05:30']);
});

test('the last run before a time is the one from which that time is next', () => {
  const all = [
    timing('1d', '02:30', '', '', 'Europe/Berlin'),
    timing('15m', '', 'mon,wed', '22:00-02:00', 'Europe/Berlin'),
    timing('31d', '23:59', '', '', 'Pacific/Apia'),
    timingOf(600, null),
  ];
  for (const timed of all) {
    for (let before = Date.UTC(2026, 2, 20); before < Date.UTC(2026, 3, 5); before += 13 * HOUR + 7000) {
      const run = timed.previous(before) ?? Number.NaN;
      expect(run).toBeLessThan(before);
      expect(timed.next(run)).toBeGreaterThanOrEqual(before);
      expect(timed.next(run - 1000)).toBe(run);
    }
  }
});

test('a zone knows what its clock shows', () => {
  const berlin = zoneNamed('Europe/Berlin');
  const change = Date.UTC(2026, 9, 25, 1);
  expect(berlin.offset(change - 1000)).toBe(7200);
  expect(berlin.offset(change)).toBe(3600);
  expect(berlin.changeAfter(change - DAY, change)?.at).toBe(change);
  expect(berlin.changeAfter(change - DAY, change - 1000)).toBeUndefined();
  expect(() => zoneNamed('Europe/Nowhere')).toThrow(RangeError);
});

test('a part of the day is read as on the command line', () => {
  expect(parseWindow('08:00-18:00')).toEqual([28_800, 64_800]);
  expect(parseWindow('22:00-6:00')).toEqual([79_200, 21_600]);
  for (const bad of ['', '08:00', '08:00-08:00', '24:00-08:00', '08:00-00:00', '8-18', '08:00-25:00'])
    expect(parseWindow(bad)).toBeNull();
});
