/** Places the nodes of a history with branches in columns, newest first, as version control does. */

export interface GraphNode {
  name: string;
  parent: string | null;
}

export interface GraphRow {
  column: number;
  /** Columns whose line goes on below this row. */
  below: number[];
  /** Columns whose line comes from above this row. */
  above: number[];
  /** Columns of branches that end in this node: their lines bend to it. */
  joins: number[];
}

/** Rows for nodes that are sorted from new to old. Each parent comes after its children. */
export function graphOf(nodes: GraphNode[]): GraphRow[] {
  /** For each column, the node that its line leads to. */
  const columns: (string | null)[] = [];
  const known = new Set(nodes.map(({ name }) => name));
  return nodes.map(({ name, parent }) => {
    const above = indexesOf(columns, (target) => target !== null);
    const own = indexesOf(columns, (target) => target === name);
    const column = own[0] ?? freeColumn(columns);
    const joins = own.slice(1);
    for (const index of own) columns[index] = null;
    columns[column] = parent !== null && known.has(parent) ? parent : null;
    return { column, above, joins, below: indexesOf(columns, (target) => target !== null) };
  });
}

function indexesOf(columns: (string | null)[], wanted: (target: string | null) => boolean): number[] {
  return columns.flatMap((target, index) => (wanted(target) ? [index] : []));
}

function freeColumn(columns: (string | null)[]): number {
  const free = columns.indexOf(null);
  return free < 0 ? columns.length : free;
}
