/** Numbers as people read them. Sizes use the units of the command line: KiB is 1024 B. */

const SIZES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** A number with three significant digits and no exponent. */
function threeDigits(value: number): string {
  if (value >= 100) return String(Math.round(value));
  return String(Number(value.toPrecision(3)));
}

/** A size in bytes: "10 GiB", "55.7 GiB", "0 B". */
export function bytes(count: number): string {
  let value = Math.abs(count);
  let unit = 0;
  while (value >= 1023.5 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const sign = count < 0 ? '−' : '';
  return `${sign}${unit === 0 ? Math.round(value) : threeDigits(value)} ${SIZES[unit]}`;
}

/** Bytes per second. */
export function byteRate(count: number): string {
  return `${bytes(count)}/s`;
}

/** A count with thin spaces between thousands: "12 345". */
export function count(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

/** A rate of operations: "0", "0.4", "1 234". */
export function perSecond(value: number): string {
  return value > 0 && value < 10 ? String(Number(value.toPrecision(2))) : count(value);
}

/** A share of a whole: "37 %". */
export function percent(part: number, whole: number): string {
  if (whole <= 0) return '0 %';
  const share = (part / whole) * 100;
  if (share > 0 && share < 1) return '<1 %';
  return `${share > 99 && share < 100 ? 99 : Math.round(share)} %`;
}

/** A latency in seconds: "340 µs", "1.2 ms", "–" without a value. */
export function latency(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 0.001) return `${threeDigits(Math.round(seconds * 1e6))} µs`;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  return `${Number(seconds.toPrecision(2))} s`;
}

/** "1 snapshot", "3 snapshots". */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/**
 * The bytes of a size that a person typed, or null: `10G`, `10 GiB`, `1.5T`, `4096`. As on the
 * command line, `GB` is 1000³ and `G` and `GiB` are 1024³. The result is a multiple of 4 KiB for `GB`.
 */
export function parseSize(text: string): number | null {
  const match = /^(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?b)?$/i.exec(text.trim());
  if (!match) return null;
  const power = ' kmgtp'.indexOf((match[2] || ' ').toLowerCase());
  const decimal = match[2] !== '' && match[3]?.toLowerCase() === 'b';
  const size = Number(match[1]) * (decimal ? 1000 : 1024) ** power;
  return decimal ? Math.floor(size / 4096) * 4096 : Math.round(size);
}

/** The seconds of a time that a person typed, or null: `90s`, `30m`, `12h`, `7d`, `4w`. */
export function parseSeconds(text: string): number | null {
  const match = /^(\d+(?:\.\d+)?)\s*([smhdw]?)$/i.exec(text.trim());
  if (!match) return null;
  const unit = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 }[(match[2] || 's').toLowerCase()] ?? 1;
  return Math.round(Number(match[1]) * unit);
}

/** Seconds in the largest unit that divides them, as the command line takes them: "7d", "90s". */
export function secondsArgument(seconds: number): string {
  for (const [unit, letter] of [
    [86400, 'd'],
    [3600, 'h'],
    [60, 'm'],
  ] as const) {
    if (seconds >= unit && seconds % unit === 0) return `${seconds / unit}${letter}`;
  }
  return `${seconds}s`;
}

/** Bytes in the largest unit that divides them, as the command line takes them: "10G", "4096". */
export function sizeArgument(size: number): string {
  for (const [power, letter] of [
    [4, 'T'],
    [3, 'G'],
    [2, 'M'],
    [1, 'K'],
  ] as const) {
    if (size > 0 && size % 1024 ** power === 0) return `${size / 1024 ** power}${letter}`;
  }
  return String(size);
}
