/**
 * Reads a stream of server-sent events. It uses `fetch` instead of `EventSource`, because an
 * `EventSource` does not report a 401 and can't continue from an id after an error.
 */

import { failure, send } from './client';

export interface StreamEvent {
  event: string;
  data: string;
  id: string | null;
}

interface Handlers {
  onEvent(event: StreamEvent): void;
  onOpen?(): void;
}

const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;

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

/** Opens a stream, and opens it again after each end. Returns the function that closes it. */
export function openStream(path: string, handlers: Handlers): () => void {
  const control = new AbortController();
  let lastId: string | null = null;
  let wait = FIRST_WAIT;
  const read = async () => {
    const headers: Record<string, string> = { accept: 'text/event-stream' };
    if (lastId !== null) headers['last-event-id'] = lastId;
    const response = await send(path, { headers, signal: control.signal });
    if (!response.ok || !response.body) throw await failure(response);
    handlers.onOpen?.();
    wait = FIRST_WAIT;
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
  const loop = async () => {
    while (!control.signal.aborted) {
      await read().catch(() => undefined);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, LONGEST_WAIT);
    }
  };
  void loop();
  return () => control.abort();
}
