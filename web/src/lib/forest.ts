/**
 * The lines of all volumes: where each began, and what lies on it. A volume has one line to its
 * present content, and one for each past that a rollback ended.
 */

import type { Snapshot, Volume } from '../api/schema';

export interface TreeRow {
  volume: Volume;
  depth: number;
  /** The row that this line leaves. Null: it comes from no other line. */
  parent: number | null;
  /** Address of the snapshot or moment at which the line leaves its parent. */
  leaves: string | null;
  /** The snapshots on the line, oldest first. */
  snapshots: Snapshot[];
  /** True: the line ended when its volume was rolled back. */
  ended: boolean;
}

/** The volume's name and the moment of an address such as `db@lsn:4711`. */
export function splitAddress(address: string): [string, string] {
  const at = address.indexOf('@');
  return at < 0 ? [address, ''] : [address.slice(0, at), address.slice(at + 1)];
}

export const addressOf = ({ volume, name }: Snapshot) => `${volume}@${name}`;

/** What a snapshot or the present content of a volume directly follows. */
type Follows = Pick<Snapshot, 'parent' | 'after_moment'>;

const directParent = ({ parent, after_moment }: Follows) => after_moment ?? parent ?? null;

interface Line {
  volume: Volume;
  leaves: string | null;
  snapshots: Snapshot[];
  ended: boolean;
}

/** All lines, and the line on which each snapshot or moment lies. */
class Lines {
  readonly all: Line[] = [];
  readonly at = new Map<string, Line>();
  private readonly snapshots: Map<string, Snapshot>;
  /** The snapshot before each moment. */
  private readonly before = new Map<string, string | null>();

  constructor(volumes: Volume[], snapshots: Snapshot[]) {
    this.snapshots = new Map(snapshots.map((snapshot) => [addressOf(snapshot), snapshot]));
    for (const follows of [...snapshots, ...volumes] as Follows[])
      if (follows.after_moment) this.before.set(follows.after_moment, follows.parent ?? null);
    const ofVolume = groupBy(snapshots, ({ volume }) => volume);
    for (const volume of volumes) {
      this.add(volume, directParent(volume), false);
      // From new to old, so that each line is as long as it can be.
      const left = [...(ofVolume.get(volume.name) ?? [])].sort((a, b) => (a.created < b.created ? 1 : -1));
      for (const snapshot of left)
        if (!this.at.has(addressOf(snapshot))) this.add(volume, addressOf(snapshot), true);
    }
    // A moment that only other volumes rest on lies on the line of the snapshot before it.
    for (const [moment, parent] of this.before) {
      const line = this.at.get(moment) ?? this.at.get(parent ?? '');
      if (line) this.at.set(moment, line);
    }
  }

  /** Follows a line from its newest point back to where it begins. */
  private add(volume: Volume, from: string | null, ended: boolean): void {
    const line: Line = { volume, leaves: null, snapshots: [], ended };
    let at = from;
    while (at !== null && splitAddress(at)[0] === volume.name && !this.at.has(at)) {
      const snapshot = this.snapshots.get(at);
      if (!snapshot && !this.before.has(at)) break;
      if (snapshot) line.snapshots.unshift(snapshot);
      this.at.set(at, line);
      at = snapshot ? directParent(snapshot) : (this.before.get(at) ?? null);
    }
    line.leaves = at;
    this.all.push(line);
  }

  /** The line that another one leaves. */
  source({ volume, leaves, ended }: Line): Line | undefined {
    const known = leaves === null ? undefined : this.at.get(leaves);
    if (known) return known;
    const name = leaves === null ? null : splitAddress(leaves)[0];
    const current = this.all.find((other) => !other.ended && other.volume.name === name);
    if (current && current.volume !== volume) return current;
    return ended ? this.all.find((other) => !other.ended && other.volume === volume) : undefined;
  }
}

/**
 * The address of another volume's moment that a volume's content comes from, if no line tells it.
 */
function originOf({ name, origin }: Volume): string | null {
  return origin && !origin.startsWith('/') && splitAddress(origin)[0] !== name ? origin : null;
}

/** Orders lines so that what leaves a line stands below it: first its volume's own pasts. */
export function forestOf(volumes: Volume[], snapshots: Snapshot[]): TreeRow[] {
  const lines = new Lines(volumes, snapshots);
  for (const line of lines.all) if (!line.ended) line.leaves = originOf(line.volume) ?? line.leaves;
  const children = groupBy(lines.all, (line) => lines.source(line));
  const rows: TreeRow[] = [];
  const shown = new Set<Line>();
  const add = (line: Line, depth: number, parent: number | null) => {
    if (shown.has(line)) return;
    shown.add(line);
    const index = rows.length;
    rows.push({ ...line, depth, parent });
    for (const child of sorted(children.get(line))) add(child, depth + 1, index);
  };
  for (const root of sorted(children.get(undefined))) add(root, 0, null);
  // Lines that name each other in a circle have no root, and still none of them may be missing.
  for (const line of lines.all) add(line, 0, null);
  return rows;
}

/** Collects items by a key. `Map.groupBy` does the same, but older browsers do not have it. */
function groupBy<T, K>(items: T[], keyOf: (item: T) => K): Map<K, T[]> {
  const groups = new Map<K, T[]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return groups;
}

function sorted(lines: Line[] | undefined): Line[] {
  return [...(lines ?? [])].sort(
    (a, b) =>
      Number(b.ended) - Number(a.ended) ||
      a.volume.name.localeCompare(b.volume.name, undefined, { numeric: true }),
  );
}
