/**
 * Finds the snapshot, mark or flush next to a time. The pictures that the page draws know it where
 * they list points. Where they only count them, a search asks the server for narrower windows.
 */

import { apiPath, get, query } from '../api/client';
import type { Timeline } from '../api/schema';
import { SECOND, toRfc3339 } from '../lib/time';
import { bucketStart, type Point, readTimeline, type TimelineData } from './data';
import { lengthOf, type Span } from './scale';
import { type Neighbours, neighbours } from './sums';

export type Kind = 'snapshots' | 'marks' | 'flushes';

export const KINDS: Kind[] = ['snapshots', 'marks', 'flushes'];

/** Half of the smallest distance of two times that the page tells apart, in milliseconds. */
export const HALF_MICROSECOND = 0.0005;

/** What is known of a neighbour. Null: there is none. Undefined: it is not known. */
export type Found = Point | null | undefined;

/** What is next to a moment, by kind: before it, and after it. */
export interface Near {
  moment: number;
  of: Record<Kind, { before: Found; after: Found }>;
}

/** The first point after a time, or the last one at or before it. */
function sideOf({ before, after }: Neighbours, forwards: boolean): Point | null {
  return forwards ? after : before;
}

/**
 * The neighbour of a time as pictures show it. A picture tells only of its own span, and only if it
 * lists the points. The first picture that can tell decides.
 */
export function shownNeighbour(
  pictures: (TimelineData | null)[],
  kind: Kind,
  time: number,
  forwards: boolean,
): Found {
  // A picture of earlier does not show what happened since, however far its span reaches.
  const now = Math.max(...pictures.map((data) => data?.now ?? 0));
  for (const data of pictures) {
    if (!data || data[kind].counts || time < data.span.from || time >= data.span.to) continue;
    const point = sideOf(neighbours(data[kind].points, time), forwards);
    if (point) return point;
    // Nothing happens after now, and nothing of the history is before it begins.
    const complete = forwards ? data.span.to >= now : data.span.from <= (data.begins ?? data.now);
    if (complete && !data[kind].partial) return null;
  }
  return undefined;
}

/** The nearest of several neighbours. It is not known as long as one of them is not. */
export function nearestOf(found: Found[], forwards: boolean): Found {
  if (found.includes(undefined)) return undefined;
  const points = found.filter((point) => point !== null && point !== undefined);
  return points.sort((a, b) => (forwards ? a.time - b.time : b.time - a.time))[0] ?? null;
}

/** The server's picture of a narrow window. Null: there was no answer. */
export type ReadWindow = (window: Span) => Promise<TimelineData | null>;

/** Buckets of a window that a search reads: each step is as much narrower than the one before. */
const BUCKETS = 400;

export function windowReader(volume: string, signal?: AbortSignal): ReadWindow {
  return async ({ from, to }) => {
    const parameters = query({ from: toRfc3339(from), to: toRfc3339(to), buckets: BUCKETS });
    const path = apiPath`/volumes/${volume}/timeline` + parameters;
    const answer = await get<Timeline>(path, signal).catch(() => null);
    return answer && readTimeline(answer);
  };
}

/** Length of the first window of a search, and how much longer each next one is. */
const FIRST_WINDOW = 30 * SECOND;
const GROWTH = 100;

/** Requests that one search makes at most. */
export const MOST_REQUESTS = 16;

/**
 * The shortest window that is worth a request, in milliseconds: times in requests have
 * microseconds.
 */
const SHORTEST_WINDOW = 0.001;

/**
 * A search for neighbours by requests. It widens its window until that has a point, and narrows it
 * where points are only counted. Searches for several kinds share the answers, and the limit.
 */
export class Search {
  private left = MOST_REQUESTS;
  private readonly answers = new Map<string, Promise<TimelineData | null>>();

  constructor(
    private readonly readWindow: ReadWindow,
    private readonly limits: Span,
  ) {}

  async find(kind: Kind, time: number, forwards: boolean): Promise<Found> {
    const limit = forwards ? this.limits.to : this.limits.from;
    // The server's windows have no point at their very end, and a search back wants that of its
    // time.
    let near = forwards ? time : time + SHORTEST_WINDOW;
    for (let length = FIRST_WINDOW; ; length *= GROWTH) {
      const far = forwards ? Math.min(limit, time + length) : Math.max(limit, time - length);
      const window = forwards ? { from: near, to: far } : { from: far, to: near };
      const found = await this.inside(window, kind, time, forwards);
      if (found !== null || far === limit) return found;
      near = far;
    }
  }

  private read(window: Span): Promise<TimelineData | null> {
    const key = `${window.from} ${window.to}`;
    let answer = this.answers.get(key);
    if (!answer) {
      if (this.left === 0) return Promise.resolve(null);
      this.left -= 1;
      answer = this.readWindow(window);
      this.answers.set(key, answer);
    }
    return answer;
  }

  private async inside(window: Span, kind: Kind, time: number, forwards: boolean): Promise<Found> {
    if (lengthOf(window) < SHORTEST_WINDOW) return null;
    const data = await this.read(window);
    if (!data) return undefined;
    const { points, counts, partial } = data[kind];
    if (!counts) return sideOf(neighbours(points, time), forwards);
    const parts = countedParts(data, counts, window, forwards);
    const first = parts[0];
    if (first && lengthOf(first) === lengthOf(window)) return undefined;
    if (forwards && partial && first) {
      const older = await this.between(window.from, first.from, kind, time);
      if (older !== null) return older;
    }
    const found = await this.firstOf(parts, kind, time, forwards);
    return found === null && partial ? undefined : found;
  }

  /** What the first of several windows has, in their order, that is not empty. */
  private async firstOf(windows: Span[], kind: Kind, time: number, forwards: boolean): Promise<Found> {
    for (const window of windows) {
      const found = await this.inside(window, kind, time, forwards);
      if (found !== null) return found;
    }
    return null;
  }

  /**
   * The first point of a window in which the server did not look all points up. It halves the
   * window.
   */
  private async between(from: number, to: number, kind: Kind, time: number): Promise<Found> {
    for (let start = from; to - start >= SHORTEST_WINDOW; ) {
      const middle = (start + to) / 2;
      const found = await this.inside({ from: start, to: middle }, kind, time, true);
      if (found !== null) return found;
      start = middle;
    }
    return null;
  }
}

/** The buckets of a window that have points, from the near end on. */
function countedParts(data: TimelineData, counts: number[], window: Span, forwards: boolean): Span[] {
  const parts = counts.flatMap((count, bucket) => {
    const start = bucketStart(data, bucket);
    const from = Math.max(window.from, start);
    const to = Math.min(window.to, start + data.bucket);
    return count > 0 && from < to ? [{ from, to }] : [];
  });
  return forwards ? parts : parts.reverse();
}
