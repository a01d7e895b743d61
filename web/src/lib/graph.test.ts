import { expect, test } from 'vitest';
import { graphOf } from './graph';

test('a chain is one column', () => {
  const rows = graphOf([
    { name: 'c', parent: 'b' },
    { name: 'b', parent: 'a' },
    { name: 'a', parent: null },
  ]);
  expect(rows.map(({ column }) => column)).toEqual([0, 0, 0]);
  expect(rows[2]).toEqual({ column: 0, above: [0], joins: [], below: [] });
});

test('a branch joins the node that it began at', () => {
  const rows = graphOf([
    { name: 'd', parent: 'a' },
    { name: 'c', parent: 'b' },
    { name: 'b', parent: 'a' },
    { name: 'a', parent: null },
  ]);
  expect(rows.map(({ column }) => column)).toEqual([0, 1, 1, 0]);
  expect(rows[1]?.above).toEqual([0]);
  expect(rows[3]).toEqual({ column: 0, above: [0, 1], joins: [1], below: [] });
});

test('a parent that is gone ends the line', () => {
  expect(graphOf([{ name: 'b', parent: 'deleted' }])[0]?.below).toEqual([]);
});
