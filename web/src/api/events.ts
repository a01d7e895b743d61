/** The server's events, newest first, kept up to date by a stream. */

import { signal } from '@preact/signals';
import { get } from './client';
import type { ServerEvent } from './pending';
import { reloadAll } from './resource';
import { openStream } from './stream';

/** Events that the console keeps in memory. Older ones are read page by page. */
const KEPT = 500;

/** Time in which several events cause one reading of what the page shows. */
const RELOAD_DELAY = 400;

export const events = signal<ServerEvent[]>([]);

/** The union of two lists by id, newest first, with at most `limit` entries. */
export function mergeEvents(held: ServerEvent[], arrived: ServerEvent[], limit = KEPT): ServerEvent[] {
  const byId = new Map(held.map((event) => [event.id, event]));
  for (const event of arrived) byId.set(event.id, event);
  return [...byId.values()].sort((a, b) => b.id - a.id).slice(0, limit);
}

async function readAnew(): Promise<void> {
  events.value = await get<ServerEvent[]>('/events?limit=200').catch(() => events.value);
  reloadAll();
}

/** Follows the server's events until the returned function is called. */
export function followEvents(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let opened = false;
  const soon = () => {
    timer ??= setTimeout(() => {
      timer = undefined;
      reloadAll();
    }, RELOAD_DELAY);
  };
  void readAnew();
  const close = openStream('/events', {
    onOpen: () => {
      // Rates and lists have no ids, so a page reads them anew when the server is back.
      if (opened) reloadAll();
      opened = true;
    },
    onEvent: ({ event, data }) => {
      if (event === 'gap') return void readAnew();
      if (!data) return;
      events.value = mergeEvents(events.value, [JSON.parse(data) as ServerEvent]);
      soon();
    },
  });
  return () => {
    clearTimeout(timer);
    close();
  };
}
