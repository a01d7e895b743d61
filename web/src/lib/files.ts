/** Paths, names and kinds of files in a moment, and what differs between two moments. */

import type { FileEntry } from '../api/schema';

/** A path below a directory. */
export function below(directory: string, name: string): string {
  return directory === '/' ? `/${name}` : `${directory}/${name}`;
}

/** The directories that lead to a path, from the root: name and path of each. */
export function crumbs(path: string): { name: string; path: string }[] {
  const names = path.split('/').filter((part) => part !== '');
  const all = [{ name: '/', path: '/' }];
  for (const name of names) all.push({ name, path: below(all[all.length - 1]?.path ?? '/', name) });
  return all;
}

/** A name for people. A byte that is not UTF-8 is U+EF00 plus that byte in the API; here it is `\xe9`. */
export function shownName(name: string): string {
  let text = '';
  for (const letter of name) {
    const code = letter.codePointAt(0) ?? 0;
    if (code >= 0xef80 && code <= 0xefff) text += `\\x${(code - 0xef00).toString(16)}`;
    else if (code < 0x20 || (code >= 0x7f && code < 0xa0)) text += `\\x${code.toString(16).padStart(2, '0')}`;
    else text += letter;
  }
  return text;
}

/** The permission bits as `ls -l` shows them: "rw-r--r--". */
export function modeText(mode: number | null | undefined): string {
  if (mode === null || mode === undefined) return '–';
  const bits = [8, 7, 6, 5, 4, 3, 2, 1, 0];
  return bits.map((bit, index) => (mode & (1 << bit) ? 'rwx'[index % 3] : '-')).join('');
}

/** The beginning of a file as text, or null if it is not text. `cut`: the file goes on. */
export function asText(bytes: Uint8Array<ArrayBuffer>, cut: boolean): string | null {
  if (bytes.includes(0)) return null;
  try {
    // A character may be cut at the end of the piece, and only there.
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes, { stream: cut });
  } catch {
    return null;
  }
}

export interface FileDifference {
  path: string;
  change: 'added' | 'removed' | 'changed';
  entry: FileEntry;
}

export type ReadDirectory = (side: 'from' | 'to', path: string) => Promise<FileEntry[]>;

/** The result of a comparison. `partial`: there were more directories than it may read. */
export interface FileDifferences {
  found: FileDifference[];
  directories: number;
  partial: boolean;
}

function isChanged(from: FileEntry, to: FileEntry): boolean {
  if (from.kind !== to.kind || from.mode !== to.mode || from.uid !== to.uid || from.gid !== to.gid)
    return true;
  if (from.kind === 'directory') return false;
  return from.size !== to.size || from.modified !== to.modified || from.target !== to.target;
}

/**
 * Compares two trees by kind, size, time, permissions and owner. A directory that is on one side only is
 * one difference. It reads at most `limit` directories.
 */
export async function compareFiles(
  read: ReadDirectory,
  limit: number,
  isOver: () => boolean = () => false,
): Promise<FileDifferences> {
  const found: FileDifference[] = [];
  const waiting = ['/'];
  let directories = 0;
  while (waiting.length > 0 && directories < limit && !isOver()) {
    const path = waiting.shift() ?? '/';
    directories += 1;
    const [from, to] = await Promise.all([read('from', path), read('to', path)]);
    const before = new Map(from.map((entry) => [entry.name, entry]));
    for (const entry of to) {
      const old = before.get(entry.name);
      before.delete(entry.name);
      const at = below(path, entry.name);
      if (!old) found.push({ path: at, change: 'added', entry });
      else if (isChanged(old, entry)) found.push({ path: at, change: 'changed', entry });
      if (old?.kind === 'directory' && entry.kind === 'directory') waiting.push(at);
    }
    for (const entry of before.values())
      found.push({ path: below(path, entry.name), change: 'removed', entry });
  }
  found.sort((one, other) => (one.path < other.path ? -1 : 1));
  return { found, directories, partial: waiting.length > 0 };
}
