/**
 * Reads a stream of server-sent events. It uses `fetch` instead of `EventSource`, because an
 * `EventSource` does not report a 401 and can't continue from an id after an error.
 */

import { ApiError, failure, send } from './client';
import { whileShown } from './shown';

export interface StreamEvent {
  event: string;
  data: string;
  id: string | null;
}

interface Handlers {
  onEvent(event: StreamEvent): void;
  onOpen?(): void;
  /** The server refused the stream, or could not be reached. Another attempt follows. */
  onFail?(error: ApiError): void;
}

const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;

/** Time before another attempt at what the session may not read: only a person can change that. */
const FORBIDDEN_WAIT = 60_000;

/** The attempts that wait. Each function ends a wait. */
const waiting = new Set<() => void>();

/** Opens at once what waits for another attempt. */
export function retryStreams(): void {
  for (const end of waiting) end();
}

function pause(time: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      waiting.delete(end);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, time);
    waiting.add(end);
    signal.addEventListener('abort', end);
  });
}

/** Why a stream is not open, and what to do. Null: the page says so itself. */
export function streamProblem({ kind, status, message }: ApiError): string | null {
  // The banner of the page says that the server does not answer, and a 401 opens the log-in page.
  if (kind === 'unreachable' || status === 401) return null;
  if (status === 403) return `${message} Ask an administrator for a role that may read this.`;
  const again = 'The console tries again every few seconds.';
  if (kind === 'busy') return `${message} Close other windows of the console. ${again}`;
  return `${message} ${again}`;
}

/** Splits the text of a stream into events. It keeps an incomplete event until its rest arrives. */
export class StreamParser {
  private rest = '';

  push(text: string): StreamEvent[] {
    const blocks = (this.rest + text).replaceAll('\r\n', '\n').split('\n\n');
    this.rest = blocks.pop() ?? '';
    return blocks.map(parseBlock).filter((event) => event !== null);
  }
}

function parseBlock(block: string): StreamEvent | null {
  let event = 'message';
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split('\n')) {
    const [, field, value = ''] = /^([a-z]+):? ?(.*)$/.exec(line) ?? [];
    if (field === 'event') event = value;
    else if (field === 'id') id = value;
    else if (field === 'data') data.push(value);
  }
  return data.length > 0 || event !== 'message' ? { event, data: data.join('\n'), id } : null;
}

/** Milliseconds until the next attempt after an error. */
function waitAfter(error: unknown, usual: number): number {
  if (!(error instanceof ApiError)) return usual;
  if (error.status === 403) return FORBIDDEN_WAIT;
  return Math.max(usual, error.retryAfter * 1000);
}

/**
 * Opens a stream, and opens it again after each end, as long as the page is shown. When the page is
 * shown again, the stream goes on after the last event. Returns the function that closes it.
 */
export function openStream(path: string, handlers: Handlers): () => void {
  let lastId: string | null = null;
  const read = async (signal: AbortSignal) => {
    const headers: Record<string, string> = { accept: 'text/event-stream' };
    if (lastId !== null) headers['last-event-id'] = lastId;
    const response = await send(path, { headers, signal });
    if (!response.ok || !response.body) throw await failure(response);
    handlers.onOpen?.();
    const parser = new StreamParser();
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      for (const event of parser.push(decoder.decode(part.value, { stream: true }))) {
        lastId = event.id ?? lastId;
        handlers.onEvent(event);
      }
    }
  };
  const loop = async (signal: AbortSignal) => {
    let wait = FIRST_WAIT;
    while (!signal.aborted) {
      const begun = Date.now();
      const error = await read(signal).catch((reason: unknown) => reason);
      if (signal.aborted) return;
      // A stream that was open for a while is opened again soon.
      if (Date.now() - begun > LONGEST_WAIT) wait = FIRST_WAIT;
      if (error instanceof ApiError) handlers.onFail?.(error);
      await pause(waitAfter(error, wait), signal);
      wait = Math.min(wait * 2, LONGEST_WAIT);
    }
  };
  return whileShown(() => {
    const control = new AbortController();
    void loop(control.signal);
    return () => control.abort();
  });
}
