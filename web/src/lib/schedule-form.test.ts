import { expect, test } from 'vitest';
import type { Schedule } from '../api/schema';
import {
  bodyOf,
  changeOf,
  createCommand,
  type Fields,
  fieldsOf,
  NEW_SCHEDULE,
  problemsOf,
  setCommand,
} from './schedule-form';

const berlin = {
  ...NEW_SCHEDULE,
  volumes: ['db'],
  tz: 'Europe/Berlin',
  keep: { ...NEW_SCHEDULE.keep, weekly: '' },
};
const night: Fields = { ...berlin, every: '1d', at: '02:30' };
const work: Fields = { ...berlin, every: '15m', on: ['mon', 'fri'], between: '08:00-18:00' };

test('the command has all that the request has', () => {
  expect(createCommand('hourly', { ...berlin, groups: ['shop'] })).toBe(
    'hindcast schedule create hourly shop db --every 1h --keep-hourly 24 --keep-daily 7',
  );
  expect(createCommand('night', night)).toBe(
    'hindcast schedule create night db --every 1d --at 02:30 --tz Europe/Berlin --keep-hourly 24 --keep-daily 7',
  );
  expect(createCommand('work', work)).toContain(
    '--every 15m --on mon,fri --between 08:00-18:00 --tz Europe/Berlin',
  );
  expect(bodyOf(berlin).wall).toBeUndefined();
  expect(bodyOf(night)).toEqual({
    volumes: ['db'],
    groups: [],
    every: 86_400,
    keep: { last: 0, hourly: 24, daily: 7, weekly: 0, monthly: 0 },
    wall: { at: '02:30', on: [], between: null, tz: 'Europe/Berlin' },
  });
});

test('a change sends only what changed', () => {
  expect(changeOf(night, night)).toEqual({});
  expect(setCommand('night', night, night)).toBe('hindcast schedule set night --every 1d');
  expect(changeOf(night, { ...night, keep: { ...night.keep, daily: '9' } })).toEqual({
    keep: { last: 0, hourly: 24, daily: 9, weekly: 0, monthly: 0 },
  });
  expect(setCommand('night', night, { ...night, at: '03:00' })).toBe(
    'hindcast schedule set night --at 03:00 --tz Europe/Berlin',
  );
  const plain = {
    ...night,
    every: '6h',
    at: '',
    keep: { last: '', hourly: '', daily: '', weekly: '', monthly: '' },
  };
  expect(changeOf(night, plain).wall).toEqual({});
  expect(setCommand('night', night, plain)).toBe(
    'hindcast schedule set night --every 6h --at none --keep-last 0',
  );
  expect(setCommand('work', work, { ...work, on: [], between: '' })).toBe(
    'hindcast schedule set work --on all --between none',
  );
});

test('volumes and groups come and go', () => {
  const before = { ...night, volumes: ['db', 'log'], groups: ['shop'] };
  const after = { ...night, volumes: ['log', 'wal'], groups: [] };
  expect(changeOf(before, after)).toEqual({ add: ['wal'], remove: ['db'], remove_groups: ['shop'] });
  expect(setCommand('night', before, after)).toBe(
    'hindcast schedule set night --add wal --remove shop --remove db',
  );
});

test('the fields of a schedule make the same schedule', () => {
  const wall = { at: '02:30', on: ['sun'], between: null, tz: 'UTC' };
  const of = { own_volumes: ['db'], volumes: ['db', 'log'], groups: ['shop'] };
  const schedule = { ...of, every: 604_800, wall, keep: { last: 8 } } as Schedule;
  expect(bodyOf(fieldsOf(schedule))).toMatchObject({
    volumes: ['db'],
    groups: ['shop'],
    every: 604_800,
    wall,
    keep: { last: 8, daily: 0 },
  });
});

// The refused ones are those of the server, in crates/server/src/schedule/plan.rs.
test.each([
  [{ every: '5s' }, 'every'],
  [{ every: '32d' }, 'every'],
  [{ at: '24:00', every: '1d' }, 'at'],
  [{ at: '02:30' }, 'at'],
  [{ every: '25h', on: ['mon'] }, 'every'],
  [{ every: '1d', between: '08:00-18:00' }, 'between'],
  [{ every: '1d', at: '02:30', between: '08:00-18:00' }, 'between'],
  [{ every: '7d', at: '02:30' }, 'on'],
  [{ every: '14d', at: '02:30', on: ['mon', 'tue'] }, 'on'],
  [{ every: '2d', at: '02:30', on: ['mon'] }, 'on'],
  [{ every: '6h', between: '07:00-08:00' }, 'between'],
  [{ every: '1d', at: '02:30', tz: 'Europe/Nowhere' }, 'tz'],
  [{ every: '1d', at: '02:30', tz: '' }, 'tz'],
  [{ keep: { ...berlin.keep, last: '-1' } }, 'keep'],
  [{ volumes: [] }, 'volumes'],
] as [Partial<Fields>, string][])('%o is refused', (change, field) => {
  expect(Object.keys(problemsOf({ ...berlin, ...change }))).toEqual([field]);
});

test.each([
  {},
  { volumes: [], groups: ['shop'] },
  { every: '25h' },
  { every: '1d', at: '02:30', on: ['mon'] },
  { every: '7d', on: ['sun'], at: '04:00' },
  { every: '15m', between: '22:00-06:00' },
  { every: '31d', at: '23:59' },
] as Partial<Fields>[])('%o is accepted', (change) => {
  expect(problemsOf({ ...berlin, ...change })).toEqual({});
});
