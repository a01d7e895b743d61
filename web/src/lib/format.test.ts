import { describe, expect, test } from 'vitest';
import { hindcast, quote } from './command';
import {
  bytes,
  count,
  latency,
  parseSeconds,
  parseSize,
  percent,
  secondsArgument,
  sizeArgument,
} from './format';

describe('sizes', () => {
  test('use IEC units and three digits', () => {
    expect(bytes(0)).toBe('0 B');
    expect(bytes(1023)).toBe('1023 B');
    expect(bytes(16384)).toBe('16 KiB');
    expect(bytes(59823357952)).toBe('55.7 GiB');
    expect(bytes(1024 ** 3 - 1)).toBe('1 GiB');
    expect(bytes(-2048)).toBe('−2 KiB');
  });

  test('are read as the command line reads them', () => {
    expect(parseSize('10G')).toBe(10 * 1024 ** 3);
    expect(parseSize('1.5 GiB')).toBe(1.5 * 1024 ** 3);
    expect(parseSize('10GB')).toBe(Math.floor(1e10 / 4096) * 4096);
    expect(parseSize('512')).toBe(512);
    expect(parseSize('ten')).toBeNull();
    expect(parseSize('-1G')).toBeNull();
  });

  test('become arguments', () => {
    expect(sizeArgument(10 * 1024 ** 3)).toBe('10G');
    expect(sizeArgument(1536 * 1024 ** 2)).toBe('1536M');
    expect(sizeArgument(513)).toBe('513');
  });
});

test('counts, shares and latencies', () => {
  expect(count(1234567)).toBe('1\u202f234\u202f567');
  expect(percent(1, 1000)).toBe('<1 %');
  expect(percent(999, 1000)).toBe('99 %');
  expect(percent(1, 0)).toBe('0 %');
  expect(latency(0.00034)).toBe('340 µs');
  expect(latency(0.0123)).toBe('12 ms');
  expect(latency(null)).toBe('–');
});

test('times as arguments', () => {
  expect(parseSeconds('7d')).toBe(604800);
  expect(parseSeconds('90')).toBe(90);
  expect(parseSeconds('x')).toBeNull();
  expect(secondsArgument(604800)).toBe('7d');
  expect(secondsArgument(90)).toBe('90s');
});

test('commands quote what a shell would read', () => {
  expect(quote("it's")).toBe(`'it'\\''s'`);
  expect(hindcast('recover', 'db', '--to', '2026-11-22 10:41', false, '--as', 'db-1041')).toBe(
    "hindcast recover db --to '2026-11-22 10:41' --as db-1041",
  );
});
