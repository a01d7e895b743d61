/**
 * Reads the timeline's pictures from the server: the whole history once a few seconds, and the
 * window with a margin, so that panning finds its bars already there.
 */

import { effect } from '@preact/signals';
import { apiPath, errorText, get, query } from '../api/client';
import type { Timeline } from '../api/schema';
import { serverNow } from '../lib/clock';
import { toRfc3339 } from '../lib/time';
import { readTimeline, type TimelineData } from './data';
import { lengthOf, type Span } from './scale';
import type { TimelineState } from './state';

/** Width of a bar in pixels, at least. */
const BAR = 5;
const MOST_BUCKETS = 2000;
const OVERVIEW_BUCKETS = 600;
const REGIONS = 64;

/** Time that a window rests before it is read. Between two readings of a moving window it is the interval. */
const REST = 70;
const LIVE_INTERVAL = 1000;
const COARSE_INTERVAL = 250;
const OVERVIEW_INTERVAL = 5000;

export class Loader {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private overviewTimer: ReturnType<typeof setTimeout> | undefined;
  private control: AbortController | null = null;
  private readonly stop: () => void;
  private closed = false;

  constructor(private readonly state: TimelineState) {
    this.stop = effect(() => {
      const { span, width, heat } = state;
      this.schedule(span.value, width.value, heat.value);
    });
    void this.readWhole();
  }

  dispose(): void {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.overviewTimer);
    this.control?.abort();
    this.stop();
  }

  /** Reads both pictures again, because something changed. */
  refresh(): void {
    void this.readWhole();
    void this.readDetail();
  }

  private schedule(span: Span, width: number, heat: boolean): void {
    if (this.timer !== undefined || !needsReading(this.state.detail.peek(), span, width, heat)) return;
    this.timer = setTimeout(() => this.readDetail(), REST);
  }

  private async read(
    span: Span | null,
    buckets: number,
    regions: number,
    signal?: AbortSignal,
  ): Promise<TimelineData | null> {
    const { state } = this;
    const window = span ? { from: toRfc3339(span.from), to: toRfc3339(span.to) } : {};
    const parameters = query({ ...window, buckets, regions: regions || undefined });
    try {
      const answer = await get<Timeline>(apiPath`/volumes/${state.volume}/timeline` + parameters, signal);
      const data = readTimeline(answer);
      state.error.value = null;
      state.received(data, answer.now);
      return data;
    } catch (error) {
      if (!signal?.aborted) state.error.value = errorText(error);
      return null;
    }
  }

  private async readWhole(): Promise<void> {
    clearTimeout(this.overviewTimer);
    if (!document.hidden) {
      const data = await this.read(null, OVERVIEW_BUCKETS, 0);
      if (data) this.state.whole.value = data;
    }
    if (!this.closed) this.overviewTimer = setTimeout(() => this.readWhole(), OVERVIEW_INTERVAL);
  }

  private async readDetail(): Promise<void> {
    clearTimeout(this.timer);
    const { state } = this;
    const span = state.span.peek();
    const heat = state.heat.peek();
    this.control?.abort();
    this.control = new AbortController();
    const { signal } = this.control;
    // Until the answer is there, `timer` keeps a moving window from asking at every frame.
    this.timer = setTimeout(() => this.next(), LIVE_INTERVAL * 5);
    const wanted = withMargin(span, state.limits().from);
    const buckets = Math.min(
      MOST_BUCKETS,
      Math.round((lengthOf(wanted) / lengthOf(span)) * (state.width.peek() / BAR)),
    );
    const data = await this.read(wanted, Math.max(buckets, 10), heat ? REGIONS : 0, signal);
    if (signal.aborted || this.closed) return;
    if (data) state.detail.value = data;
    clearTimeout(this.timer);
    this.timer = undefined;
    this.next();
  }

  /** Decides when the window is read again. */
  private next(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (this.closed) return;
    const { state } = this;
    const data = state.detail.peek();
    const stale = needsReading(data, state.span.peek(), state.width.peek(), state.heat.peek());
    if (stale) this.timer = setTimeout(() => this.readDetail(), data ? REST : LIVE_INTERVAL);
    else if (data?.coarse) this.timer = setTimeout(() => this.readDetail(), COARSE_INTERVAL);
    else if (state.live.peek())
      this.timer = setTimeout(() => (document.hidden ? this.next() : this.readDetail()), LIVE_INTERVAL);
  }
}

/** The window with half of its length on each side, but not beyond the history and the present. */
function withMargin(span: Span, earliest: number): Span {
  const margin = lengthOf(span) / 2;
  return {
    from: Math.max(span.from - margin, Math.min(earliest, span.from)),
    to: Math.max(span.to, Math.min(span.to + margin, serverNow())),
  };
}

/** True if a picture does not cover the window, or its bars are much too wide or too narrow. */
export function needsReading(data: TimelineData | null, span: Span, width: number, heat: boolean): boolean {
  if (!data || (heat && !data.regions)) return true;
  const slack = lengthOf(span) * 0.01;
  const beyondNow = data.span.to >= data.now - 1;
  if (data.span.from > span.from + slack || (data.span.to < span.to - slack && !beyondNow)) return true;
  const bar = (data.bucket / lengthOf(span)) * width;
  return bar > BAR * 3 || (bar < BAR * 0.4 && data.written.length > 20);
}
