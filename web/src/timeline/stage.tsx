/** The window of a timeline: its canvas, the handles above it, and what the pointer shows. */

import { effect, signal } from '@preact/signals';
import { useEffect, useMemo, useRef } from 'preact/hooks';
import { bytes, count, percent } from '../lib/format';
import { themeChanges } from '../lib/theme';
import { clockTime } from '../lib/time';
import { digitsOf } from './axis';
import { partsOf } from './bars';
import { bucketAt, bucketStart } from './data';
import { drawScene, topOf } from './draw';
import type { Hit } from './lanes';
import { type Layout, layoutOf } from './layout';
import { readPalette } from './palette';
import { Playhead, SecondHandle } from './playhead';
import { Pointers } from './pointer';
import { lengthOf, toTime } from './scale';
import type { TimelineState } from './state';

/** Share of the way to its new value that the bars' scale goes in one frame. */
const EASE = 0.25;

const NEAR = 9;

/** Draws the canvas when something changed, at most once a frame. */
class Painter {
  hits: Hit[] = [];
  private top = 0;
  private frame = 0;
  private palette;
  private readonly stop: () => void;
  private readonly still = matchMedia('(prefers-reduced-motion: reduce)');
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly state: TimelineState,
    private readonly layout: () => Layout,
  ) {
    this.palette = readPalette(canvas);
    this.stop = effect(() => {
      void [state.span.value, state.detail.value, state.whole.value, state.width.value, state.heat.value];
      void themeChanges.value;
      this.palette = readPalette(canvas);
      this.request();
    });
    this.follow();
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.stop();
  }

  private request(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  /** Moves a window that follows the present, as often as a person could see it. */
  private follow(): void {
    this.state.tick();
    const perPixel = lengthOf(this.state.span.peek()) / this.state.width.peek();
    this.timer = setTimeout(() => this.follow(), Math.max(16, Math.min(perPixel / 2, 1000)));
  }

  private draw(): void {
    const { state } = this;
    const scene = {
      span: state.span.peek(),
      detail: state.detail.peek(),
      whole: state.whole.peek(),
      layout: this.layout(),
      palette: this.palette,
    };
    const wanted = topOf(scene);
    const close = Math.abs(wanted - this.top) < wanted * 0.01;
    this.top = close || this.top === 0 || this.still.matches ? wanted : this.top + (wanted - this.top) * EASE;
    this.hits = drawScene(this.canvas, { ...scene, top: this.top });
    if (this.top !== wanted) this.request();
  }
}

/** What lies under the pointer: a bucket's numbers, or a sign of a lane. */
export const pointed = signal<string>('');

function describe(state: TimelineState, layout: Layout, x: number): string {
  const time = toTime(x - layout.left, state.span.peek(), layout.plot);
  const part = partsOf(state.span.peek(), state.detail.peek(), state.whole.peek()).find(
    ({ from, to }) => time >= from && time < to,
  );
  if (!part) return '';
  const { data } = part;
  const bucket = bucketAt(data, time);
  const written = data.written[bucket] ?? 0;
  const at = clockTime(bucketStart(data, bucket), digitsOf(state.span.peek()));
  if (written === 0) return `${at}  nothing written`;
  const settled = written - (data.waiting[bucket] ?? 0);
  const stored =
    settled > 0 ? `stored as ${percent(data.stored[bucket] ?? 0, settled)}` : 'not in the history yet';
  return `${at}  ${bytes(written)} in ${count(data.records[bucket] ?? 0)} writes, ${stored}`;
}

export function Stage({ state }: { state: TimelineState }) {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const painter = useRef<Painter | null>(null);
  const width = useMemo(() => signal(0), [state]);
  const heat = state.heat.value;
  const layout = layoutOf(width.value || 800, heat);
  const current = useRef(layout);
  current.current = layout;
  useEffect(() => {
    const [element, surface] = [frame.current, canvas.current];
    if (!element || !surface) return undefined;
    const measure = () => {
      width.value = element.clientWidth;
      state.width.value = layoutOf(element.clientWidth, heat).plot;
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    const pointers = new Pointers(element, state, () => current.current);
    painter.current = new Painter(surface, state, () => current.current);
    return () => {
      observer.disconnect();
      pointers.dispose();
      painter.current?.dispose();
    };
  }, [state]);
  const look = (event: PointerEvent) => {
    const box = event.currentTarget as HTMLElement;
    const { left, top } = box.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const hit = painter.current?.hits.find(
      (sign) => Math.abs(sign.x - x) < NEAR && Math.abs(sign.y - y) < 12,
    );
    pointed.value = hit ? `${clockTime(hit.time)}  ${hit.text}` : describe(state, layout, x);
  };
  const leave = () => {
    pointed.value = '';
  };
  return (
    <div
      ref={frame}
      class="stage"
      style={{ height: `${layout.height}px` }}
      onPointerMove={look}
      onPointerLeave={leave}
    >
      <canvas
        ref={canvas}
        role="img"
        aria-label="Bytes written over time. The playhead reads the values of a moment."
      />
      <SecondHandle state={state} layout={layout} />
      <Playhead state={state} layout={layout} />
    </div>
  );
}
