/** When the pool will be full, in words. */

import type { Filling } from '../api/schema';
import { bytes } from './format';
import { DAY, dayOf, monthOf, parseTime } from './time';

/** `undefined` while it is not known, or while nothing is taken. */
export function fullDay(filling: Filling | null | undefined, now = Date.now()): string | undefined {
  if (!filling?.full_at) return undefined;
  const at = parseTime(filling.full_at);
  const day = at - now < 300 * DAY ? `on ${dayOf(at)}` : `in ${monthOf(at)}`;
  return `full ${day} at this week's rate`;
}

/** What a day takes, or gives back. */
export function dailyRate(filling: Filling | null | undefined): string {
  if (!filling) return 'known after a day';
  const rate = filling.bytes_per_day;
  return rate < 0 ? `${bytes(-rate)} a day become free` : `${bytes(rate)} a day`;
}
