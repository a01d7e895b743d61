/** Answers of GET routes, shared by all components that show them, and kept up to date. */

import { type Signal, signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { errorText, get, session } from './client';

interface Entry {
  value: Signal<unknown>;
  error: Signal<string | null>;
  users: number;
  request: Promise<void> | null;
  /** The request that begins when the present one ends. */
  next: Promise<void> | null;
}

/** What a component knows of a route: its last answer, and why there is none. */
export interface Resource<T> {
  data: T | undefined;
  error: string | null;
  reload: () => Promise<void>;
}

const entries = new Map<string, Entry>();

function entryOf(path: string): Entry {
  let entry = entries.get(path);
  if (!entry) {
    entry = { value: signal(undefined), error: signal(null), users: 0, request: null, next: null };
    entries.set(path, entry);
  }
  return entry;
}

/** Reads a route. Calls during a request share its answer. */
export function refresh(path: string): Promise<void> {
  const entry = entryOf(path);
  entry.request ??= get(path)
    .then((value) => {
      entry.value.value = value;
      entry.error.value = null;
    })
    .catch((error) => {
      entry.error.value = errorText(error);
    })
    .finally(() => {
      entry.request = null;
    });
  return entry.request;
}

/**
 * Reads a route after a change. An answer that was on its way may not show the change, so another
 * request follows it.
 */
export function reload(path: string): Promise<void> {
  const entry = entryOf(path);
  if (!entry.request) return refresh(path);
  entry.next ??= entry.request.then(() => {
    entry.next = null;
    return refresh(path);
  });
  return entry.next;
}

/** Reads every route again that a component shows now. */
export function reloadAll(): void {
  for (const [path, entry] of entries) {
    if (entry.users > 0) void reload(path);
  }
}

/** Forgets every answer, because the next session may see less. */
export function forgetAll(): void {
  for (const entry of entries.values()) entry.value.value = undefined;
}

session.subscribe((current) => {
  if (current === null) forgetAll();
});

/** The answer of a route. Null stands for no route. `everySeconds` reads it again at that interval. */
export function useResource<T>(path: string | null, everySeconds = 0): Resource<T> {
  useEffect(() => {
    if (path === null) return undefined;
    const entry = entryOf(path);
    entry.users += 1;
    void refresh(path);
    const timer =
      everySeconds > 0
        ? setInterval(() => !document.hidden && void refresh(path), everySeconds * 1000)
        : undefined;
    return () => {
      entry.users -= 1;
      clearInterval(timer);
    };
  }, [path, everySeconds]);
  if (path === null) return { data: undefined, error: null, reload: async () => undefined };
  const entry = entryOf(path);
  return { data: entry.value.value as T | undefined, error: entry.error.value, reload: () => reload(path) };
}
