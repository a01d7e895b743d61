// The routes of the files in a view: one partition with a small tree.

import { DAY, HOUR } from './history.mjs';
import { rfc, START } from './world.mjs';

const TREE = {
  '/': ['etc', 'srv', 'var', 'README'],
  '/etc': ['fstab', 'hostname', 'postgresql'],
  '/etc/postgresql': ['postgresql.conf'],
  '/srv': ['backup.tar', 'latest'],
  '/var': ['lib', 'log'],
};

function entry(path, name) {
  const full = path === '/' ? `/${name}` : `${path}/${name}`;
  const kind = TREE[full] || name === 'lib' || name === 'log' ? 'directory' : name === 'latest' ? 'symlink' : 'file';
  return {
    name,
    kind,
    size: kind === 'directory' ? 4096 : 1200 + 977 * name.length ** 3,
    mode: kind === 'file' ? 0o644 : 0o755,
    uid: 0,
    gid: 0,
    modified: rfc(START - name.length * DAY - 3 * HOUR),
    target: kind === 'symlink' ? 'backup.tar' : null,
    id: name.length,
  };
}

export const FILES = {
  'GET /views/{id}/partitions': () => [
    { number: 1, content: 'ext4', label: 'data', name: null, problem: null, readable: true, size: 200 * 1024 ** 3, start: 1048576 },
    { number: 2, content: 'xfs', label: null, name: 'log', problem: 'XFS can not be read here.', readable: false, size: 8 * 1024 ** 3, start: 0 },
  ],
  'GET /views/{id}/files': ({ query }) => {
    const path = query.get('path') ?? '/';
    return {
      partition: 1,
      itself: { ...entry(path, ''), name: path, kind: 'directory' },
      entries: (TREE[path] ?? []).map((name) => entry(path, name)),
      next: null,
    };
  },
};
