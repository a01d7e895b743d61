import { expect, test } from 'vitest';
import type { FileEntry } from '../api/schema';
import { asText, below, compareFiles, crumbs, modeText, shownName } from './files';

const entry = (name: string, more: Partial<FileEntry> = {}): FileEntry => ({
  name,
  kind: 'file',
  size: 1,
  modified: '2026-01-01T00:00:00Z',
  ...more,
});

test('paths lead from the root', () => {
  expect(below('/', 'etc')).toBe('/etc');
  expect(below('/etc', 'passwd')).toBe('/etc/passwd');
  expect(crumbs('/')).toEqual([{ name: '/', path: '/' }]);
  expect(crumbs('/a/b').map(({ path }) => path)).toEqual(['/', '/a', '/a/b']);
});

test('names with odd bytes are visible', () => {
  expect(shownName('caf\uefe9')).toBe('caf\\xe9');
  expect(shownName('a\tb')).toBe('a\\x09b');
  expect(shownName('käse')).toBe('käse');
});

test('modes are as ls shows them', () => {
  expect(modeText(0o644)).toBe('rw-r--r--');
  expect(modeText(0o4755)).toBe('rwxr-xr-x');
  expect(modeText(undefined)).toBe('–');
});

test('only text is shown as text', () => {
  const bytes = (...values: number[]) => new Uint8Array(values);
  expect(asText(bytes(104, 105), false)).toBe('hi');
  expect(asText(bytes(104, 0), false)).toBe(null);
  expect(asText(bytes(0xff, 0xfe), false)).toBe(null);
  // The first of two bytes of an umlaut at the end of a piece.
  expect(asText(bytes(104, 0xc3), true)).toBe('h');
  expect(asText(bytes(104, 0xc3), false)).toBe(null);
});

const TREES: Record<string, Record<string, FileEntry[]>> = {
  from: {
    '/': [entry('same'), entry('old'), entry('grown'), entry('d', { kind: 'directory' })],
    '/d': [entry('deep', { mode: 0o600 })],
  },
  to: {
    '/': [
      entry('same'),
      entry('new'),
      entry('grown', { size: 2 }),
      entry('d', { kind: 'directory', size: 9 }),
    ],
    '/d': [entry('deep', { mode: 0o644 })],
  },
};

test('two trees differ where they differ', async () => {
  const read = async (side: 'from' | 'to', path: string) => TREES[side]?.[path] ?? [];
  const { found, partial } = await compareFiles(read, 10);
  expect(found.map(({ path, change }) => `${change} ${path}`)).toEqual([
    'changed /d/deep',
    'changed /grown',
    'added /new',
    'removed /old',
  ]);
  expect(partial).toBe(false);
  expect((await compareFiles(read, 1)).partial).toBe(true);
});
