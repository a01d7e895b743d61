/** A table that renders only the rows in sight, so that 10,000 rows scroll as smoothly as 10. */

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

export interface Column<T> {
  name: string;
  cell: (row: T) => ComponentChildren;
  /** The value that the table sorts by. A column without it can't be sorted. */
  sort?: (row: T) => number | string;
  number?: boolean;
  /** True: the column is left out on narrow screens. */
  wideOnly?: boolean;
  class?: string;
}

interface TableProps<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  keyOf: (row: T) => string;
  sortBy?: string;
  descending?: boolean;
  isSelected?: (row: T) => boolean;
}

const ROW = 40;
const SPARE_ROWS = 8;

/** Rows that come and go together, so that not every frame of a scroll renders some. */
const STEP = 8;

/** Number of rows from which a table keeps the widths of its columns. */
const LONG = 100;

interface Order {
  by: string | undefined;
  descending: boolean;
}

function sorted<T>(rows: T[], columns: Column<T>[], { by, descending }: Order): T[] {
  const value = columns.find(({ name }) => name === by)?.sort;
  if (!value) return rows;
  const sign = descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    return (
      sign *
      (typeof a === 'string' ? a.localeCompare(String(b), undefined, { numeric: true }) : a - Number(b))
    );
  });
}

/** The rows of a table that are in sight of the page's scrolling area. */
function useVisible(total: number) {
  const frame = useRef<HTMLDivElement>(null);
  const [first, setFirst] = useState(0);
  const [height, setHeight] = useState(800);
  useEffect(() => {
    const scroller = frame.current?.closest('main');
    if (!scroller) return undefined;
    const look = () => {
      const above = scroller.getBoundingClientRect().top - (frame.current?.getBoundingClientRect().top ?? 0);
      setFirst(Math.max(0, Math.floor(above / ROW / STEP) * STEP - SPARE_ROWS));
      setHeight(scroller.clientHeight);
    };
    look();
    scroller.addEventListener('scroll', look, { passive: true });
    window.addEventListener('resize', look);
    return () => {
      scroller.removeEventListener('scroll', look);
      window.removeEventListener('resize', look);
    };
  }, []);
  const start = Math.min(first, Math.max(0, total - 1));
  return { frame, start, end: Math.min(total, start + Math.ceil(height / ROW) + 2 * SPARE_ROWS) };
}

/**
 * Keeps the widths of the columns while a long table scrolls. Otherwise each new row could move them,
 * and the browser would measure all cells again.
 */
function useFixedColumns(frame: { current: HTMLDivElement | null }, rows: number, columns: unknown): void {
  useEffect(() => {
    const table = frame.current?.querySelector('table');
    if (!table || rows < LONG) return undefined;
    const fix = () => {
      table.style.tableLayout = '';
      table.style.width = '';
      const heads = [...table.querySelectorAll('th')];
      for (const head of heads) head.style.width = '';
      const widths = heads.map((head) => head.offsetWidth);
      table.style.width = `${table.offsetWidth}px`;
      for (const [index, head] of heads.entries()) head.style.width = `${widths[index]}px`;
      table.style.tableLayout = 'fixed';
    };
    fix();
    window.addEventListener('resize', fix);
    return () => window.removeEventListener('resize', fix);
  }, [rows < LONG, columns]);
}

function Spacer({ rows, columns }: { rows: number; columns: number }) {
  if (rows === 0) return null;
  return (
    <tr>
      <td colSpan={columns} style={{ height: `${rows * ROW}px`, border: 0 }} />
    </tr>
  );
}

export function Table<T>({
  label,
  columns,
  rows,
  keyOf,
  sortBy,
  descending = false,
  isSelected,
}: TableProps<T>) {
  const [order, setOrder] = useState<Order>({ by: sortBy, descending });
  const ordered = useMemo(() => sorted(rows, columns, order), [rows, order]);
  const { frame, start, end } = useVisible(ordered.length);
  useFixedColumns(frame, ordered.length, columns);
  return (
    <div class="table-frame" ref={frame}>
      <table aria-label={label} aria-rowcount={ordered.length + 1}>
        <Head columns={columns} order={order} onOrder={setOrder} />
        <tbody>
          <Spacer rows={start} columns={columns.length} />
          {ordered.slice(start, end).map((row) => (
            <Row key={keyOf(row)} row={row} columns={columns} selected={isSelected?.(row) ?? false} />
          ))}
          <Spacer rows={ordered.length - end} columns={columns.length} />
        </tbody>
      </table>
    </div>
  );
}

/** A row. Scrolling does not render it again: its cells change with its data only. */
function Row<T>({ row, columns, selected }: { row: T; columns: Column<T>[]; selected: boolean }) {
  return useMemo(
    () => (
      <tr class={selected ? 'selected' : ''}>
        {columns.map((column) => (
          <td key={column.name} class={classOf(column)}>
            {column.cell(row)}
          </td>
        ))}
      </tr>
    ),
    [row, columns, selected],
  );
}

function classOf<T>({ number, wideOnly, class: extra }: Column<T>): string {
  return [number && 'number', wideOnly && 'narrow-hide', extra].filter(Boolean).join(' ');
}

function Head<T>({
  columns,
  order,
  onOrder,
}: {
  columns: Column<T>[];
  order: Order;
  onOrder: (order: Order) => void;
}) {
  return (
    <thead>
      <tr>
        {columns.map((column) => {
          const active = column.name === order.by;
          const direction = active ? (order.descending ? 'descending' : 'ascending') : undefined;
          const reverse = active ? !order.descending : Boolean(column.number);
          return (
            <th key={column.name} scope="col" class={classOf(column)} aria-sort={direction}>
              {column.sort ? (
                <button type="button" onClick={() => onOrder({ by: column.name, descending: reverse })}>
                  {column.name}
                  {active && <span aria-hidden="true">{order.descending ? ' ↓' : ' ↑'}</span>}
                </button>
              ) : (
                column.name
              )}
            </th>
          );
        })}
      </tr>
    </thead>
  );
}
