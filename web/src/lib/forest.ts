/** Orders volumes so that what comes from a volume stands below it. */

import type { Snapshot, Volume } from '../api/schema';

export interface TreeRow {
  volume: Volume;
  depth: number;
  /** The row that the volume's content comes from, and the moment there as an address. */
  parent: number | null;
  moment: string | null;
  snapshots: Snapshot[];
}

/** The volume's name and the moment of an address such as `db@lsn:4711`. */
export function splitAddress(address: string): [string, string] {
  const at = address.indexOf('@');
  return at < 0 ? [address, ''] : [address.slice(0, at), address.slice(at + 1)];
}

/** The address that a volume comes from, if it is a moment of another volume. */
function sourceOf({ name, origin }: Volume): [string, string] | null {
  if (!origin || origin.startsWith('/')) return null;
  const [volume, moment] = splitAddress(origin);
  return volume === name ? null : [volume, moment];
}

export function forestOf(volumes: Volume[], snapshots: Snapshot[]): TreeRow[] {
  const ofVolume = groupBy(snapshots, ({ volume }) => volume);
  const known = new Set(volumes.map(({ name }) => name));
  const children = groupBy(volumes, (volume) => {
    const source = sourceOf(volume);
    return source && known.has(source[0]) ? source[0] : '';
  });
  const rows: TreeRow[] = [];
  const add = (volume: Volume, depth: number, parent: number | null) => {
    const index = rows.length;
    rows.push({
      volume,
      depth,
      parent,
      moment: parent === null ? null : (sourceOf(volume)?.[1] ?? null),
      snapshots: ofVolume.get(volume.name) ?? [],
    });
    for (const child of sorted(children.get(volume.name))) add(child, depth + 1, index);
  };
  for (const root of sorted(children.get(''))) add(root, 0, null);
  return rows;
}

/** Collects items by a key. `Map.groupBy` does the same, but older browsers do not have it. */
function groupBy<T>(items: T[], keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return groups;
}

function sorted(volumes: Volume[] | undefined): Volume[] {
  return [...(volumes ?? [])].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
}
