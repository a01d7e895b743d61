// File systems that mkfs.ext4 makes, for tests that look into the files of a moment.

import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const SECTOR = 512;

/** The type of a partition of Linux, in a partition table of the old kind (MBR). */
const LINUX = 0x83;

/** Makes an image of 16 MiB with these files in a directory, and returns its path. */
export function makeImage(directory, files) {
  const tree = join(directory, 'tree');
  rmSync(tree, { recursive: true, force: true });
  for (const [name, content] of Object.entries(files)) {
    const path = join(tree, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, content);
  }
  const image = join(directory, 'image');
  rmSync(image, { force: true });
  const seed = 'hash_seed=11111111-2222-3333-4444-555555555555';
  const options = ['-q', '-F', '-L', 'data', '-E', seed, '-d', tree, image, '16M'];
  execFileSync('mkfs.ext4', options, { stdio: 'ignore' });
  return image;
}

/** Makes the first sector of a disk with one partition, and returns its path. */
export function makePartitionTable(directory, start, length) {
  const sector = Buffer.alloc(SECTOR);
  sector[446 + 4] = LINUX;
  sector.writeUInt32LE(start / SECTOR, 446 + 8);
  sector.writeUInt32LE(length / SECTOR, 446 + 12);
  sector.writeUInt16LE(0xaa55, 510);
  const path = join(directory, 'table');
  writeFileSync(path, sector);
  return path;
}
