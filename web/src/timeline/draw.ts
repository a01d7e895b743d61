/** Draws the window: bars, heat map, axis, lanes, gaps, and the edge of the history. */

import { duration } from '../lib/time';
import { ticksOf } from './axis';
import { drawBars, highestRate, type Part, partsOf } from './bars';
import type { TimelineData } from './data';
import { drawHeat } from './heat';
import { drawLanes, type Hit } from './lanes';
import type { Layout } from './layout';
import { hatch, type Palette } from './palette';
import { type Span, toX } from './scale';

export interface Scene {
  span: Span;
  detail: TimelineData | null;
  whole: TimelineData | null;
  layout: Layout;
  palette: Palette;
  /** The rate at the full height of the bars. It follows the highest bar in a short motion. */
  top: number;
}

/** Makes a canvas as large as its place on this screen, and clears it. */
export function prepare(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext('2d');
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  context?.clearRect(0, 0, width, height);
  return context;
}

/** The rate that the bars' height should stand for. */
export function topOf(scene: Omit<Scene, 'top'>): number {
  return highestRate(partsOf(scene.span, scene.detail, scene.whole)) || 1;
}

/** Draws a scene, and returns the signs that a person can point at. */
export function drawScene(canvas: HTMLCanvasElement, scene: Scene): Hit[] {
  const { layout, span, palette, detail, whole } = scene;
  const context = prepare(canvas, layout.width, layout.height);
  if (!context) return [];
  const place = { left: layout.left, plot: layout.plot, span };
  drawGrid(context, scene);
  const parts: Part[] = partsOf(span, detail, whole);
  context.save();
  context.beginPath();
  context.rect(layout.left, 0, layout.plot, layout.height);
  context.clip();
  drawBars(context, parts, { ...place, strip: layout.bars, top: scene.top }, palette);
  context.restore();
  if (layout.heat) drawHeat(context, detail, { ...place, strip: layout.heat }, palette);
  drawMissing(context, scene);
  const hits = drawLanes(context, detail ?? whole, layout, span, palette);
  drawSideNames(context, layout, palette);
  return hits;
}

function drawGrid(context: CanvasRenderingContext2D, { layout, span, palette }: Scene): void {
  const { axis, left, plot } = layout;
  context.font = `12px ${palette.font}`;
  context.textBaseline = 'middle';
  context.textAlign = 'left';
  for (const { time, label, major } of ticksOf(span, plot, 96)) {
    const x = Math.round(left + toX(time, span, plot));
    context.fillStyle = palette.line;
    context.fillRect(x, layout.bars.top, 1, axis.top + 6);
    const width = context.measureText(label).width;
    if (x + 4 + width > layout.width) continue;
    context.fillStyle = major ? palette.ink : palette.inkSoft;
    context.fillText(label, x + 5, axis.top + axis.height / 2 + 2);
  }
  context.fillStyle = palette.lineStrong;
  context.globalAlpha = 0.6;
  context.fillRect(left, layout.bars.top + layout.bars.height, plot, 1);
  context.globalAlpha = 1;
}

/** Hatches what can't be recovered: gaps, and the time before the history. */
function drawMissing(
  context: CanvasRenderingContext2D,
  { layout, span, palette, detail, whole }: Scene,
): void {
  const data = whole ?? detail;
  if (!data) return;
  const pattern = hatch(context, palette.line);
  const begins = data.begins ?? data.now;
  for (const gap of [{ from: span.from, to: begins }, ...data.gaps]) {
    const x = Math.max(layout.left, layout.left + toX(gap.from, span, layout.plot));
    const end = Math.min(layout.width, layout.left + toX(gap.to, span, layout.plot));
    if (end <= x) continue;
    context.fillStyle = pattern;
    context.fillRect(x, layout.bars.top, end - x, layout.axis.top - layout.bars.top);
  }
  drawEdge(context, data, layout, span, palette);
}

/** The oldest moment, and when it expires. */
function drawEdge(
  context: CanvasRenderingContext2D,
  data: TimelineData,
  layout: Layout,
  span: Span,
  palette: Palette,
): void {
  if (data.begins === null) return;
  const x = layout.left + toX(data.begins, span, layout.plot);
  if (x < layout.left || x > layout.width) return;
  context.fillStyle = palette.lineStrong;
  context.fillRect(Math.round(x), layout.bars.top, 1, layout.axis.top);
  const text = edgeText(data);
  const width = context.measureText(text).width;
  const at = Math.min(x + 6, layout.width - width - 4);
  context.fillStyle = palette.surface;
  context.globalAlpha = 0.85;
  context.fillRect(at - 3, layout.bars.top + 2, width + 6, 18);
  context.globalAlpha = 1;
  context.fillStyle = palette.inkSoft;
  context.fillText(text, at, layout.bars.top + 11);
}

export function edgeText(data: TimelineData): string {
  if (data.begins === null) return '';
  if (data.expires === null) return 'oldest moment';
  const left = data.expires - data.now;
  if (left > 1000) return `oldest moment, expires in ${duration(left)}`;
  // The edge moves on all the time.
  const age = data.now - data.begins;
  return data.retain !== null && age >= data.retain
    ? `moments older than ${duration(data.retain)} expire`
    : 'moments expire: the history is as large as it may be';
}

function drawSideNames(context: CanvasRenderingContext2D, layout: Layout, palette: Palette): void {
  if (layout.left === 0) return;
  context.fillStyle = palette.inkSoft;
  context.fillText('Written', 0, layout.bars.top + layout.bars.height - 10);
  if (!layout.heat) return;
  context.fillText('Start', 0, layout.heat.top + 8);
  context.fillText('of volume', 0, layout.heat.top + 24);
  context.fillText('End', 0, layout.heat.top + layout.heat.height - 8);
}
