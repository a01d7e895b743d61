import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { DAY, HOUR, MINUTE, SECOND } from '../lib/time';
import { every, type Lanes, stubBrowser } from './testing';

const NOW = Date.UTC(2026, 10, 29, 12);
const BEGINS = NOW - 2 * DAY;

let state: import('./state').TimelineState;
let answer: { broken: boolean };

async function open(lanes: Lanes, writes: number[] = []): Promise<void> {
  const browser = stubBrowser({ now: NOW, begins: BEGINS, lanes, writes });
  answer = browser.answer;
  for (const [name, value] of Object.entries(browser.globals)) vi.stubGlobal(name, value);
  const { TimelineState } = await import('./state');
  state = new TimelineState('db', new URLSearchParams({ last: '3600' }));
  await vi.advanceTimersByTimeAsync(500);
}

/** Presses a key on the line, such as `Shift+ArrowLeft`, and waits for what the server tells. */
async function press(text: string): Promise<boolean> {
  const { onPlayheadKey } = await import('./keys');
  const key = text.split('+').at(-1) ?? '';
  const held = (name: string) => text.includes(`${name}+`);
  const event = { key, shiftKey: held('Shift'), ctrlKey: held('Control'), metaKey: false };
  const known = onPlayheadKey(event as KeyboardEvent, state);
  await vi.advanceTimersByTimeAsync(400);
  return known;
}

/** The moment under the line, as seconds before the start of the test. Null: the present. */
const ago = () => {
  const moment = state.moment.peek();
  return moment === null ? null : (NOW - moment) / SECOND;
};

beforeEach(() => vi.useFakeTimers({ now: NOW }));
afterEach(() => {
  state.stopAddress();
  state.dispose();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const FLUSHES = every(10 * MINUTE, NOW - 50 * MINUTE, NOW - 10 * MINUTE);

describe('arrows', () => {
  test('move by a bar, Home and End to the ends, and other keys mean nothing', async () => {
    await open({});
    state.moveTo(NOW - 30 * MINUTE);
    const bar = (state.detail.peek()?.bucket ?? 0) / SECOND;
    await press('ArrowRight');
    expect(ago()).toBe(1800 - bar);
    await press('ArrowDown');
    expect(ago()).toBe(1800);
    await press('Home');
    expect(ago()).toBe((2 * DAY) / SECOND);
    await press('End');
    expect(ago()).toBeNull();
    expect(await press('x')).toBe(false);
  });

  test('move from flush to flush while only consistent points are wanted', async () => {
    await open({ flushes: FLUSHES });
    state.setConsistent(true);
    await press('Home');
    const seen = [];
    for (let presses = 0; presses < 5; presses += 1) {
      seen.push(ago());
      await press('ArrowRight');
    }
    expect(seen).toEqual([3000, 2400, 1800, 1200, 600]);
    expect(ago()).toBeNull();
    await press('ArrowLeft');
    expect(ago()).toBe(600);
    await press('ArrowLeft');
    expect(ago()).toBe(1200);
  });
});

describe('Shift and an arrow', () => {
  test('go from snapshot to mark to flush, and to the present behind the last one', async () => {
    await open({ flushes: [NOW - 40 * MINUTE], snapshots: [NOW - 30 * MINUTE], marks: [NOW - 20 * MINUTE] });
    state.moveTo(NOW - 50 * MINUTE);
    const seen = [];
    for (let presses = 0; presses < 4; presses += 1) {
      await press('Shift+ArrowRight');
      seen.push(ago());
    }
    expect(seen).toEqual([2400, 1800, 1200, null]);
    await press('Shift+ArrowLeft');
    expect(ago()).toBe(1200);
    await press('Shift+ArrowLeft');
    expect(ago()).toBe(1800);
  });

  test('pass a snapshot between two flushes while only consistent points are wanted', async () => {
    await open({ flushes: FLUSHES, snapshots: [NOW - 25 * MINUTE] });
    state.setConsistent(true);
    state.moveTo(NOW - 30 * MINUTE);
    await press('Shift+ArrowRight');
    expect([ago(), state.snap.peek()]).toEqual([1200, 'flush']);
    await press('Shift+ArrowLeft');
    await press('Shift+ArrowLeft');
    expect([ago(), state.snap.peek()]).toEqual([2400, 'flush']);
  });

  test('find the next of a thousand snapshots that are only counted', async () => {
    await open({ snapshots: every(2 * MINUTE, BEGINS, NOW - MINUTE) });
    state.moveTo(NOW - 20 * HOUR - SECOND);
    await press('Shift+ArrowRight');
    expect(ago()).toBe((20 * HOUR) / SECOND);
    await press('Shift+ArrowRight');
    expect(ago()).toBe((20 * HOUR - 2 * MINUTE) / SECOND);
    await press('Shift+ArrowLeft');
    await press('Shift+ArrowLeft');
    expect(ago()).toBe((20 * HOUR + 2 * MINUTE) / SECOND);
  });

  test('stay where the server does not tell', async () => {
    await open({ snapshots: every(2 * MINUTE, BEGINS, NOW - MINUTE) });
    state.moveTo(NOW - 20 * HOUR);
    answer.broken = true;
    await press('Shift+ArrowRight');
    expect(ago()).toBe((20 * HOUR) / SECOND);
  });

  test('leave the line where it was moved meanwhile', async () => {
    await open({ snapshots: every(2 * MINUTE, BEGINS, NOW - MINUTE) });
    state.moveTo(NOW - 20 * HOUR);
    const { moveByPoint } = await import('./keys');
    const search = moveByPoint(state, true);
    state.moveTo(NOW - 10 * HOUR);
    await search;
    expect(ago()).toBe((10 * HOUR) / SECOND);
  });
});

describe('Control and an arrow', () => {
  const writes = [NOW - 35 * MINUTE, NOW - 34 * MINUTE];

  test('move over one write', async () => {
    await open({}, writes);
    state.moveTo(NOW - 40 * MINUTE);
    await press('Control+ArrowRight');
    expect(ago()).toBeCloseTo(2100, -1);
    await press('Control+ArrowRight');
    expect(ago()).toBeCloseTo(2040, -1);
  });

  test('reach the flush behind the write while only consistent points are wanted', async () => {
    await open({ flushes: FLUSHES }, writes);
    state.setConsistent(true);
    state.moveTo(NOW - 40 * MINUTE);
    await press('Control+ArrowRight');
    expect([ago(), state.snap.peek()]).toEqual([1800, 'flush']);
    await press('Control+ArrowLeft');
    expect([ago(), state.snap.peek()]).toEqual([2400, 'flush']);
  });
});
