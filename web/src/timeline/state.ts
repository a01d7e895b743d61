/** What a timeline shows: its window, its moment, and the pictures of the server that it draws. */

import { computed, effect, signal } from '@preact/signals';
import { noteServerTime, serverNow } from '../lib/clock';
import { DAY, HOUR, parseTime, toRfc3339 } from '../lib/time';
import { setParameters } from '../router';
import type { Point, TimelineData } from './data';
import { Loader } from './loader';
import {
  type Found,
  HALF_MICROSECOND,
  type Kind,
  type Near,
  Search,
  shownNeighbour,
  windowReader,
} from './points';
import { clamped, type Limits, lengthOf, panned, type Span, showing, toTime, toX, zoomed } from './scale';
import { type Snap, type Stop, stopOf, type Way } from './snap';
import { allPoints, neighbours } from './sums';

/** A window whose end is this close to now, in pixels, follows now. */
const FOLLOW_PIXELS = 3;

/** Distance in pixels from which the playhead snaps to a snapshot or mark. */
const SNAP_PIXELS = 6;

const ZOOM_TIME = 180;

/** Time that the line rests before the server is asked for the flush next to it. */
const SNAP_REST = 120;

export class TimelineState {
  readonly span = signal<Span>({ from: serverNow() - HOUR, to: serverNow() });
  /** True: the window's end follows the present. */
  readonly live = signal(true);
  /** The moment under the playhead. Null is the present. */
  readonly moment = signal<number | null>(null);
  /** The second handle, for comparisons. */
  readonly second = signal<number | null>(null);
  /** True: the line stops at flushes only. */
  readonly consistent = signal(false);
  readonly snap = signal<Snap>('off');
  readonly heat = signal(false);
  /** What was found next to the moment that the playhead rests on. */
  readonly near = signal<Near | null>(null);
  /** Width of the plot in pixels. */
  readonly width = signal(800);
  readonly whole = signal<TimelineData | null>(null);
  readonly detail = signal<TimelineData | null>(null);
  readonly error = signal<string | null>(null);
  readonly snapshots = computed(() =>
    allPoints([this.whole.value?.snapshots.points, this.detail.value?.snapshots.points]),
  );
  readonly marks = computed(() =>
    allPoints([this.whole.value?.marks.points, this.detail.value?.marks.points]),
  );
  readonly loader: Loader;
  private readonly stops: (() => void)[] = [];
  private animation = 0;
  private snapTimer: ReturnType<typeof setTimeout> | undefined;
  /** Number of moves of the line so far. An answer that is about an older one comes too late. */
  moves = 0;
  private placed = false;

  constructor(
    readonly volume: string,
    parameters: URLSearchParams,
  ) {
    this.readAddress(parameters);
    this.loader = new Loader(this);
    this.stops.push(effect(() => this.placeFirstWindow()));
    this.stops.push(effect(() => this.writeAddress()));
  }

  dispose(): void {
    cancelAnimationFrame(this.animation);
    clearTimeout(this.snapTimer);
    this.moves += 1;
    this.loader.dispose();
    for (const stop of this.stops) stop();
  }

  private readAddress(parameters: URLSearchParams): void {
    const read = (name: string) => {
      const time = parseTime(parameters.get(name) ?? '');
      return Number.isFinite(time) ? time : null;
    };
    const [from, to] = [read('from'), read('to')];
    const last = Number(parameters.get('last'));
    if (from !== null && to !== null && from < to) {
      this.placed = true;
      this.live.value = false;
      this.span.value = { from, to };
    } else if (last > 0) {
      this.placed = true;
      this.span.value = { from: serverNow() - last * 1000, to: serverNow() };
    }
    this.moment.value = read('at');
    this.second.value = read('and');
    this.heat.value = parameters.has('heat');
  }

  /**
   * Without a window in the address, the timeline begins with the last six hours of the history.
   */
  private placeFirstWindow(): void {
    const whole = this.whole.value;
    if (!whole || this.placed) return;
    this.placed = true;
    const age = whole.begins === null ? HOUR : serverNow() - whole.begins;
    this.follow(Math.min(Math.max(age * 1.04, 60_000), 6 * HOUR));
  }

  private addressTimer: ReturnType<typeof setTimeout> | undefined;

  /**
   * Writes the address a moment after a change. A window that follows the present changes all the
   * time.
   */
  private writeAddress(): void {
    void [this.span.value, this.live.value, this.moment.value, this.second.value, this.heat.value];
    this.addressTimer ??= setTimeout(() => {
      this.addressTimer = undefined;
      setParameters(this.addressParameters());
    }, 250);
  }

  private addressParameters(): Record<string, string | null> {
    const { from, to } = this.span.peek();
    const live = this.live.peek();
    const time = (value: number | null) => (value === null ? null : toRfc3339(value));
    return {
      last: live ? String(Number(((to - from) / 1000).toPrecision(6))) : null,
      from: live ? null : toRfc3339(from),
      to: live ? null : toRfc3339(to),
      at: time(this.moment.peek()),
      and: time(this.second.peek()),
      heat: this.heat.peek() ? '' : null,
    };
  }

  stopAddress(): void {
    clearTimeout(this.addressTimer);
  }

  /** How far the window can reach: from a little before the history to now. */
  limits(): Limits {
    const now = serverNow();
    const begins = this.whole.peek()?.begins ?? now - HOUR;
    const margin = Math.max((now - begins) * 0.02, 1000);
    return { from: begins - margin, to: now };
  }

  /** Shows the last `length` milliseconds, and follows the present. */
  follow(length: number): void {
    const now = serverNow();
    this.live.value = true;
    this.span.value = clamped({ from: now - length, to: now }, this.limits());
  }

  /** Shows a window. It follows the present if its end is there, or if `live` says so. */
  setSpan(span: Span, live = false): void {
    cancelAnimationFrame(this.animation);
    const limits = this.limits();
    const next = clamped(span, limits);
    this.live.value = live || limits.to - next.to < (lengthOf(next) * FOLLOW_PIXELS) / this.width.peek();
    this.span.value = next;
  }

  pan(pixels: number): void {
    const span = this.span.peek();
    this.setSpan(panned(span, (pixels / this.width.peek()) * lengthOf(span), this.limits()));
  }

  /** Zooms at once, as a wheel or fingers do. */
  zoom(factor: number, around: number): void {
    this.setSpan(zoomed(this.span.peek(), factor, around, this.limits()));
  }

  /** Goes to a window in a short motion, unless the person prefers none. */
  glide(target: Span): void {
    const [start, end] = [this.span.peek(), clamped(target, this.limits())];
    const present = this.limits().to;
    const live = end.to >= present - 1;
    const begun = performance.now();
    const length = matchMedia('(prefers-reduced-motion: reduce)').matches ? 0 : ZOOM_TIME;
    const step = () => {
      const share = Math.min((performance.now() - begun) / Math.max(length, 1), 1);
      const ease = length === 0 ? 1 : 1 - (1 - share) ** 3;
      // The present moves on while the window does.
      const drift = live ? serverNow() - present : 0;
      const between = (from: number, to: number) => from + (to + drift - from) * ease;
      this.setSpan(
        { from: between(start.from, end.from), to: between(start.to, end.to) },
        live && ease === 1,
      );
      if (ease < 1) this.animation = requestAnimationFrame(step);
    };
    step();
  }

  /** Zooms by keys, around the playhead if it is in sight. */
  zoomByKey(factor: number): void {
    const span = this.span.peek();
    const moment = this.at();
    const around = moment >= span.from && moment <= span.to ? moment : (span.from + span.to) / 2;
    this.glide(zoomed(span, factor, around, this.limits()));
  }

  /** The time under the playhead. */
  at(): number {
    return this.moment.value ?? serverNow();
  }

  /**
   * Moves the playhead to a time, and the window if the time is out of sight. While only consistent
   * points are wanted, it stops at a flush: the next one in the direction of the move.
   */
  moveTo(time: number, way: Way = 'back'): void {
    this.moves += 1;
    clearTimeout(this.snapTimer);
    const now = serverNow();
    const kept = Math.max(time, this.whole.peek()?.begins ?? now);
    if (kept >= now - 1) this.place(null, 'off');
    else if (!this.consistent.peek()) this.place(kept, 'off');
    else this.snapFrom(kept, way);
  }

  private snapFrom(time: number, way: Way): void {
    const stop = stopOf(time, way, (at, forwards) => this.shown('flushes', at, forwards));
    this.stopAt(stop === 'unknown' ? 'looking' : stop, time);
    // The page can't tell yet. Until the server did, it does not claim that the line is at a flush.
    if (stop === 'unknown') this.snapTimer = setTimeout(() => void this.lookAndStop(time, way), SNAP_REST);
  }

  /** Moves the playhead to a flush that is known. */
  moveToFlush(flush: Point): void {
    this.moves += 1;
    clearTimeout(this.snapTimer);
    this.stopAt(flush, flush.time);
  }

  setConsistent(wanted: boolean): void {
    this.consistent.value = wanted;
    if (this.moment.peek() !== null) this.moveTo(this.at());
  }

  private place(moment: number | null, snap: Snap): void {
    this.moment.value = moment;
    this.snap.value = snap;
    const span = this.span.peek();
    const next = showing(span, this.at(), this.limits());
    if (next !== span) this.setSpan(next);
  }

  private stopAt(stop: Stop | 'looking', wanted: number): void {
    if (typeof stop === 'object') this.place(stop.time, 'flush');
    else if (stop === 'present') this.place(null, 'off');
    else this.place(wanted, stop);
  }

  /**
   * Asks the server for the flush next to a time. A move of the line meanwhile is the newer wish.
   */
  private async lookAndStop(time: number, way: Way): Promise<void> {
    const { moves } = this;
    const search = this.search();
    const after = way === 'forth' ? await search.find('flushes', time - HALF_MICROSECOND, true) : null;
    const before = after === null ? await search.find('flushes', time, false) : undefined;
    const look = (_: number, forwards: boolean) => (forwards ? after : before);
    if (moves === this.moves) this.stopAt(stopOf(time, way, look), time);
  }

  /** The neighbour of a time by the pictures that the page has. */
  shown(kind: Kind, time: number, forwards: boolean): Found {
    return shownNeighbour([this.detail.peek(), this.whole.peek()], kind, time, forwards);
  }

  /** The neighbour of a time by the pictures, or by a search if they do not tell. */
  async neighbour(search: Search, kind: Kind, time: number, forwards: boolean): Promise<Found> {
    const shown = this.shown(kind, time, forwards);
    return shown === undefined ? search.find(kind, time, forwards) : shown;
  }

  /** A search for what the pictures do not tell. */
  search(signal?: AbortSignal): Search {
    const { whole } = this;
    const now = serverNow();
    return new Search(windowReader(this.volume, signal), { from: whole.peek()?.begins ?? now, to: now });
  }

  /** The time at a place of the plot, or that of a snapshot or mark close to it. */
  timeAt(x: number): number {
    const span = this.span.peek();
    const time = toTime(x, span, this.width.peek());
    const near = [this.snapshots, this.marks]
      .flatMap((points) => Object.values(neighbours(points.peek(), time)))
      .filter(
        (point) => point !== null && Math.abs(toX(point.time, span, this.width.peek()) - x) <= SNAP_PIXELS,
      );
    return near[0]?.time ?? time;
  }

  received(data: TimelineData, now: string): void {
    noteServerTime(now);
    if (data.begins !== null && this.moment.peek() !== null && (this.moment.peek() ?? 0) < data.begins) {
      if (this.consistent.peek()) this.moveTo(data.begins, 'forth');
      else this.moment.value = data.begins;
    }
  }

  /** Moves a window that follows the present. The page calls it before it draws. */
  tick(): boolean {
    if (!this.live.peek()) return false;
    const span = this.span.peek();
    const now = serverNow();
    // A move of less than half a pixel would change nothing that a person sees.
    if (now - span.to < lengthOf(span) / this.width.peek() / 2) return false;
    this.span.value = { from: now - lengthOf(span), to: now };
    return true;
  }

  /** True where the whole history is short enough to be one window. */
  isWhole(): boolean {
    return lengthOf(this.span.value) > lengthOf(this.limits()) * 0.98 || lengthOf(this.limits()) > 3650 * DAY;
  }
}
