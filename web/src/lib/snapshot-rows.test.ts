import { expect, test } from 'vitest';
import type { Snapshot, Volume } from '../api/schema';
import { snapshotRows } from './snapshot-rows';

const db = (parent: string | null, moment?: string) =>
  ({ name: 'db', parent, after_moment: moment }) as Volume;

/** Snapshots of db in the order in which they were taken. */
function taken(...all: [name: string, parent?: string | null, moment?: string][]): Snapshot[] {
  return all.map(([name, parent = null, moment], n) => {
    const created = new Date(Date.UTC(2026, 10, 1, n)).toISOString();
    const labels: Record<string, string> = n === 0 ? { kind: 'first' } : {};
    return { volume: 'db', name, created, parent, after_moment: moment, labels } as Snapshot;
  });
}

const drawn = (volume: Volume, snapshots: Snapshot[], search?: string) =>
  snapshotRows(volume, snapshots, search).map(({ address, graph }) => `${graph.column} ${address}`);

test('the present is the first row, on the line that it follows', () => {
  const snapshots = taken(['a'], ['b', 'db@a'], ['undo', 'db@b']);
  expect(drawn(db('db@a'), snapshots)).toEqual(['0 db', '1 db@undo', '1 db@b', '0 db@a']);
  expect(drawn(db('db@undo'), snapshots)).toEqual(['0 db', '0 db@undo', '0 db@b', '0 db@a']);
});

test('a moment stands between what rests on it and the snapshot before it', () => {
  const snapshots = taken(['a'], ['b', 'db@a'], ['undo', 'db@b'], ['c', 'db@a', 'db@lsn:7']);
  expect(drawn(db('db@c'), snapshots)).toEqual([
    '0 db',
    '0 db@c',
    '1 db@undo',
    '1 db@b',
    '0 db@lsn:7',
    '0 db@a',
  ]);
  expect(drawn(db(null, 'db@lsn:3'), [])).toEqual(['0 db', '0 db@lsn:3']);
});

test('a clone begins at the snapshot of another volume, also if one of its own has that name', () => {
  const snapshots = taken(['a', 'old@a']);
  expect(drawn(db('db@a'), snapshots)).toEqual(['0 db', '0 db@a', '0 old@a']);
  expect(snapshotRows(db('db@a'), snapshots).map(({ kind }) => kind)).toEqual(['now', 'snapshot', 'origin']);
  expect(drawn(db('old@a', 'old@lsn:9'), [])).toEqual(['0 db', '0 old@lsn:9']);
});

test('a search finds names and labels, and nothing else', () => {
  const snapshots = taken(['a'], ['before', 'db@a']);
  expect(drawn(db('db@before'), snapshots, 'BEF')).toEqual(['0 db@before']);
  expect(drawn(db('db@before'), snapshots, 'kind=first')).toEqual(['0 db@a']);
});
