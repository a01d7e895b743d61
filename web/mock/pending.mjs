// Routes that the server does not have yet: timeline, live rates, events, tasks, views, sessions.

import { HOUR, hash, MINUTE, seedOf } from './history.mjs';
import { timeline } from './timeline.mjs';
import { addEvent, historyOf, lsnOf, rfc, START } from './world.mjs';

const GIB = 1024 ** 3;
const USERS = [
  { name: 'anna', role: 'admin', created: rfc(START - 200 * 24 * HOUR), last_login: rfc(START - 9 * MINUTE) },
  {
    name: 'jonas',
    role: 'operator',
    created: rfc(START - 120 * 24 * HOUR),
    last_login: rfc(START - 26 * HOUR),
  },
  { name: 'night-watch', role: 'viewer', created: rfc(START - 30 * 24 * HOUR), last_login: null },
];

export class Refusal extends Error {
  constructor(status, kind, message) {
    super(message);
    Object.assign(this, { status, kind });
  }
}

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

function activity(name, of, clients) {
  const [interval, number] = of === '1h' ? [10, 360] : [1, 300];
  const now = Date.now();
  const points = Array.from({ length: number }, (_, n) => {
    const time = now - (number - n) * interval * 1000;
    return { time: rfc(time), ...ratesAt(name, time, clients) };
  });
  return { interval_seconds: interval, points };
}

function tasks() {
  const since = (Date.now() - START) / 1000;
  const moved = Math.min(94 * GIB, 51 * GIB + since * 120 * 1024 ** 2);
  return [
    {
      id: 'flatten-7',
      kind: 'flatten',
      subject: 'db-0914',
      begun: rfc(START - 8 * MINUTE),
      done: moved,
      total: 124 * GIB,
      unit: 'bytes',
      rate: 120 * 1024 ** 2,
      seconds_left: (124 * GIB - moved) / 120 / 1024 ** 2,
      state: 'running',
      error: null,
      can_stop: true,
    },
    {
      id: 'scrub-1',
      kind: 'scrub',
      subject: 'pool',
      begun: rfc(START - 3 * HOUR),
      done: 61,
      total: 100,
      unit: 'percent',
      rate: null,
      seconds_left: 2 * 3600,
      state: 'running',
      error: null,
      can_stop: true,
    },
    {
      id: 'drain-2',
      kind: 'drain',
      subject: 'pv 1',
      begun: null,
      done: 0,
      total: 820 * GIB,
      unit: 'bytes',
      rate: null,
      seconds_left: null,
      state: 'waiting',
      error: null,
      can_stop: true,
    },
    {
      id: 'export-3',
      kind: 'export',
      subject: 'mail@daily',
      begun: rfc(START - 2 * HOUR),
      done: 18 * GIB,
      total: 220 * GIB,
      unit: 'bytes',
      rate: null,
      seconds_left: null,
      state: 'failed',
      error: 'The client closed the connection.',
      can_stop: false,
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

function audit() {
  const rows = [
    ['anna', 'POST', '/volumes/db/marks', 'db', 201],
    ['jonas', 'DELETE', '/volumes/{name}', 'mail', 403],
    ['token backup', 'POST', '/snapshots', 'db', 201],
    ['anna', 'PATCH', '/volumes/{name}', 'web-images', 200],
    ['anna', 'POST', '/recoveries', 'db', 201],
    ['jonas', 'POST', '/session', null, 401],
  ];
  return Array.from({ length: 60 }, (_, n) => {
    const [principal, method, route, subject, result] = rows[n % rows.length];
    return {
      time: rfc(START - n * 23 * MINUTE),
      principal,
      address: `10.0.4.${11 + (n % 4)}`,
      method,
      route,
      subject,
      result,
      duration_seconds: 0.002 + 0.03 * hash(3, n),
    };
  });
}

/** Routes with `{name}` parts, each a function of what the request has. */
export const PENDING = {
  'GET /volumes/{v}/timeline': async ({ world, v, query, volumeOf }) => {
    const volume = await volumeOf(v);
    return timeline(world, v, query, volume.size, volume.cdp?.retain_seconds ?? null);
  },
  'GET /volumes/{v}/activity': async ({ v, query, volumeOf }) => activity(v, query.get('of'), (await volumeOf(v)).clients),
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
  'GET /access/users': () => USERS,
  'GET /access/tokens': () => [
    {
      name: 'backup',
      role: 'operator',
      volumes: ['db', 'mail'],
      created: rfc(START - 90 * 24 * HOUR),
      expires: rfc(START + 275 * 24 * HOUR),
      last_used: rfc(START - 14 * MINUTE),
    },
    {
      name: 'prometheus',
      role: 'metrics',
      volumes: [],
      created: rfc(START - 200 * 24 * HOUR),
      expires: null,
      last_used: rfc(START - 9000),
    },
  ],
  'GET /access/sessions': ({ session }) => [
    {
      id: '1',
      name: session.name,
      role: session.role,
      address: '10.0.4.11',
      begun: rfc(START - 9 * MINUTE),
      last_used: rfc(Date.now()),
      current: true,
    },
    {
      id: '2',
      name: 'jonas',
      role: 'operator',
      address: '10.0.4.12',
      begun: rfc(START - 26 * HOUR),
      last_used: rfc(START - 25 * HOUR),
      current: false,
    },
  ],
  'DELETE /access/sessions/{id}': () => undefined,
  'GET /audit': audit,
};

export const roleOf = (name) => USERS.find((user) => user.name === name)?.role;
export { historyOf };
