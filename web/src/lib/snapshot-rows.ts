/** The rows of a volume's snapshots, newest first, with the lines between them. */

import type { Snapshot, Volume } from '../api/schema';
import { addressOf, splitAddress } from './forest';
import { type GraphRow, graphOf } from './graph';

export interface SnapshotRow {
  /** Address of the snapshot or moment, or the name of the volume for its present content. */
  address: string;
  /** Absent for the present, and for a moment. */
  snapshot?: Snapshot;
  kind: 'now' | 'snapshot' | 'moment' | 'origin';
  graph: GraphRow;
}

interface Node {
  address: string;
  parent: string | null;
  snapshot?: Snapshot;
  kind: SnapshotRow['kind'];
}

/** The name and the labels of a snapshot as one text, for a search. */
function textOf({ name, labels }: Snapshot): string {
  const pairs = Object.entries(labels ?? {}).map((pair) => pair.join('='));
  return [name, ...pairs].join(' ').toLowerCase();
}

function nodeOf(snapshot: Snapshot): Node {
  const parent = snapshot.after_moment ?? snapshot.parent ?? null;
  return { address: addressOf(snapshot), parent, snapshot, kind: 'snapshot' };
}

/**
 * Rows for the present, the snapshots, and the moments on which one of them rests. A search leaves
 * only the snapshots that match.
 */
export function snapshotRows(volume: Volume, snapshots: Snapshot[], search = ''): SnapshotRow[] {
  const text = search.toLowerCase();
  const sorted = snapshots
    .filter((snapshot) => textOf(snapshot).includes(text))
    .sort((a, b) => (a.created < b.created ? 1 : -1));
  const nodes = sorted.map(nodeOf);
  if (text === '') {
    const parent = volume.after_moment ?? volume.parent ?? null;
    nodes.unshift({ address: volume.name, parent, kind: 'now' });
    addOthers(volume, snapshots, nodes);
  }
  const graph = graphOf(nodes.map(({ address, parent }) => ({ name: address, parent })));
  return nodes.flatMap(({ parent: _, ...node }, index) => {
    const row = graph[index];
    return row ? [{ ...node, graph: row }] : [];
  });
}

/** Adds the moments, and the snapshot or moment of another volume at which this one begins. */
function addOthers(volume: Volume, snapshots: Snapshot[], nodes: Node[]): void {
  const before = new Map<string, string | null>();
  for (const { after_moment: moment, parent } of [volume, ...snapshots])
    if (moment) before.set(moment, parent ?? null);
  for (const [moment, parent] of before) {
    const own = splitAddress(moment)[0] === volume.name;
    const node: Node = { address: moment, parent: own ? parent : null, kind: own ? 'moment' : 'origin' };
    // Just above the snapshot before it, and so below everything that rests on it.
    const at = own ? nodes.findIndex(({ address }) => address === parent) : -1;
    if (at < 0) nodes.push(node);
    else nodes.splice(at, 0, node);
  }
  const known = new Set(nodes.map(({ address }) => address));
  for (const { parent } of [...nodes])
    if (parent !== null && !known.has(parent) && splitAddress(parent)[0] !== volume.name) {
      known.add(parent);
      nodes.push({ address: parent, parent: null, kind: 'origin' });
    }
}
