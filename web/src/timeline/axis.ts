/**
 * Where a time axis has ticks, and how they are called. Ticks are round in the browser's time zone.
 */

import { clockTime, DAY, HOUR, MINUTE, monthOf, SECOND, shortDay } from '../lib/time';
import { lengthOf, type Span } from './scale';

export interface Tick {
  time: number;
  label: string;
  /** A tick that begins a day, or where a shorter unit begins anew. Its label is stronger. */
  major: boolean;
}

const LONG_STEPS = [
  SECOND,
  2 * SECOND,
  5 * SECOND,
  10 * SECOND,
  15 * SECOND,
  30 * SECOND,
  MINUTE,
  2 * MINUTE,
  5 * MINUTE,
  10 * MINUTE,
  15 * MINUTE,
  30 * MINUTE,
  HOUR,
  2 * HOUR,
  3 * HOUR,
  6 * HOUR,
  12 * HOUR,
  DAY,
  2 * DAY,
  7 * DAY,
  14 * DAY,
  30 * DAY,
  90 * DAY,
  365 * DAY,
];

/** The shortest round step of at least `least` milliseconds. */
export function stepOf(least: number): number {
  if (least <= SECOND / 2) {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999) ?? SECOND;
  }
  return LONG_STEPS.find((step) => step >= least) ?? 365 * DAY;
}

function offsetAt(time: number): number {
  return new Date(time).getTimezoneOffset() * MINUTE;
}

/** The ticks of a span, at least `spacing` pixels apart. */
export function ticksOf(span: Span, width: number, spacing = 90): Tick[] {
  const step = stepOf((lengthOf(span) * spacing) / width);
  if (step >= 30 * DAY) return monthTicks(span, Math.max(1, Math.round(step / (30 * DAY))));
  const ticks: Tick[] = [];
  const offset = offsetAt(span.from);
  // A count instead of a sum keeps the error of short steps from growing along the axis.
  const first = Math.ceil((span.from - offset) / step - 1e-6);
  for (let n = 0; n < 500; n += 1) {
    const plain = (first + n) * step + offset;
    const time = step >= HOUR ? plain + offsetAt(plain) - offset : plain;
    if (time > span.to) break;
    ticks.push(labelled(time, step));
  }
  return ticks;
}

function labelled(time: number, step: number): Tick {
  const date = new Date(Math.round(time * 1000) / 1000);
  const midnight =
    step >= MINUTE && date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0;
  if (step >= DAY || midnight) return { time, label: shortDay(time), major: true };
  if (step >= MINUTE) return { time, label: clockTime(time).slice(0, 5), major: false };
  if (step >= SECOND) return { time, label: clockTime(time), major: date.getSeconds() === 0 };
  return fractional(time, step);
}

/** Below a second, only whole seconds have the full time; the others have what comes after it. */
function fractional(time: number, step: number): Tick {
  const micros = Math.round(time * 1000);
  const within = ((micros % 1e6) + 1e6) % 1e6;
  if (within === 0) return { time, label: clockTime(micros / 1000), major: true };
  if (step >= 1) return { time, label: `+${within / 1000} ms`, major: false };
  const inMillisecond = within % 1000;
  if (inMillisecond === 0) return { time, label: `+${within / 1000} ms`, major: true };
  return { time, label: `+${inMillisecond} µs`, major: false };
}

function monthTicks(span: Span, months: number): Tick[] {
  const ticks: Tick[] = [];
  const date = new Date(span.from);
  date.setHours(0, 0, 0, 0);
  date.setDate(1);
  for (let n = 0; n < 500 && date.getTime() <= span.to; n += 1) {
    if (date.getTime() >= span.from)
      ticks.push({ time: date.getTime(), label: monthOf(date.getTime()), major: date.getMonth() === 0 });
    date.setMonth(date.getMonth() + months);
  }
  return ticks;
}

/** The decimals of a second that tell two neighbouring pixels apart. */
export function digitsOf(span: Span): number {
  const length = lengthOf(span);
  if (length > 20 * MINUTE) return 0;
  if (length > 5 * SECOND) return 3;
  return 6;
}

/**
 * The decimals of a time that a person reads to act on it: milliseconds at least, in any window.
 */
export function exactDigits(span: Span): number {
  return Math.max(3, digitsOf(span));
}
