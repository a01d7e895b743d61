import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Following } from './events';
import { whileShown } from './shown';

/** A page whose visibility the test changes. */
class FakePage extends EventTarget {
  visibilityState = 'visible';

  turn(state: 'visible' | 'hidden') {
    this.visibilityState = state;
    this.dispatchEvent(new Event('visibilitychange'));
  }
}

interface Connection {
  path: string;
  headers: Record<string, string>;
  signal: AbortSignal;
  send: (text: string) => void;
}

/** A server whose streams the test feeds. `refusal` is the answer instead of a stream. */
class FakeServer {
  readonly streams: Connection[] = [];
  refusal: { status: number; kind: string; headers?: Record<string, string> } | null = null;
  events: { id: number }[] = [];
  lists = 0;
  attempts = 0;

  get open() {
    return this.streams.filter(({ signal }) => !signal.aborted);
  }

  readonly fetch = async (path: string, init: RequestInit) => {
    const headers = init.headers as Record<string, string>;
    const isStream = headers.accept === 'text/event-stream';
    const { refusal } = this;
    if (isStream) this.attempts += 1;
    else this.lists += 1;
    if (refusal && (isStream || refusal.status === 403)) {
      const body = JSON.stringify({ kind: refusal.kind, message: 'follow events: refused' });
      return new Response(body, { status: refusal.status, headers: refusal.headers });
    }
    if (!isStream) return new Response(JSON.stringify(this.events));
    const signal = init.signal as AbortSignal;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        const send = (text: string) => controller.enqueue(new TextEncoder().encode(text));
        this.streams.push({ path, headers, signal, send });
        signal.addEventListener('abort', () => controller.error(new DOMException('', 'AbortError')));
      },
    });
    return new Response(body);
  };
}

let page: FakePage;
let server: FakeServer;
beforeEach(() => {
  vi.useFakeTimers();
  page = new FakePage();
  server = new FakeServer();
  vi.stubGlobal('document', page);
  vi.stubGlobal('fetch', server.fetch);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const pass = (milliseconds = 10) => vi.advanceTimersByTimeAsync(milliseconds);

describe('what is open while the page is shown', () => {
  test('closes when it is hidden, and opens once when it is shown', () => {
    let open = 0;
    let opened = 0;
    const stop = whileShown(() => {
      open += 1;
      opened += 1;
      return () => {
        open -= 1;
      };
    });
    const seen = [open];
    for (const state of ['hidden', 'hidden', 'visible', 'visible', 'hidden', 'visible'] as const) {
      page.turn(state);
      seen.push(open);
    }
    expect(seen).toEqual([1, 0, 0, 1, 1, 0, 1]);
    stop();
    page.turn('visible');
    expect([open, opened]).toEqual([0, 3]);
  });

  test('does not open on a page that begins hidden', () => {
    page.visibilityState = 'hidden';
    let opened = 0;
    const stop = whileShown(() => {
      opened += 1;
      return () => undefined;
    });
    expect(opened).toBe(0);
    page.turn('visible');
    expect(opened).toBe(1);
    stop();
  });
});

describe('a stream', () => {
  test('takes no connection while the page is hidden, and goes on after the last event', async () => {
    const { openStream } = await import('./stream');
    const ids: (string | null)[] = [];
    const close = openStream('/events', { onEvent: ({ id }) => ids.push(id) });
    await pass();
    server.open[0]?.send('id: 7\ndata: {}\n\n');
    await pass();
    page.turn('hidden');
    await pass(60_000);
    expect([server.open.length, server.streams.length]).toEqual([0, 1]);
    page.turn('visible');
    await pass();
    expect(server.open.length).toBe(1);
    expect(server.open[0]?.headers['last-event-id']).toBe('7');
    server.open[0]?.send('id: 8\ndata: {}\n\n');
    await pass();
    expect(ids).toEqual(['7', '8']);
    close();
    await pass(10_000);
    expect(server.open.length).toBe(0);
  });

  test('that is refused tells why, and is tried again', async () => {
    const { openStream, streamProblem } = await import('./stream');
    server.refusal = { status: 409, kind: 'busy' };
    const problems: (string | null)[] = [];
    const close = openStream('/live', {
      onEvent: () => undefined,
      onFail: (error) => problems.push(streamProblem(error)),
    });
    await pass();
    expect(problems).toEqual([
      'Follow events: refused. Close other windows of the console. The console tries again every few seconds.',
    ]);
    server.refusal = null;
    await pass(1000);
    expect(server.open.length).toBe(1);
    close();
  });

  test('waits as long as the server wants, and a press of a button ends the wait', async () => {
    const { openStream, retryStreams } = await import('./stream');
    server.refusal = { status: 429, kind: 'busy', headers: { 'retry-after': '20' } };
    let failed = 0;
    const close = openStream('/live', {
      onEvent: () => undefined,
      onFail: () => {
        failed += 1;
      },
    });
    await pass(19_000);
    expect(failed).toBe(1);
    await pass(2000);
    expect(failed).toBe(2);
    server.refusal = null;
    retryStreams();
    await pass();
    expect(server.open.length).toBe(1);
    close();
  });
});

describe('the events of the server', () => {
  let follow: () => () => void;
  let state: () => Following;
  let ids: () => number[];
  beforeEach(async () => {
    const { events, followEvents, following } = await import('./events');
    follow = followEvents;
    state = () => following.peek();
    ids = () => events.peek().map(({ id }) => id);
  });

  test('are not known before they were read', async () => {
    const close = follow();
    expect(state()).toEqual({ known: false, live: false, problem: null });
    await pass();
    expect(state()).toEqual({ known: true, live: true, problem: null });
    close();
  });

  test('of an answer that comes after the log-out are not kept', async () => {
    server.events = [{ id: 1 }];
    follow()();
    await pass();
    expect([ids(), state().known]).toEqual([[], false]);
  });

  test('that happened while the page was hidden are read when it is shown', async () => {
    server.events = [{ id: 1 }];
    const close = follow();
    await pass();
    page.turn('hidden');
    server.events = [{ id: 3 }, { id: 2 }, { id: 1 }];
    await pass(10_000);
    expect(ids()).toEqual([1]);
    page.turn('visible');
    await pass();
    expect(ids()).toEqual([3, 2, 1]);
    close();
    expect([ids(), state().known]).toEqual([[], false]);
  });

  test('are read without a stream where that is refused, and are not called live', async () => {
    server.refusal = { status: 429, kind: 'busy' };
    server.events = [{ id: 4 }];
    const close = follow();
    await pass();
    expect(ids()).toEqual([4]);
    expect(state()).toMatchObject({ known: true, live: false });
    expect(state().problem).toMatch(/^Follow events: refused\. Close other windows/);
    server.refusal = null;
    await pass(6000);
    expect(state()).toEqual({ known: true, live: true, problem: null });
    close();
  });

  test('that the session may not read are not called empty', async () => {
    server.refusal = { status: 403, kind: 'forbidden' };
    const close = follow();
    await pass();
    expect(state()).toMatchObject({ known: false, live: false });
    expect(state().problem).toMatch(/Ask an administrator/);
    const { lists } = server;
    await pass(30_000);
    // Each attempt would be an entry of the audit.
    expect([server.attempts, server.lists]).toEqual([1, lists]);
    close();
  });
});
