/** Lanes below the axis: snapshots, marks, branches, flushes and anchors, each with its own sign. */

import { duration } from '../lib/time';
import { bucketStart, type LaneData, type Point, type TimelineData } from './data';
import { LANES, type Layout, type Strip } from './layout';
import type { Palette } from './palette';
import { type Span, toX } from './scale';

type Sign = (context: CanvasRenderingContext2D, x: number, y: number) => void;

/** A sign on the canvas that a person can point at. */
export interface Hit {
  x: number;
  y: number;
  time: number;
  text: string;
}

interface Pen {
  context: CanvasRenderingContext2D;
  layout: Layout;
  span: Span;
  palette: Palette;
  hits: Hit[];
}

const diamond: Sign = (context, x, y) => {
  context.beginPath();
  context.moveTo(x, y - 5);
  context.lineTo(x + 5, y);
  context.lineTo(x, y + 5);
  context.lineTo(x - 5, y);
  context.closePath();
  context.fill();
};

const flag: Sign = (context, x, y) => {
  context.fillRect(x - 0.75, y - 6, 1.5, 12);
  context.beginPath();
  context.moveTo(x, y - 6);
  context.lineTo(x + 8, y - 3);
  context.lineTo(x, y);
  context.closePath();
  context.fill();
};

/** A line that leaves upwards to the right, with a dot at its end. */
const branch: Sign = (context, x, y) => {
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x, y - 10);
  context.quadraticCurveTo(x, y + 1, x + 9, y + 1);
  context.stroke();
  context.beginPath();
  context.arc(x + 11, y + 1, 3, 0, 7);
  context.fill();
};

const tick: Sign = (context, x, y) => context.fillRect(x - 0.5, y - 5, 1, 10);
const point: Sign = (context, x, y) => context.fillRect(x - 1, y - 2, 2, 4);

export function drawLanes(
  context: CanvasRenderingContext2D,
  detail: TimelineData | null,
  layout: Layout,
  span: Span,
  palette: Palette,
): Hit[] {
  const pen: Pen = { context, layout, span, palette, hits: [] };
  drawNames(pen);
  if (!detail) return pen.hits;
  const [snapshots, marks, branches, flushes, anchors] = layout.lanes as [Strip, Strip, Strip, Strip, Strip];
  drawLane(pen, detail, detail.snapshots, snapshots, diamond, palette.a, 'Snapshot');
  drawLane(pen, detail, detail.marks, marks, flag, palette.b, 'Mark');
  drawBranches(pen, detail, branches);
  drawLane(pen, detail, detail.flushes, flushes, tick, palette.lineStrong, 'Flush');
  drawLane(pen, detail, detail.anchors, anchors, point, palette.lineStrong, 'Anchor');
  return pen.hits;
}

function drawNames({ context, layout, palette }: Pen): void {
  context.textBaseline = 'middle';
  context.font = `12px ${palette.font}`;
  for (const [index, strip] of layout.lanes.entries()) {
    context.fillStyle = palette.line;
    context.fillRect(layout.left, strip.top, layout.plot, 1);
    if (layout.left === 0) continue;
    context.fillStyle = palette.inkSoft;
    context.fillText(LANES[index] ?? '', 0, strip.top + strip.height / 2);
  }
}

function placeOf({ layout, span }: Pen, time: number): number {
  return layout.left + toX(time, span, layout.plot);
}

/** Whether a sign belongs to the window. One before it would stand among the names of the lanes. */
function isInSight({ layout }: Pen, x: number): boolean {
  return x >= layout.left && x <= layout.width + 4;
}

function drawLane(
  pen: Pen,
  data: TimelineData,
  lane: LaneData,
  strip: Strip,
  sign: Sign,
  colour: string,
  kind: string,
): void {
  if (lane.counts) {
    drawCounts(pen, data, lane.counts, strip, colour);
    return;
  }
  const y = strip.top + strip.height / 2;
  pen.context.fillStyle = colour;
  for (const [index, item] of lane.points.entries()) {
    const x = placeOf(pen, item.time);
    if (!isInSight(pen, x)) continue;
    sign(pen.context, x, y);
    pen.hits.push({ x, y, time: item.time, text: item.name ? `${kind} ${item.name}` : kind });
    if (item.name) drawLabel(pen, item, lane.points[index + 1], x, y);
  }
}

/** The name of a point, if there is room for it before the next point. */
function drawLabel(pen: Pen, item: Point, next: Point | undefined, x: number, y: number): void {
  const { context, palette, layout } = pen;
  const room = Math.min(next ? placeOf(pen, next.time) : layout.width, layout.width) - x - 18;
  if (room < 24 || context.measureText(item.name).width > room) return;
  const colour = context.fillStyle;
  context.fillStyle = palette.inkSoft;
  context.fillText(item.name, x + 11, y + 0.5);
  context.fillStyle = colour;
}

/** Where there are too many points to list, the lane shows how many there are by its strength. */
function drawCounts(pen: Pen, data: TimelineData, counts: number[], strip: Strip, colour: string): void {
  const { context, span, layout } = pen;
  const most = counts.reduce((highest, count) => Math.max(highest, count), 1);
  const width = Math.max(1, (data.bucket / (span.to - span.from)) * layout.plot - 0.5);
  context.fillStyle = colour;
  for (const [bucket, count] of counts.entries()) {
    const x = placeOf(pen, bucketStart(data, bucket));
    if (count === 0 || x > layout.width || x + width < layout.left) continue;
    context.globalAlpha = 0.25 + 0.6 * (count / most);
    const start = Math.max(x, layout.left);
    context.fillRect(start, strip.top + 8, x + width - start, strip.height - 15);
  }
  context.globalAlpha = 1;
}

const RELATION = { clone: 'Clone', recovered: 'Recovered volume', view: 'View' };

/** Volumes that begin at a moment, and lines of writes that ended in a rollback. */
function drawBranches(pen: Pen, data: TimelineData, strip: Strip): void {
  const { context, palette, layout } = pen;
  const y = strip.top + strip.height / 2;
  const signs = [...data.dependents, ...data.rollbacks].map(({ time }) => placeOf(pen, time));
  for (const { kind, name, time } of data.dependents) {
    const x = placeOf(pen, time);
    if (!isInSight(pen, x)) continue;
    context.fillStyle = palette.a;
    context.strokeStyle = palette.a;
    branch(context, x, y);
    pen.hits.push({ x: x + 8, y, time, text: `${RELATION[kind]} ${name} begins here` });
    context.fillStyle = palette.inkSoft;
    const next = Math.min(layout.width + 10, ...signs.filter((other) => other > x));
    if (x + 32 + context.measureText(name).width < next) context.fillText(name, x + 19, y + 1.5);
  }
  for (const { time, to } of data.rollbacks) {
    const x = placeOf(pen, time);
    drawRollback(pen, { x, y }, to === null ? x - SHORT : placeOf(pen, to));
    if (!isInSight(pen, x)) continue;
    const back = to === null ? 'to an earlier moment' : `by ${duration(time - to)}`;
    pen.hits.push({ x, y, time, text: `Rollback: the volume went back ${back}` });
  }
}

/** Length of the line of a rollback whose end is not known, in pixels. */
const SHORT = 10;

/**
 * Draws a line over the writes that a rollback took back, with an arrow at the moment to which the
 * volume went. Draws a dashed line through the bars at the rollback.
 */
function drawRollback(pen: Pen, { x, y }: { x: number; y: number }, to: number): void {
  const { context, palette, layout } = pen;
  const height = y - 9;
  const [begin, end] = [Math.min(x, layout.width), Math.max(to, layout.left)];
  if (begin < layout.left || end > layout.width) return;
  context.strokeStyle = palette.b;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(begin, x === begin ? y + 5 : height);
  context.lineTo(begin, height);
  context.lineTo(end, height);
  if (to >= layout.left) {
    context.moveTo(end + 4, height - 3);
    context.lineTo(end, height);
    context.lineTo(end + 4, height + 3);
  }
  context.stroke();
  if (!isInSight(pen, x)) return;
  context.setLineDash([3, 3]);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x + 0.5, layout.bars.top + 20);
  context.lineTo(x + 0.5, layout.axis.top);
  context.stroke();
  context.setLineDash([]);
}
