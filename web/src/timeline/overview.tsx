/** The strip with the whole history. Its brush is the window: a person drags it, or its edges. */

import { effect } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { serverNow } from '../lib/clock';
import { themeChanges } from '../lib/theme';
import { ticksOf } from './axis';
import { drawBars, highestRate } from './bars';
import { prepare } from './draw';
import { hatch, type Palette, readPalette } from './palette';
import { lengthOf, type Span, toTime, toX } from './scale';
import type { TimelineState } from './state';

const HEIGHT = 64;
const BARS = 44;
const HANDLE = 7;

/** The span of the overview: the whole history, to now. */
function overviewSpan(state: TimelineState): Span {
  const { from, to } = state.limits();
  return { from, to: Math.max(to, serverNow()) };
}

function draw(canvas: HTMLCanvasElement, state: TimelineState, palette: Palette): void {
  const width = canvas.clientWidth;
  const context = prepare(canvas, width, HEIGHT);
  const whole = state.whole.value;
  const window = state.span.value;
  if (!context || !whole || width === 0) return;
  const span = overviewSpan(state);
  const part = [{ data: whole, ...span }];
  const strip = { top: -18, height: BARS + 18 };
  context.fillStyle = palette.sunken;
  context.fillRect(0, 0, width, BARS);
  drawBars(context, part, { strip, left: 0, plot: width, span, top: highestRate(part) || 1 }, palette);
  context.fillStyle = hatch(context, palette.lineStrong);
  for (const gap of [{ from: span.from, to: whole.begins ?? span.to }, ...whole.gaps]) {
    context.fillRect(
      toX(gap.from, span, width),
      0,
      toX(gap.to, span, width) - toX(gap.from, span, width),
      BARS,
    );
  }
  drawLabels(context, span, width, palette);
  drawBrush(context, [toX(window.from, span, width), toX(window.to, span, width)], width, palette);
  drawMoments(context, state, span, width, palette);
}

function drawLabels(context: CanvasRenderingContext2D, span: Span, width: number, palette: Palette): void {
  context.font = `12px ${palette.font}`;
  context.textBaseline = 'middle';
  for (const { time, label } of ticksOf(span, width, 80)) {
    const x = toX(time, span, width);
    context.fillStyle = palette.line;
    context.fillRect(Math.round(x), 0, 1, BARS + 4);
    context.fillStyle = palette.inkSoft;
    if (x + context.measureText(label).width + 4 < width) context.fillText(label, x + 4, BARS + 11);
  }
}

function drawBrush(
  context: CanvasRenderingContext2D,
  [from, to]: [number, number],
  width: number,
  palette: Palette,
): void {
  const left = Math.max(0, Math.min(from, width - 4));
  const right = Math.min(width, Math.max(to, left + 4));
  context.fillStyle = palette.paper;
  context.globalAlpha = 0.62;
  context.fillRect(0, 0, left, BARS);
  context.fillRect(right, 0, width - right, BARS);
  context.globalAlpha = 1;
  context.strokeStyle = palette.a;
  context.lineWidth = 1.5;
  context.strokeRect(left + 0.75, 0.75, right - left - 1.5, BARS - 1.5);
  context.fillStyle = palette.a;
  if (right - left < 24) return;
  context.fillRect(left, BARS / 2 - 8, 4, 16);
  context.fillRect(right - 4, BARS / 2 - 8, 4, 16);
}

function drawMoments(
  context: CanvasRenderingContext2D,
  state: TimelineState,
  span: Span,
  width: number,
  palette: Palette,
): void {
  for (const time of [state.moment.value, state.second.value]) {
    if (time === null) continue;
    context.fillStyle = palette.ink;
    context.fillRect(Math.round(toX(time, span, width)) - 1, 0, 2, BARS);
  }
}

/** What a drag that begins at `x` changes: the window, or one of its edges. */
function dragOf(state: TimelineState, x: number, width: number): (dx: number) => void {
  const span = overviewSpan(state);
  const window = state.span.peek();
  const [from, to] = [toX(window.from, span, width), toX(window.to, span, width)];
  const perPixel = lengthOf(span) / width;
  const least = perPixel * 4;
  const wide = to - from > 3 * HANDLE;
  if (wide && Math.abs(x - from) < HANDLE) {
    return (dx) =>
      state.setSpan({ from: Math.min(window.from + dx * perPixel, window.to - least), to: window.to });
  }
  if (wide && Math.abs(x - to) < HANDLE) {
    return (dx) =>
      state.setSpan({ from: window.from, to: Math.max(window.to + dx * perPixel, window.from + least) });
  }
  // Outside of the window, the window jumps to the pointer first.
  const shift =
    x < from - HANDLE || x > to + HANDLE ? toTime(x, span, width) - (window.from + window.to) / 2 : 0;
  return (dx) =>
    state.setSpan({ from: window.from + shift + dx * perPixel, to: window.to + shift + dx * perPixel });
}

export function Overview({ state }: { state: TimelineState }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    let palette = readPalette(element);
    let frame = 0;
    const redraw = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => draw(element, state, palette));
    };
    const stop = effect(() => {
      void themeChanges.value;
      void [state.whole.value, state.span.value, state.moment.value, state.second.value];
      palette = readPalette(element);
      redraw();
    });
    const observer = new ResizeObserver(redraw);
    observer.observe(element);
    return () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
      stop();
    };
  }, [state]);
  const begin = (event: PointerEvent) => {
    const element = event.currentTarget as HTMLCanvasElement;
    const box = element.getBoundingClientRect();
    const start = event.clientX - box.left;
    const drag = dragOf(state, start, box.width);
    element.setPointerCapture(event.pointerId);
    drag(0);
    element.onpointermove = (move) => drag(move.clientX - box.left - start);
    element.onpointerup = () => {
      element.onpointermove = null;
    };
  };
  return (
    <canvas
      ref={canvas}
      class="overview"
      onPointerDown={begin}
      aria-label="The whole history, with the window as a frame. The keys of the playhead move the window, too."
      role="img"
    />
  );
}
