// A made-up history of writes. It is a function of the volume and the time, so every zoom agrees.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A number from 0 to 1 for two numbers, the same every time. */
export function hash(a, b) {
  let h = Math.imul(a ^ 0x9e3779b9, 0x85ebca6b) ^ Math.imul(Math.floor(b) | 0, 0xc2b2ae35) ^ Math.imul((b / 2 ** 32) | 0, 0x27d4eb2f);
  h = Math.imul(h ^ (h >>> 15), 0x2c1b3c6d);
  h = Math.imul(h ^ (h >>> 12), 0x297a2d39);
  return ((h ^ (h >>> 15)) >>> 0) / 2 ** 32;
}

export function seedOf(text) {
  return [...text].reduce((sum, letter) => (Math.imul(sum, 31) + letter.charCodeAt(0)) | 0, 7);
}

/** Noise that changes smoothly, with one value for each `step` of time. */
function noise(seed, time, step) {
  const at = time / step;
  const part = at - Math.floor(at);
  const ease = part * part * (3 - 2 * part);
  return hash(seed, Math.floor(at)) * (1 - ease) + hash(seed, Math.floor(at) + 1) * ease;
}

/** Writes per second at a time. */
function rate(history, time) {
  if (isGap(history, time)) return 0;
  const hour = (time % DAY) / HOUR;
  const day = 0.35 + 0.65 * Math.exp(-(((hour - 14) / 5) ** 2));
  const waves = 0.25 + noise(history.seed, time, 11 * MINUTE) * 0.9 + noise(history.seed + 1, time, 47_000) * 0.5;
  const pause = noise(history.seed + 2, time, 3 * HOUR) < 0.14 ? 0.04 : 1;
  const checkpoint = time % (5 * MINUTE) < 14_000 ? 2.6 : 1;
  return history.writesPerSecond * day * waves * pause * checkpoint + (isIntrusion(history, time) ? 400 : 0);
}

/** The time in which something rewrote the volume with data that does not compress. */
function isIntrusion(history, time) {
  return history.intrusion !== undefined && time > history.intrusion && time < history.intrusion + 7 * MINUTE;
}

function isGap(history, time) {
  return history.gaps.some(([from, to]) => time >= from && time < to);
}

function compressibility(history, time) {
  if (isIntrusion(history, time)) return 0.97;
  return 0.05 + 0.22 * noise(history.seed + 3, time, 29 * MINUTE) + 0.12 * noise(history.seed + 4, time, 70_000);
}

/** The times of the writes in a span of at most some seconds, one per millisecond at most. */
export function writesIn(history, from, to) {
  const times = [];
  for (let cell = Math.floor(from); cell < to; cell += 1) {
    if (hash(history.seed + 9, cell) >= rate(history, cell) / 1000) continue;
    const time = cell + hash(history.seed + 10, cell);
    if (time >= from && time < to) times.push(time);
  }
  return times;
}

/** Writes in a bucket of any length. */
function recordsIn(history, from, length) {
  if (length <= 1000) return writesIn(history, from, from + length).length;
  const steps = length > 20_000 ? 4 : 2;
  let sum = 0;
  for (let step = 0; step < steps; step += 1) sum += rate(history, from + ((step + 0.5) * length) / steps);
  return Math.round((sum * length) / 1000 / steps);
}

/** The shortest round length (1, 2 or 5 times a power of ten) of at least `seconds`. */
export function roundLength(seconds) {
  const power = 10 ** Math.floor(Math.log10(seconds) + 1e-9);
  return [1, 2, 5, 10].map((factor) => Number((factor * power).toPrecision(12))).find((length) => length >= seconds * (1 - 1e-9));
}

/** Buckets of the window as the server returns them. */
export function bucketsOf(history, from, to, count, now) {
  const length = roundLength((to - from) / 1000 / count) * 1000;
  const number = Math.min(2000, Math.max(1, Math.ceil((to - from) / length - 1e-9)));
  const result = { bucket_seconds: length / 1000, records: [], written: [], stored: [], waiting: [] };
  for (let n = 0; n < number; n += 1) {
    const start = from + n * length;
    const end = Math.min(start + length, now);
    const begun = Math.max(start, history.begins);
    const records = end > begun ? recordsIn(history, begun, end - begun) : 0;
    const written = Math.round(records * history.bytesEach * (0.7 + 0.6 * hash(history.seed + 5, Math.floor(start / length))));
    const waiting = end > now - 4000 && end > begun ? Math.round(written * Math.min(1, (end - Math.max(begun, now - 4000)) / length)) : 0;
    result.records.push(records);
    result.written.push(written);
    result.waiting.push(waiting);
    result.stored.push(Math.round((written - waiting) * compressibility(history, start)));
  }
  return result;
}

/** Bytes of each bucket by part of the volume: a busy log, a drifting table, and noise. */
export function regionsOf(history, from, buckets, count) {
  const length = buckets.bucket_seconds * 1000;
  const written = buckets.written.flatMap((bytes, n) => {
    const time = from + n * length;
    const wide = isIntrusion(history, time);
    const center = (0.3 + 0.25 * Math.sin(time / (5 * HOUR))) * count;
    const weights = Array.from({ length: count }, (_, region) => {
      if (wide) return 1;
      const log = region < Math.max(1, count / 32) ? 14 : 0;
      return log + 6 * Math.exp(-(((region - center) / (count / 14)) ** 2)) + (hash(history.seed + region, Math.floor(time / length)) < 0.12 ? 1.2 : 0);
    });
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return weights.map((weight) => Math.round((bytes * weight) / total));
  });
  return { count, bytes_each: Math.ceil(history.size / count), written };
}

export { DAY, HOUR, MINUTE };
