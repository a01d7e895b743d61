/** The present time by the server's clock, so that a wrong clock of this machine shifts no picture. */

import { signal } from '@preact/signals';
import { parseTime } from './time';

let offset = 0;

/** Notes the server's time from an answer that was sent just now. */
export function noteServerTime(text: string): void {
  const difference = parseTime(text) - Date.now();
  // A small difference is the way of the answer, and following it would make pictures tremble.
  if (Math.abs(difference - offset) > 400) offset = difference;
}

export function serverNow(): number {
  return Date.now() + offset;
}

/** The server's time, renewed each second. */
export const now = signal(Date.now());

setInterval(() => {
  if (!document.hidden) now.value = serverNow();
}, 1000);
