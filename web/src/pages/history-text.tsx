import type { HistoryWindow } from '../api/schema';
import { duration } from '../lib/time';

/** How far a volume's history reaches back, and how far it should: "6 d 23 h of 7 d". */
export function HistoryText({ window, kept }: { window: HistoryWindow | null | undefined; kept: boolean }) {
  if (!kept) return <span class="soft">no history</span>;
  if (!window) return <span class="soft">begins with the first write</span>;
  const wanted = window.wanted_seconds ? ` of ${duration(window.wanted_seconds * 1000)}` : '';
  return <span class="nowrap">{duration(window.held_seconds * 1000) + wanted}</span>;
}
