/** What a person writes about a schedule, as a request and as a command. */

import type { PatchSchedule, Retention, Schedule, WallClock, Weekday } from '../api/schema';
import { hindcast } from './command';
import { parseSeconds, secondsArgument } from './format';
import { RULES } from './retention';
import { parseTimeOfDay, parseWindow, type Timing, timingOf } from './timing';
import { ownZone } from './zone';

const DAY = 86_400;
const SHORTEST = 10;
const LONGEST = 31 * DAY;

/** The fields of a dialog. */
export interface Fields {
  every: string;
  at: string;
  on: Weekday[];
  between: string;
  tz: string;
  keep: Record<keyof Retention, string>;
  volumes: string[];
  groups: string[];
}

export const NEW_SCHEDULE: Fields = {
  every: '1h',
  at: '',
  on: [],
  between: '',
  tz: ownZone(),
  keep: { last: '', hourly: '24', daily: '7', weekly: '4', monthly: '' },
  volumes: [],
  groups: [],
};

/** The fields of a schedule that there is. */
export function fieldsOf({
  every,
  wall,
  keep,
  own_volumes = [],
  groups = [],
}: Pick<Schedule, 'every' | 'wall' | 'keep' | 'own_volumes' | 'groups'>): Fields {
  return {
    volumes: own_volumes,
    groups,
    every: secondsArgument(every),
    at: wall?.at ?? '',
    on: wall?.on ?? [],
    between: wall?.between ?? '',
    tz: wall?.tz ?? ownZone(),
    keep: Object.fromEntries(
      RULES.map((rule) => [rule, keep[rule] ? String(keep[rule]) : '']),
    ) as Fields['keep'],
  };
}

/** True if the schedule goes by the clock on the wall. Otherwise its zone does not matter. */
export const isOnTheWall = ({ at, on, between }: Fields) => at !== '' || on.length > 0 || between !== '';

function wallOf(fields: Fields): WallClock | null {
  if (!isOnTheWall(fields)) return null;
  const { at, on, between, tz } = fields;
  return { at: at || null, on, between: between || null, tz };
}

export function keepOf({ keep }: Fields): Retention {
  return Object.fromEntries(RULES.map((rule) => [rule, Number(keep[rule]) || 0]));
}

export interface Problems {
  every?: string;
  at?: string;
  on?: string;
  between?: string;
  tz?: string;
  keep?: string;
  volumes?: string;
}

/** Why the fields can't be sent, by the field. The server checks them again by the same rules. */
export function problemsOf(fields: Fields): Problems {
  const every = parseSeconds(fields.every);
  if (every === null || every < SHORTEST || every > LONGEST)
    return { every: 'Use an interval from 10s to 31d, such as 15m, 1h or 1d.' };
  const keeps = RULES.every((rule) => /^\d{0,6}$/.test(fields.keep[rule].trim()));
  if (!keeps) return { keep: 'Use whole numbers.' };
  const problems = wallProblems(fields, every);
  const isEmpty = fields.volumes.length + fields.groups.length === 0;
  return isEmpty ? { ...problems, volumes: 'Choose a volume or a group.' } : problems;
}

function wallProblems(fields: Fields, every: number): Problems {
  const { at, on, between, tz } = fields;
  const days = every % DAY === 0 ? every / DAY : null;
  const time = at === '' ? 0 : parseTimeOfDay(at);
  if (time === null || time === DAY) return { at: 'Use a time of day such as 02:30.' };
  if (at !== '' && days === null) return { at: 'A time of day needs an interval of days, such as 1d.' };
  if (between !== '' && !parseWindow(between))
    return { between: 'Use a part of the day such as 08:00-18:00.' };
  if (between !== '' && days !== null) return { between: 'This needs an interval of less than a day.' };
  if (!isOnTheWall(fields)) return {};
  if (days === null && every > DAY) return { every: 'More than a day must be a number of days.' };
  if (days !== null && days > 1 && days % 7 === 0 && on.length !== 1)
    return { on: 'An interval of weeks needs the one day on which it runs.' };
  if (days !== null && days > 1 && days % 7 !== 0 && on.length > 0)
    return { on: 'This needs an interval of at most a day, or of weeks.' };
  try {
    if (timingOf(every, wallOf(fields)).next(0) === null)
      return { between: 'No multiple of the interval since midnight is in this part of the day.' };
  } catch {
    return { tz: 'Use a time zone such as Europe/Berlin or UTC.' };
  }
  return tz === '' ? { tz: 'Use a time zone such as Europe/Berlin or UTC.' } : {};
}

/** The timing of fields without problems, whatever their volumes are. */
export function timingOfFields(fields: Fields): Timing | null {
  const every = parseSeconds(fields.every);
  const { volumes: _, ...others } = problemsOf(fields);
  return every && Object.keys(others).length === 0 ? timingOf(every, wallOf(fields)) : null;
}

/** The parts of a request that creates a schedule. */
export function bodyOf(fields: Fields) {
  const { volumes, groups } = fields;
  const every = parseSeconds(fields.every) ?? 0;
  return { volumes, groups, every, keep: keepOf(fields), wall: wallOf(fields) ?? undefined };
}

/**
 * The request that makes of one schedule another. A wall clock without any restriction removes the
 * old one.
 */
export function changeOf(before: Fields, after: Fields): PatchSchedule {
  const wall = JSON.stringify(wallOf(before)) !== JSON.stringify(wallOf(after));
  const every = parseSeconds(after.every);
  const changes = (key: 'volumes' | 'groups') => {
    const added = after[key].filter((name) => !before[key].includes(name));
    const removed = before[key].filter((name) => !after[key].includes(name));
    return [added, removed].map((names) => (names.length > 0 ? names : undefined));
  };
  const [add, remove] = changes('volumes');
  const [add_groups, remove_groups] = changes('groups');
  return {
    add,
    remove,
    add_groups,
    remove_groups,
    every: every === parseSeconds(before.every) ? undefined : every,
    wall: wall ? (wallOf(after) ?? {}) : undefined,
    keep: JSON.stringify(keepOf(before)) === JSON.stringify(keepOf(after)) ? undefined : keepOf(after),
  };
}

/** The `--keep` options, or the one that keeps everything. */
function keepWords(fields: Fields, all: string[]): string[] {
  const keep = keepOf(fields);
  const words = RULES.flatMap((rule) => (keep[rule] ? [`--keep-${rule}`, String(keep[rule])] : []));
  return words.length > 0 ? words : all;
}

const everyWords = ({ every }: Fields) => ['--every', secondsArgument(parseSeconds(every) ?? 0)];

function wallWords(fields: Fields): string[] {
  const { at, on, between, tz } = fields;
  return [
    ...(at ? ['--at', at] : []),
    ...(on.length > 0 ? ['--on', on.join(',')] : []),
    ...(between ? ['--between', between] : []),
    ...(isOnTheWall(fields) ? ['--tz', tz] : []),
  ];
}

/** The command that creates a schedule. */
export function createCommand(name: string, fields: Fields): string {
  const of = [...fields.groups, ...fields.volumes];
  const what = of.length > 0 ? of : ['VOLUME'];
  const words = [...everyWords(fields), ...wallWords(fields), ...keepWords(fields, [])];
  return hindcast('schedule', 'create', name || 'NAME', ...what, ...words);
}

/** The command that makes of one schedule another. */
export function setCommand(name: string, before: Fields, after: Fields): string {
  const change = changeOf(before, after);
  const removed = [
    ...(before.at && !after.at ? ['--at', 'none'] : []),
    ...(before.on.length > 0 && after.on.length === 0 ? ['--on', 'all'] : []),
    ...(before.between && !after.between ? ['--between', 'none'] : []),
  ];
  const each = (option: string, ...lists: (string[] | undefined)[]) =>
    lists.flatMap((names) => (names ?? []).flatMap((name) => [option, name]));
  const words = [
    ...each('--add', change.add_groups, change.add),
    ...each('--remove', change.remove_groups, change.remove),
    ...(change.every ? everyWords(after) : []),
    ...(change.wall ? [...removed, ...wallWords(after)] : []),
    ...(change.keep ? keepWords(after, ['--keep-last', '0']) : []),
  ];
  // Without a change, the command is one that changes nothing.
  return hindcast('schedule', 'set', name, ...(words.length > 0 ? words : everyWords(after)));
}
