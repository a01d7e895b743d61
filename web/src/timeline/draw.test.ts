import { expect, test } from 'vitest';
import type { TimelineData } from './data';
import { edgeText } from './draw';

const HOUR = 3600_000;
const NOW = Date.parse('2026-11-30T12:00:00Z');

function data(of: Partial<TimelineData>): TimelineData {
  return { now: NOW, begins: NOW - 2 * HOUR, retain: null, expires: null, ...of } as TimelineData;
}

test('says when the oldest moment expires', () => {
  expect(edgeText(data({}))).toBe('oldest moment');
  expect(edgeText(data({ begins: null }))).toBe('');
  expect(edgeText(data({ retain: 5 * HOUR, expires: NOW + 3 * HOUR }))).toBe('oldest moment, expires in 3 h');
  expect(edgeText(data({ retain: 2 * HOUR, expires: NOW }))).toBe('moments older than 2 h expire');
});

test('goes by the limit of bytes, too', () => {
  expect(edgeText(data({ expires: NOW + HOUR }))).toBe('oldest moment, expires in 1 h');
  const full = 'moments expire: the history is as large as it may be';
  expect(edgeText(data({ expires: NOW }))).toBe(full);
  expect(edgeText(data({ retain: 5 * HOUR, expires: NOW }))).toBe(full);
});
