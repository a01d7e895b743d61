/** Rates of the pool and of each volume, once a second, and their last minute. */

import { signal } from '@preact/signals';
import type { Live, Rates } from './schema';
import { openStream } from './stream';

/** Seconds of rates that the console keeps for spark lines. */
export const KEPT_SECONDS = 60;

export const live = signal<Live | null>(null);

const bytesMoved = new Map<string, number[]>();

/** Bytes that a volume moved in each of the last seconds, oldest first. */
export function recentBytes(volume: string): readonly number[] {
  return bytesMoved.get(volume) ?? [];
}

/** Rates of the pool in the last seconds, oldest first. */
export const poolRates = signal<(Rates & { time: string })[]>([]);

/** Adds a second to what is kept of each volume. A volume that is gone is forgotten. */
export function noteLive(event: Live): void {
  for (const name of bytesMoved.keys()) if (!event.volumes[name]) bytesMoved.delete(name);
  for (const [name, rates] of Object.entries(event.volumes)) {
    const points = bytesMoved.get(name) ?? [];
    points.push(rates.read_bytes + rates.write_bytes);
    bytesMoved.set(name, points.slice(-KEPT_SECONDS));
  }
  poolRates.value = [...poolRates.value, { ...event.pool, time: event.time }].slice(-5 * KEPT_SECONDS);
  live.value = event;
}

/** Follows the rates until the returned function is called. */
export function followLive(): () => void {
  return openStream('/live', {
    onEvent: ({ data }) => {
      if (data) noteLive(JSON.parse(data) as Live);
    },
  });
}
