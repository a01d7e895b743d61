import { expect, test } from 'vitest';
import type { Snapshot, Volume } from '../api/schema';
import { forestOf, splitAddress } from './forest';

const volume = (name: string, parent: string | null = null, more: Partial<Volume> = {}) =>
  ({ name, parent, ...more }) as Volume;

/** Snapshots in the order in which they were taken. */
function taken(...all: [address: string, parent?: string | null, moment?: string][]): Snapshot[] {
  return all.map(([address, parent = null, moment], n) => {
    const [of, name] = splitAddress(address);
    const created = new Date(Date.UTC(2026, 10, 1, n)).toISOString();
    return { volume: of, name, created, parent, after_moment: moment } as Snapshot;
  });
}

/** Rows as text: the depth, the volume, the snapshots on the line, and where it leaves. */
function drawn(volumes: Volume[], snapshots: Snapshot[]): string[] {
  return forestOf(volumes, snapshots).map(({ depth, volume: { name }, ended, snapshots: on, leaves }) => {
    const names = on.map((snapshot) => snapshot.name).join(' ');
    return `${'-'.repeat(depth)}${name}${ended ? ' ended' : ''}: ${names}${leaves ? `, from ${leaves}` : ''}`;
  });
}

test('what comes from a volume stands below it', () => {
  const volumes = [
    volume('copy', 'db@first', { origin: 'db@first' }),
    volume('db', 'db@first'),
    volume('a'),
    volume('copy-2', null, { origin: 'copy@lsn:7', after_moment: 'copy@lsn:7' }),
    volume('image', null, { origin: '/srv/a.raw' }),
  ];
  expect(drawn(volumes, taken(['db@first']))).toEqual([
    'a: ',
    'db: first',
    '-copy: , from db@first',
    '--copy-2: , from copy@lsn:7',
    'image: ',
  ]);
  expect(forestOf(volumes, taken(['db@first']))[3]).toMatchObject({ parent: 2 });
});

test('a rollback to a snapshot ends a line, which leaves at that snapshot', () => {
  const snapshots = taken(
    ['db@a'],
    ['db@b', 'db@a'],
    ['db@undo', 'db@b'],
    ['db@c', 'db@a'],
    ['test@x', 'db@b'],
  );
  const volumes = [
    volume('db', 'db@c', { origin: 'db@a' }),
    volume('new'),
    volume('test', 'test@x', { origin: 'db@b' }),
  ];
  expect(drawn(volumes, snapshots)).toEqual([
    'db: a c',
    '-db ended: b undo, from db@a',
    '--test: x, from db@b',
    'new: ',
  ]);
});

test('a volume that was rolled back stays a root, with its past below it', () => {
  const snapshots = taken(['db@first'], ['db@second', 'db@first']);
  expect(drawn([volume('db', 'db@first', { origin: 'db@first' })], snapshots)).toEqual([
    'db: first',
    '-db ended: second, from db@first',
  ]);
});

test('a line from a moment hangs there, and so does a rollback to a moment', () => {
  const snapshots = taken(['db@a'], ['db@b', 'db@a'], ['db@undo', 'db@b'], ['db@c', 'db@a', 'db@lsn:7']);
  const volumes = [
    volume('db', 'db@c', { origin: 'db@lsn:7' }),
    volume('copy', 'db@a', { after_moment: 'db@lsn:7', origin: 'db@lsn:7' }),
    volume('early', null, { after_moment: 'db@lsn:3', origin: 'db@lsn:3' }),
  ];
  expect(drawn(volumes, snapshots)).toEqual([
    'db: a c',
    '-db ended: b undo, from db@a',
    '-copy: , from db@lsn:7',
    '-early: , from db@lsn:3',
  ]);
});

test('a second rollback ends the line of the first', () => {
  const snapshots = taken(['db@a'], ['db@u1', 'db@a'], ['db@b', 'db@a'], ['db@u2', 'db@b']);
  expect(drawn([volume('db', 'db@a')], snapshots)).toEqual([
    'db: a',
    '-db ended: b u2, from db@a',
    '-db ended: u1, from db@a',
  ]);
  // The undo of the rollback: u1 is on the current line again.
  expect(drawn([volume('db', 'db@u1')], snapshots)).toEqual(['db: a u1', '-db ended: b u2, from db@a']);
});

test('what rests on a moment stands below the line that went on from there', () => {
  const snapshots = taken(['db@a'], ['db@c', 'db@a', 'db@lsn:7'], ['db@undo', 'db@c']);
  const copy = volume('copy', 'db@a', { after_moment: 'db@lsn:7', origin: 'db@lsn:7' });
  expect(drawn([volume('db', 'db@a'), copy], snapshots)).toEqual([
    'db: a',
    '-db ended: c undo, from db@a',
    '--copy: , from db@lsn:7',
  ]);
});

test('a past whose branching point was deleted still stands below its volume', () => {
  const snapshots = taken(['db@old', 'db@gone'], ['db@new']);
  expect(drawn([volume('db', 'db@new')], snapshots)).toEqual(['db: new', '-db ended: old, from db@gone']);
});

test('no volume is missing, whatever the origins are', () => {
  const circle = [volume('a', null, { origin: 'b@x' }), volume('b', null, { origin: 'a@x' })];
  expect(drawn(circle, []).length).toBe(2);
  const own = taken(['db@a', null, 'db@lsn:7'], ['db@b', 'db@a', 'db@lsn:7']);
  expect(drawn([volume('db', 'db@b')], own)[0]).toMatch(/^db: /);
});

test('an address has a name and a moment', () => {
  expect(splitAddress('db@2026-11-22T09:41:30Z')).toEqual(['db', '2026-11-22T09:41:30Z']);
  expect(splitAddress('db')).toEqual(['db', '']);
});
