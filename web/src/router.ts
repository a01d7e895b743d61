/** The page's address as signals. Paths are those of the address bar; the server answers all with index.html. */

import { computed, signal } from '@preact/signals';

const address = signal(location.pathname + location.search);

export const path = computed(() => address.value.split('?')[0] ?? '/');
export const parameters = computed(() => new URLSearchParams(address.value.split('?')[1] ?? ''));

window.addEventListener('popstate', () => {
  address.value = location.pathname + location.search;
});

/** Goes to a page of the console. */
export function navigate(to: string): void {
  history.pushState(null, '', to);
  address.value = to;
  document.querySelector('main')?.scrollTo(0, 0);
}

/** Changes parameters of the address in place. A null removes one. */
export function setParameters(changes: Record<string, string | null>): void {
  const next = new URLSearchParams(parameters.peek());
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString().replaceAll('%3A', ':');
  const to = text ? `${path.peek()}?${text}` : path.peek();
  if (to === address.peek()) return;
  history.replaceState(null, '', to);
  address.value = to;
}

/** The parts of a path that a pattern such as `/volumes/:name/:tab` names, or null. */
export function match(pattern: string, actual: string): Record<string, string> | null {
  const wanted = pattern.split('/');
  const parts = actual.replace(/\/$/, '').split('/');
  if (wanted.length !== parts.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = parts[index] ?? '';
    if (part.startsWith(':')) found[part.slice(1)] = decodeURIComponent(value);
    else if (part !== value) return null;
  }
  return found;
}

/** Follows a click on a link inside the console, unless it asks for a new tab. */
export function followLink(event: MouseEvent): void {
  const link = (event.target as Element).closest('a');
  const href = link?.getAttribute('href');
  if (!link || !href?.startsWith('/') || link.target || link.hasAttribute('download')) return;
  if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  navigate(href);
}

/** The path of a volume's page. */
export function volumePath(name: string, tab = ''): string {
  return `/volumes/${encodeURIComponent(name)}${tab && `/${tab}`}`;
}
