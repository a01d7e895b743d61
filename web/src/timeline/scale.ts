/** A span of time across the width of a picture, and how zooming and panning change it. */

export interface Span {
  from: number;
  to: number;
}

export interface Limits {
  /** The earliest and latest time that the picture shows. */
  from: number;
  to: number;
}

/** The shortest span, in milliseconds. Below it, numbers can't tell two positions apart. */
export const SHORTEST = 0.05;

export const lengthOf = (span: Span) => span.to - span.from;

/** The distance of a time from the left edge, in pixels. */
export function toX(time: number, span: Span, width: number): number {
  return ((time - span.from) / lengthOf(span)) * width;
}

/** The time at a distance from the left edge. */
export function toTime(x: number, span: Span, width: number): number {
  return span.from + (x / width) * lengthOf(span);
}

/** The span inside the limits that is nearest to `span`. Its length stays, unless it is too long or too short. */
export function clamped(span: Span, limits: Limits): Span {
  const longest = Math.max(lengthOf(limits), SHORTEST);
  const length = Math.min(Math.max(lengthOf(span), SHORTEST), longest);
  const middle = (span.from + span.to) / 2;
  const from = lengthOf(span) === length ? span.from : middle - length / 2;
  const start = Math.max(limits.from, Math.min(from, limits.to - length));
  return { from: start, to: start + length };
}

/** The span with its length multiplied by `factor`, while the time `around` keeps its place. */
export function zoomed(span: Span, factor: number, around: number, limits: Limits): Span {
  const length = Math.min(Math.max(lengthOf(span) * factor, SHORTEST), Math.max(lengthOf(limits), SHORTEST));
  const share = (around - span.from) / lengthOf(span);
  const from = around - share * length;
  return clamped({ from, to: from + length }, limits);
}

/** The span moved by a time. */
export function panned(span: Span, by: number, limits: Limits): Span {
  return clamped({ from: span.from + by, to: span.to + by }, limits);
}

/** A span that shows `time`: the same one if it already does, else one of the same length around it. */
export function showing(span: Span, time: number, limits: Limits): Span {
  if (time >= span.from && time <= span.to) return span;
  const half = lengthOf(span) / 2;
  return clamped({ from: time - half, to: time + half }, limits);
}
