/**
 * Times in the console are numbers: milliseconds since 1970 in UTC, with a fraction. A number of
 * today's size has room for a quarter of a microsecond, which is enough to tell two writes apart.
 */

export const SECOND = 1000;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

const MONTHS = 'January February March April May June July August September October November December'.split(
  ' ',
);

/**
 * The milliseconds of an RFC 3339 time. `Date.parse` alone would lose what is below a millisecond.
 */
export function parseTime(text: string): number {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? '';
  const whole = Date.parse(text.replace(/\.\d+/, ''));
  return fraction ? whole + Number(`0.${fraction}`) * SECOND : whole;
}

/**
 * The first whole microsecond at or after an RFC 3339 time. The server's times have nanoseconds,
 * and a request with a time that is a little too early would miss what happened at it.
 */
export function parseTimeUp(text: string): number {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? '';
  const micros = Number(fraction.slice(0, 6).padEnd(6, '0')) + (/[1-9]/.test(fraction.slice(6)) ? 1 : 0);
  return Date.parse(text.replace(/\.\d+/, '')) + micros / 1000;
}

/** A time as RFC 3339 in UTC, with up to six digits of the second. */
export function toRfc3339(time: number): string {
  const micros = Math.round(time * SECOND);
  const seconds = Math.floor(micros / 1e6);
  const fraction = String(micros - seconds * 1e6)
    .padStart(6, '0')
    .replace(/0+$/, '');
  const text = new Date(seconds * SECOND).toISOString().slice(0, 19);
  return fraction ? `${text}.${fraction}Z` : `${text}Z`;
}

function two(value: number): string {
  return String(value).padStart(2, '0');
}

/** Hours, minutes and seconds in the browser's time zone, with `digits` decimals of the second. */
export function clockTime(time: number, digits = 0): string {
  const date = new Date(Math.floor(time));
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return text + fractionOf(time, digits);
}

function fractionOf(time: number, digits: number): string {
  if (digits === 0) return '';
  const within = (((time % SECOND) + SECOND) % SECOND) / SECOND;
  const scaled = Math.min(Math.floor(within * 10 ** digits + 1e-4), 10 ** digits - 1);
  return `.${String(scaled).padStart(digits, '0')}`;
}

/** Day and month in the browser's time zone: "22 November". */
export function dayOf(time: number): string {
  const date = new Date(time);
  return `${date.getDate()} ${MONTHS[date.getMonth()]}`;
}

/** Day and short month: "22 Nov". */
export function shortDay(time: number): string {
  const date = new Date(time);
  return `${date.getDate()} ${(MONTHS[date.getMonth()] ?? '').slice(0, 3)}`;
}

/** Short month and year: "Nov 2026". */
export function monthOf(time: number): string {
  const date = new Date(time);
  return `${(MONTHS[date.getMonth()] ?? '').slice(0, 3)} ${date.getFullYear()}`;
}

/** Date and time in the browser's time zone, to the second: "22 Nov 2026 10:41:30". */
export function localTime(time: number, digits = 0): string {
  return `${shortDay(time)} ${new Date(time).getFullYear()} ${clockTime(time, digits)}`;
}

/**
 * What another clock shows at a time, in seconds: "02:30", with the day if it is another one here.
 */
export function shownTime(shown: number, time: number): string {
  const there = new Date(shown * SECOND);
  const clock = there.toISOString().slice(11, 16);
  if (there.getUTCDate() === new Date(time).getDate()) return clock;
  return `${there.getUTCDate()} ${(MONTHS[there.getUTCMonth()] ?? '').slice(0, 3)} ${clock}`;
}

/** The offset of the browser's time zone at a time: "UTC+01:00". */
export function zoneOffset(time: number): string {
  const minutes = -new Date(time).getTimezoneOffset();
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? '−' : '+'}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

/** Date and time in UTC: "2026-11-22 09:41:30Z". */
export function utcTime(time: number, digits = 0): string {
  return `${new Date(Math.floor(time)).toISOString().slice(0, 19).replace('T', ' ')}${fractionOf(time, digits)}Z`;
}

const UNITS: [number, string][] = [
  [DAY, 'd'],
  [HOUR, 'h'],
  [MINUTE, 'min'],
  [SECOND, 's'],
];

/** A duration in its two largest units: "3 h 12 min", "12 s", "40 ms". */
export function duration(milliseconds: number): string {
  const size = Math.abs(milliseconds);
  if (size < SECOND) return shortDuration(size);
  const seconds = Math.round(size / SECOND) * SECOND;
  const index = UNITS.findIndex(([unit]) => seconds >= unit);
  const [unit, name] = UNITS[index] ?? [SECOND, 's'];
  const count = Math.floor(seconds / unit);
  const below = UNITS[index + 1];
  const rest = below && count < 10 ? Math.floor((seconds % unit) / below[0]) : 0;
  return below && rest > 0 ? `${count} ${name} ${rest} ${below[1]}` : `${count} ${name}`;
}

function shortDuration(milliseconds: number): string {
  if (milliseconds >= 1) return `${round(milliseconds)} ms`;
  return `${round(milliseconds * 1000)} µs`;
}

function round(value: number): string {
  return String(value >= 10 ? Math.round(value) : Number(value.toPrecision(2)));
}

/** The distance of a time from now: "3 h 12 min ago", "in 6 h", "now". */
export function relative(time: number, now: number): string {
  const distance = time - now;
  if (Math.abs(distance) < SECOND) return 'now';
  return distance < 0 ? `${duration(distance)} ago` : `in ${duration(distance)}`;
}

/**
 * The time that a person typed, in the browser's time zone, or null. It takes `10:41`,
 * `yesterday 10:41`, `2026-11-22 10:41:30.5`, `-5m`, `5m ago`, `now` and RFC 3339.
 */
export function typedTime(text: string, now: number): number | null {
  const input = text.trim().toLowerCase();
  if (input === 'now') return now;
  const ago = /^(?:-\s*(\d+(?:\.\d+)?)\s*([smhdw])|(\d+(?:\.\d+)?)\s*([smhdw]) ago)$/.exec(input);
  if (ago) return now - Number(ago[1] ?? ago[3]) * unitOf(ago[2] ?? ago[4] ?? 's');
  if (/^\d{4}-\d\d-\d\dt.*(z|[+-]\d\d:\d\d)$/.test(input)) return finite(parseTime(text.trim()));
  return wallTime(input, now);
}

function unitOf(letter: string): number {
  return { s: SECOND, m: MINUTE, h: HOUR, d: DAY, w: 7 * DAY }[letter] ?? SECOND;
}

function finite(time: number): number | null {
  return Number.isFinite(time) ? time : null;
}

function wallTime(input: string, now: number): number | null {
  const match = /^(?:(\d{4}-\d\d-\d\d|today|yesterday)[ t])?(\d{1,2}):(\d\d)(?::(\d\d)(\.\d+)?)?$/.exec(
    input,
  );
  if (!match) return null;
  const [, day, hours, minutes, seconds = '0', fraction = ''] = match;
  const date = new Date(now);
  if (day?.includes('-')) {
    const [year, month, dayOfMonth] = day.split('-').map(Number);
    date.setFullYear(year ?? 0, (month ?? 1) - 1, dayOfMonth);
  } else if (day === 'yesterday') date.setDate(date.getDate() - 1);
  date.setHours(Number(hours), Number(minutes), Number(seconds), 0);
  const time = date.getTime() + Number(`0${fraction}`) * SECOND;
  return !day && time > now ? time - DAY : finite(time);
}
