// GET /volumes/{v}/timeline of the mock.

import { bucketsOf, DAY, HOUR, hash, MINUTE, regionsOf } from './history.mjs';
import { historyOf, position, rfc, timeOfLsn } from './world.mjs';

/** Points of a lane, or counts per bucket when there are more than 500 of them. */
function lane(points, from, buckets, toItem) {
  const length = buckets.bucket_seconds * 1000;
  if (points.length <= 500) return { count: points.length, items: points.map(toItem) };
  const counts = new Array(buckets.records.length).fill(0);
  for (const point of points) counts[Math.floor((point.time - from) / length)] += 1;
  return { count: points.length, items: [], counts };
}

/** Points at an interval, shifted by up to a fifth of it. */
function regular(history, from, to, every, seed) {
  const points = [];
  const first = Math.max(from, history.begins, to - 6000 * every);
  for (let n = Math.ceil(first / every); n * every < to; n += 1) {
    points.push({ time: n * every + every * 0.2 * hash(history.seed + seed, n) });
  }
  return points.filter(({ time }) => time >= from && time < to);
}

function readTime(text, now, fallback) {
  if (!text) return fallback;
  const ago = /^-(\d+(?:\.\d+)?)([smhd])$/.exec(text);
  if (ago) return now - Number(ago[1]) * { s: 1000, m: MINUTE, h: HOUR, d: DAY }[ago[2]];
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? '';
  return Date.parse(text.replace(/\.\d+/, '')) + Number(`0.${fraction || 0}`) * 1000;
}

const at = (point) => position(point.time);

function lanesOf(world, history, volume, from, to, buckets) {
  const inside = ({ time }) => time >= from && time < to;
  const snapshots = (world.snapshots.get(volume) ?? []).map(({ name, created }) => ({ name, time: Date.parse(created) })).filter(inside);
  const marks = history.marks.map(([name, time]) => ({ name, time })).filter(inside);
  const named = (point) => ({ name: point.name, ...at(point) });
  return {
    snapshots: lane(snapshots, from, buckets, named),
    marks: lane(marks, from, buckets, named),
    anchors: lane(regular(history, from, to, 17 * MINUTE, 31), from, buckets, at),
    flushes: lane(regular(history, from, to, 5000, 32), from, buckets, at),
  };
}

function spansOf(history) {
  const edges = [history.begins, ...history.gaps.flat()];
  const spans = [];
  for (let n = 0; n < edges.length; n += 2) spans.push({ from: position(edges[n]), to: edges[n + 1] ? position(edges[n + 1]) : null });
  return spans;
}

function dependentsOf(world, volume) {
  const made = world.volumes.flatMap(({ name, origin }) => {
    if (!origin?.startsWith(`${volume}@`)) return [];
    const moment = origin.slice(volume.length + 1);
    const snapshot = world.snapshots.get(volume)?.find((candidate) => candidate.name === moment);
    const time = snapshot?.created ?? rfc(timeOfLsn(Number(moment.replace('lsn:', ''))));
    return [{ kind: snapshot ? 'clone' : 'recovered', name, time }];
  });
  const views = world.views.filter((view) => view.volume === volume).map(({ address, time }) => ({ kind: 'view', name: address, time }));
  return [...made, ...views];
}

export function timeline(world, volume, query, size, retain) {
  const now = Date.now();
  const history = historyOf(world, volume, size);
  const from = readTime(query.get('from'), now, history.begins);
  const to = readTime(query.get('to'), now, now);
  const buckets = bucketsOf(history, from, to, Number(query.get('buckets') ?? 600), now);
  const regions = Number(query.get('regions') ?? 0);
  return {
    volume,
    now: rfc(now),
    from: rfc(from),
    to: rfc(to),
    begins: position(history.begins),
    ...buckets,
    ...(regions > 0 ? { regions: regionsOf(history, from, buckets, regions) } : {}),
    coarse: false,
    spans: spansOf(history),
    rollbacks: history.rollbacks.filter(({ at, to: moment }) => at >= from && moment < to).map(({ at, to: moment }) => ({ ...position(at), to: rfc(moment) })),
    // The volume grew in the middle of its history.
    sizes: [
      { time: rfc(history.begins), size: size / 2 },
      { time: rfc((history.begins + now) / 2), size },
    ],
    ...lanesOf(world, history, volume, from, to, buckets),
    dependents: dependentsOf(world, volume),
    retain_seconds: retain,
    expires: retain ? rfc(history.begins + retain * 1000) : undefined,
    clock: [],
  };
}
