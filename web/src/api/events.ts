/** The server's events, newest first, kept up to date by a stream. */

import { signal } from '@preact/signals';
import { ApiError, errorText, get } from './client';
import { reloadAll } from './resource';
import type { Event as ServerEvent } from './schema';
import { openStream, streamProblem } from './stream';

/** Events that the console keeps in memory. Older ones are read page by page. */
const KEPT = 500;

/** Events that the console reads at once. */
const PAGE = 200;

/** Time in which several events cause one reading of what the page shows. */
const RELOAD_DELAY = 400;

export const events = signal<ServerEvent[]>([]);

export interface Following {
  /** The events were read at least once, so that an empty list means that there is none. */
  known: boolean;
  /** New events appear by themselves. */
  live: boolean;
  /** Why they do not, and what to do. */
  problem: string | null;
}

const NOT_YET: Following = { known: false, live: false, problem: null };

/** What the console knows about the server's events. */
export const following = signal<Following>(NOT_YET);

function note(changes: Partial<Following>): void {
  following.value = { ...following.peek(), ...changes };
}

/** The union of two lists by id, newest first, with at most `limit` entries. */
export function mergeEvents(held: ServerEvent[], arrived: ServerEvent[], limit = KEPT): ServerEvent[] {
  const byId = new Map(held.map((event) => [event.id, event]));
  for (const event of arrived) byId.set(event.id, event);
  return [...byId.values()].sort((a, b) => b.id - a.id).slice(0, limit);
}

/** Follows the server's events until the returned function is called. */
export function followEvents(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  /** Events of the stream since the last reading began. */
  let arrived: ServerEvent[] = [];
  let closed = false;
  const soon = () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      reloadAll();
    }, RELOAD_DELAY);
  };
  const readAnew = async () => {
    arrived = [];
    try {
      const page = await get<ServerEvent[]>(`/events?limit=${PAGE}`);
      if (closed) return false;
      const newest = events.value[0]?.id;
      events.value = mergeEvents(page, arrived);
      note({ known: true });
      return events.value[0]?.id !== newest;
    } catch (error) {
      const problem = error instanceof ApiError ? streamProblem(error) : errorText(error);
      if (problem && !closed) note({ problem });
      return false;
    }
  };
  // The page is read after the stream is open, so no event falls between the two.
  const begin = async () => {
    note({ live: true, problem: null });
    await readAnew();
    if (!closed) soon();
  };
  const close = openStream('/events', {
    onOpen: () => void begin(),
    onEvent: ({ event, data }) => {
      if (event === 'gap') return void begin();
      if (!data) return;
      const received = JSON.parse(data) as ServerEvent;
      arrived = [received, ...arrived].slice(0, KEPT);
      events.value = mergeEvents(events.value, [received]);
      soon();
    },
    // Without a stream, each attempt at it reads the list, and what changed with its events.
    onFail: async (error) => {
      note({ live: false, problem: streamProblem(error) });
      if (error.kind !== 'unreachable' && (await readAnew())) soon();
    },
  });
  return () => {
    closed = true;
    clearTimeout(timer);
    close();
    // The next session may see less.
    events.value = [];
    following.value = NOT_YET;
  };
}
