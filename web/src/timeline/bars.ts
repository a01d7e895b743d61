/**
 * Bars of bytes written. The height is the square root of the rate, so that a quiet hour stays
 * visible beside a busy minute, and bars of different lengths can stand side by side.
 */

import { bucketAt, bucketStart, type TimelineData } from './data';
import type { Strip } from './layout';
import { type Palette, rampColour } from './palette';
import { type Span, toX } from './scale';

/** A part of a picture: the buckets that begin in a span. */
export interface Part {
  data: TimelineData;
  from: number;
  to: number;
}

/** Covers the window with the finest picture there is: the window's own, and the whole history around it. */
export function partsOf(span: Span, detail: TimelineData | null, whole: TimelineData | null): Part[] {
  if (!detail) return whole ? [{ data: whole, ...span }] : [];
  const parts: Part[] = [];
  const end = bucketStart(detail, detail.written.length);
  if (whole && span.from < detail.span.from)
    parts.push({ data: whole, from: span.from, to: Math.min(detail.span.from, span.to) });
  parts.push({ data: detail, from: Math.max(span.from, detail.span.from), to: Math.min(span.to, end) });
  if (whole && span.to > end) parts.push({ data: whole, from: Math.max(end, span.from), to: span.to });
  return parts.filter(({ from, to }) => to > from);
}

/** Calls `visit` for each bucket of a part that holds bytes. */
export function eachBucket(
  { data, from, to }: Part,
  visit: (bucket: number, start: number, bytes: number) => void,
): void {
  const last = Math.min(data.written.length - 1, bucketAt(data, to));
  for (let bucket = Math.max(0, bucketAt(data, from)); bucket <= last; bucket += 1) {
    const bytes = data.written[bucket] ?? 0;
    if (bytes > 0) visit(bucket, bucketStart(data, bucket), bytes);
  }
}

/** The highest rate of the parts, in bytes per millisecond. */
export function highestRate(parts: Part[]): number {
  let highest = 0;
  for (const part of parts) {
    eachBucket(part, (_bucket, _start, bytes) => {
      highest = Math.max(highest, bytes / part.data.bucket);
    });
  }
  return highest;
}

interface Place {
  strip: Strip;
  left: number;
  plot: number;
  span: Span;
  /** The rate at the strip's full height. */
  top: number;
}

export function drawBars(
  context: CanvasRenderingContext2D,
  parts: Part[],
  place: Place,
  palette: Palette,
): void {
  for (const part of parts) drawPart(context, part, place, palette);
}

function drawPart(context: CanvasRenderingContext2D, part: Part, place: Place, palette: Palette): void {
  const { data } = part;
  const { strip, left, plot, span } = place;
  const room = strip.height - 26;
  const bottom = strip.top + strip.height;
  const wide = (data.bucket / (span.to - span.from)) * plot;
  // Bars that are wider than this would look like blocks, so single writes keep a slim shape.
  const gap = wide > 3 ? 1 : 0;
  eachBucket(part, (bucket, start, bytes) => {
    const x = left + toX(Math.max(start, part.from), span, plot);
    const end = left + toX(Math.min(start + data.bucket, part.to), span, plot);
    const height = Math.max(1.5, Math.sqrt(Math.min(1, bytes / data.bucket / place.top)) * room);
    const width = Math.max(1, end - x - gap);
    const waiting = data.waiting[bucket] ?? 0;
    const share = Math.min(1, waiting / bytes);
    context.fillStyle = rampColour(palette, data.stored[bucket] ?? 0, bytes - waiting);
    if (share < 1) context.fillRect(x, bottom - height * (1 - share), width, height * (1 - share));
    if (share > 0) {
      context.fillStyle = palette.aFaint;
      context.fillRect(x, bottom - height, width, height * share);
    }
  });
}
