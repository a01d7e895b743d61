// Routes whose answers the mock makes up as functions of the time: timeline, rates, tasks, views.

import { ACCESS } from './access.mjs';
import { FILES } from './files.mjs';
import { HOUR, hash, MINUTE, seedOf } from './history.mjs';
import { Refusal } from './refusal.mjs';
import { timeline } from './timeline.mjs';
import { addEvent, historyOf, lsnOf, rfc, START } from './world.mjs';

const GIB = 1024 ** 3;
/** Rates of a volume in one second of the mock's time. */
function ratesAt(name, time, clients) {
  const seed = seedOf(name);
  const second = Math.floor(time / 1000);
  const busy = clients > 0 ? 20 + 900 * hash(seed, 1) : 0;
  const wave = 0.5 + 0.4 * Math.sin(second / 23 + seed) + 0.5 * hash(seed, second);
  const [writes, reads] = [Math.round(busy * wave * 0.6), Math.round(busy * wave * (0.4 + 0.5 * hash(seed, second + 5)))];
  const slow = 1 + 0.6 * hash(seed, second + 9);
  return {
    reads,
    writes,
    flushes: Math.round(writes / 40),
    read_bytes: reads * 14_000,
    write_bytes: writes * 11_000,
    in_flight: Math.round(busy * wave * 0.004),
    read_p50: reads ? 0.00021 * slow : null,
    read_p99: reads ? 0.0016 * slow : null,
    write_p50: writes ? 0.00034 * slow : null,
    write_p99: writes ? 0.0024 * slow : null,
  };
}

function sumOf(all) {
  const sum = (field) => all.reduce((total, rates) => total + rates[field], 0);
  const worst = (field) => Math.max(...all.map((rates) => rates[field] ?? 0)) || null;
  return Object.fromEntries(Object.keys(ratesAt('x', 0, 1)).map((field) => [field, field.includes('_p') ? worst(field) : sum(field)]));
}

export function liveAt(volumes, time) {
  const each = Object.fromEntries(volumes.map(({ name, clients }) => [name, ratesAt(name, time, clients)]));
  return { time: rfc(time), pool: sumOf(Object.values(each)), volumes: each };
}

function activity(of, ratesOf) {
  const [interval, number] = of === '1h' ? [10, 360] : [1, 300];
  const now = Date.now();
  const points = Array.from({ length: number }, (_, n) => {
    const time = now - (number - n) * interval * 1000;
    return { time: rfc(time), ...ratesOf(time) };
  });
  return { interval_seconds: interval, points };
}

function tasks() {
  const since = (Date.now() - START) / 1000;
  const moved = Math.min(94 * GIB, 51 * GIB + since * 120 * 1024 ** 2);
  const task = { error: null, can_stop: true, state: 'running', rate: 120 * 1024 ** 2, seconds_left: null };
  const left = (124 * GIB - moved) / 120 / 1024 ** 2;
  return [
    { ...task, id: 'flatten:db-0914', kind: 'flatten', subject: 'db-0914', begun: rfc(START - 8 * MINUTE), done: moved, total: 124 * GIB, seconds_left: left },
    { ...task, id: 'scrub:pool', kind: 'scrub', subject: 'pool', begun: rfc(START - 3 * HOUR), done: 4300 * GIB, total: 7065 * GIB, seconds_left: 2 * 3600 },
    {
      ...task,
      id: 'drain:1',
      kind: 'drain',
      subject: '/dev/sdc',
      begun: rfc(START - HOUR),
      done: 204 * GIB,
      total: 1024 * GIB,
      rate: null,
      state: 'waiting',
      error: 'The other physical volumes have too little space.',
    },
  ];
}

function createView(world, volume, body, size) {
  const id = Math.floor(hash(world.views.length, Date.now()) * 2 ** 32)
    .toString(16)
    .padStart(8, '0');
  const time = /^\d{4}-/.test(body.moment) ? Date.parse(body.moment) : Date.now() - 60_000;
  const name = `${volume}@view-${id.slice(0, 4)}`;
  const view = {
    id,
    volume,
    name: body.name ?? null,
    address: name,
    created: rfc(Date.now()),
    lsn: lsnOf(time),
    time: rfc(time),
    expires: rfc(Date.now() + (body.lease_seconds ?? 3600) * 1000),
    clients: 0,
    size,
    nbd: [`nbd://storage.example/${name}`],
    iscsi: [`iscsi://storage.example/iqn.2026-01.org.hindcast:${name}/0`],
    commands: [
      { system: 'Linux', command: `nbd-client storage.example /dev/nbd0 -N ${name} -readonly` },
      { system: 'QEMU', command: `qemu-img info nbd://storage.example/${name}` },
      { system: 'Windows', command: `iscsicli QAddTarget iqn.2026-01.org.hindcast:${name}` },
    ],
  };
  world.views.push(view);
  addEvent(world, 'view-created', volume, `View ${name} of ${volume} was opened.`);
  return view;
}

function changed(volume, query, size) {
  const part = Math.ceil(size / 64);
  const parts = Array.from({ length: 64 }, (_, n) => ({
    offset: n * part,
    length: part,
    bytes: hash(seedOf(volume), n) < 0.3 ? Math.round(hash(n, 8) * 90e6) : 0,
  }));
  const ranges = parts.filter(({ bytes }) => bytes > 0).map(({ offset, bytes }) => ({ offset, length: Math.ceil(bytes / 4096) * 4096 }));
  const end = (name) => `${volume}@${query.get(name)}`;
  return {
    from: end('from'),
    to: end('to'),
    bytes: ranges.reduce((sum, { length }) => sum + length, 0),
    parts,
    ranges,
    partial: false,
  };
}

function viewById(world, id) {
  const view = world.views.find((candidate) => candidate.id === id);
  if (!view) throw new Refusal(404, 'not_found', `find view ${id}: there is none; it may have expired`);
  return view;
}

/** Entries of the audit: more than one page. */
const AUDITED = 2300;

function auditEntry(n) {
  const rows = [
    ['anna', 'user', 'admin', 'POST', '/api/v1/volumes/{volume}/marks', '/api/v1/volumes/db/marks', 201, { name: 'before-migration' }],
    ['jonas', 'user', 'operator', 'DELETE', '/api/v1/volumes/{name}', '/api/v1/volumes/mail', 403, null],
    ['backup', 'token', 'operator', 'POST', '/api/v1/snapshots', '/api/v1/snapshots', 201, { snapshots: [{ volume: 'db' }, { volume: 'db-log' }] }],
    ['anna', 'user', 'admin', 'PATCH', '/api/v1/volumes/{name}', '/api/v1/volumes/web-images', 200, { labels: { app: 'shop' } }],
    [null, null, null, 'POST', '/api/v1/session', '/api/v1/session', 401, { name: 'anna' }],
  ];
  const [who, kind, role, method, route, subject, status, asked] = rows[n % rows.length];
  return {
    time: rfc(START - (AUDITED - n) * 23 * MINUTE),
    who,
    kind,
    role,
    address: `10.0.4.${11 + (n % 4)}`,
    method,
    route,
    subject,
    asked,
    status,
    error: { 401: 'the name or the password is wrong', 403: 'the role operator may not delete volumes' }[status] ?? null,
    micros: Math.round(2000 + 30_000 * hash(3, n)),
    prev: n === 0 ? '0'.repeat(64) : 'ab'.repeat(32),
    at: `2026-11:${n}`,
  };
}

function audit({ query }) {
  const end = query.get('before') ? Number(query.get('before').split(':')[1]) : AUDITED;
  const all = Array.from({ length: end }, (_, n) => auditEntry(n));
  const [who, since] = [query.get('who'), Date.parse(query.get('since') ?? '1970-01-01T00:00:00Z')];
  return all.filter((entry) => (!who || entry.who === who) && Date.parse(entry.time) >= since).slice(-Number(query.get('limit') ?? 1000));
}

/** Routes with `{name}` parts, each a function of what the request has. */
export const MADE_UP = {
  'GET /volumes/{v}/timeline': async ({ world, v, query, volumeOf }) => {
    const volume = await volumeOf(v);
    return timeline(world, v, query, volume.size, volume.cdp?.retain_seconds ?? null);
  },
  'GET /volumes/{v}/activity': async ({ v, query, volumeOf }) => {
    const { clients } = await volumeOf(v);
    return activity(query.get('of'), (time) => ratesAt(v, time, clients));
  },
  'GET /activity': ({ world, query }) => activity(query.get('of'), (time) => liveAt(world.volumes.slice(0, 12), time).pool),
  'GET /volumes/{v}/changed': async ({ v, query, volumeOf }) => changed(v, query, (await volumeOf(v)).size),
  'POST /volumes/{v}/views': async ({ world, v, body, volumeOf }) => createView(world, v, body, (await volumeOf(v)).size),
  'GET /views': ({ world }) => world.views,
  'PATCH /views/{id}': ({ world, id, body }) => Object.assign(viewById(world, id), { expires: rfc(Date.now() + body.lease_seconds * 1000) }),
  'DELETE /views/{id}': ({ world, id }) => {
    world.views.splice(world.views.indexOf(viewById(world, id)), 1);
  },
  'GET /events': ({ world, query }) => {
    const before = Number(query.get('before') ?? Infinity);
    return world.events
      .filter(({ id }) => id < before)
      .slice(-Number(query.get('limit') ?? 100))
      .reverse();
  },
  'GET /tasks': tasks,
  'DELETE /tasks/{id}': () => undefined,
  ...ACCESS,
  ...FILES,
  'GET /audit': audit,
};

export { historyOf };
