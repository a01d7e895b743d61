/** The server's events, newest first, kept up to date by a stream. */

import { signal } from '@preact/signals';
import { get } from './client';
import { reloadAll } from './resource';
import type { Event as ServerEvent } from './schema';
import { openStream } from './stream';

/** Events that the console keeps in memory. Older ones are read page by page. */
const KEPT = 500;

/** Events that the console reads at once. */
const PAGE = 200;

/** Time in which several events cause one reading of what the page shows. */
const RELOAD_DELAY = 400;

export const events = signal<ServerEvent[]>([]);

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
  const soon = () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      reloadAll();
    }, RELOAD_DELAY);
  };
  // The page is read after the stream is open, so no event falls between the two.
  const readAnew = async () => {
    arrived = [];
    const page = await get<ServerEvent[]>(`/events?limit=${PAGE}`).catch(() => events.value);
    events.value = mergeEvents(page, arrived);
    soon();
  };
  const close = openStream('/events', {
    onOpen: () => void readAnew(),
    onEvent: ({ event, data }) => {
      if (event === 'gap') return void readAnew();
      if (!data) return;
      const received = JSON.parse(data) as ServerEvent;
      arrived = [received, ...arrived].slice(0, KEPT);
      events.value = mergeEvents(events.value, [received]);
      soon();
    },
  });
  return () => {
    clearTimeout(timer);
    close();
  };
}
