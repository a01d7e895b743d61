import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { DAY, HOUR, MINUTE, SECOND } from '../lib/time';
import { every, type Lanes, stubBrowser } from './testing';

const NOW = Date.UTC(2026, 10, 29, 12);
const BEGINS = NOW - 2 * DAY;

type State = import('./state').TimelineState;
let state: State;
let asked: string[];
let answer: { broken: boolean };

/** Opens the timeline of a made-up volume, with a window of the last hour. */
async function open(lanes: Lanes): Promise<void> {
  const browser = stubBrowser({ now: NOW, begins: BEGINS, lanes });
  ({ asked, answer } = browser);
  for (const [name, value] of Object.entries(browser.globals)) vi.stubGlobal(name, value);
  const { TimelineState } = await import('./state');
  state = new TimelineState('db', new URLSearchParams({ last: '3600' }));
  await vi.advanceTimersByTimeAsync(500);
  expect(state.whole.peek() && state.detail.peek()).toBeTruthy();
  asked.length = 0;
}

/** Where the line is, before the present, in milliseconds. Null: at the present. */
const ago = () => {
  const moment = state.moment.peek();
  return moment === null ? null : NOW - moment;
};

beforeEach(() => vi.useFakeTimers({ now: NOW }));
afterEach(() => {
  state.stopAddress();
  state.dispose();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe('with all points', () => {
  test('the line goes where it is moved', async () => {
    await open({ flushes: every(MINUTE, BEGINS, NOW - MINUTE) });
    state.moveTo(NOW - 90 * SECOND);
    expect([ago(), state.snap.peek()]).toEqual([90 * SECOND, 'off']);
    state.moveTo(NOW + HOUR);
    expect(ago()).toBeNull();
    state.moveTo(0);
    expect(ago()).toBe(2 * DAY);
  });
});

describe('with only consistent points', () => {
  test('a drag stops at the flush at or before the pointer', async () => {
    await open({ flushes: every(MINUTE, NOW - 30 * MINUTE, NOW - MINUTE) });
    state.setConsistent(true);
    state.moveTo(NOW - 90 * SECOND);
    expect([ago(), state.snap.peek()]).toEqual([2 * MINUTE, 'flush']);
    state.moveTo(NOW - 2 * MINUTE);
    expect(ago()).toBe(2 * MINUTE);
    expect(asked).toEqual([]);
  });

  test('a step forth reaches the next flush, however far it is', async () => {
    await open({ flushes: every(10 * MINUTE, NOW - 50 * MINUTE, NOW - 10 * MINUTE) });
    state.setConsistent(true);
    state.moveTo(NOW - 45 * MINUTE);
    expect(ago()).toBe(50 * MINUTE);
    for (const minutes of [40, 30, 20, 10]) {
      state.moveTo(state.at() + SECOND, 'forth');
      expect([ago(), state.snap.peek()]).toEqual([minutes * MINUTE, 'flush']);
    }
    state.moveTo(state.at() - SECOND);
    expect(ago()).toBe(20 * MINUTE);
    state.moveTo(NOW - 10 * MINUTE + 1, 'forth');
    expect(ago()).toBeNull();
  });

  test('switched on, the line goes to the flush before, and switched off it stays', async () => {
    await open({ flushes: every(MINUTE, NOW - 30 * MINUTE, NOW - MINUTE) });
    state.moveTo(NOW - 90 * SECOND);
    state.setConsistent(true);
    expect(ago()).toBe(2 * MINUTE);
    state.setConsistent(false);
    expect([ago(), state.snap.peek()]).toEqual([2 * MINUTE, 'off']);
  });

  test('without a flush it says so', async () => {
    await open({ flushes: [NOW - 30 * MINUTE] });
    state.setConsistent(true);
    state.moveTo(NOW - 40 * MINUTE);
    expect([ago(), state.snap.peek()]).toEqual([40 * MINUTE, 'none']);
    state.moveTo(BEGINS, 'forth');
    expect(ago()).toBe(30 * MINUTE);
  });

  test('where flushes are only counted, the server is asked, and a flush is reached', async () => {
    await open({ flushes: every(700, BEGINS, NOW - MINUTE) });
    state.setConsistent(true);
    const target = NOW - 20 * MINUTE;
    const at = BEGINS + Math.floor((target - BEGINS) / 700) * 700;
    state.moveTo(target);
    expect([ago(), state.snap.peek()]).toEqual([20 * MINUTE, 'looking']);
    await vi.advanceTimersByTimeAsync(300);
    expect([state.moment.peek(), state.snap.peek()]).toEqual([at, 'flush']);
    expect(asked.filter((path) => path.includes('buckets=400')).length).toBeLessThanOrEqual(3);
    state.moveTo(at + 1, 'forth');
    await vi.advanceTimersByTimeAsync(300);
    expect([state.moment.peek(), state.snap.peek()]).toEqual([at + 700, 'flush']);
  });

  test('a later move wins over the answer about an earlier one', async () => {
    await open({ flushes: every(700, BEGINS, NOW - MINUTE) });
    state.setConsistent(true);
    state.moveTo(NOW - 20 * MINUTE);
    await vi.advanceTimersByTimeAsync(50);
    state.moveTo(NOW + HOUR);
    await vi.advanceTimersByTimeAsync(500);
    expect([ago(), state.snap.peek()]).toEqual([null, 'off']);
  });

  test('without an answer the line does not claim to be at a flush', async () => {
    await open({ flushes: every(700, BEGINS, NOW - MINUTE) });
    state.setConsistent(true);
    answer.broken = true;
    state.moveTo(NOW - 20 * MINUTE);
    await vi.advanceTimersByTimeAsync(300);
    expect([ago(), state.snap.peek()]).toEqual([20 * MINUTE, 'unknown']);
  });
});
