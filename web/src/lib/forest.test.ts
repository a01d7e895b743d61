import { expect, test } from 'vitest';
import type { Snapshot, Volume } from '../api/schema';
import { forestOf, splitAddress } from './forest';

const volume = (name: string, origin: string | null = null) => ({ name, origin }) as Volume;

test('what comes from a volume stands below it', () => {
  const volumes = [
    volume('copy', 'db@first'),
    volume('db'),
    volume('a'),
    volume('copy-2', 'copy@lsn:7'),
    volume('image', '/srv/a.raw'),
  ];
  const rows = forestOf(volumes, [{ name: 'first', volume: 'db' } as Snapshot]);
  expect(rows.map(({ volume: { name }, depth }) => [name, depth])).toEqual([
    ['a', 0],
    ['db', 0],
    ['copy', 1],
    ['copy-2', 2],
    ['image', 0],
  ]);
  expect(rows[3]).toMatchObject({ parent: 2, moment: 'lsn:7' });
  expect(rows[1]?.snapshots.length).toBe(1);
});

test('a volume that was rolled back to its own snapshot is a root', () => {
  expect(forestOf([volume('db', 'db@first')], [])[0]?.depth).toBe(0);
});

test('an address has a name and a moment', () => {
  expect(splitAddress('db@2026-11-22T09:41:30Z')).toEqual(['db', '2026-11-22T09:41:30Z']);
  expect(splitAddress('db')).toEqual(['db', '']);
});
