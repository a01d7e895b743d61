// The other routes of the server, in memory: pool, groups, schedules, clients.

import { DAY, HOUR, hash, MINUTE } from './history.mjs';
import { TARGETS } from './targets.mjs';
import { addEvent, rfc, START } from './world.mjs';

const GIB = 1024 ** 3;
const TIB = 1024 * GIB;

const PROBLEMS = [
  {
    code: 'space-low',
    severity: 'warning',
    since: rfc(START - 38 * MINUTE),
    message: 'The pool has 14 % of its space left. Add a physical volume with hindcast pool add PATH, or delete snapshots.',
    help: 'docs/OPERATIONS.md#space-low',
  },
  {
    code: 'schedule-failing',
    severity: 'info',
    since: rfc(START - 3 * HOUR),
    message: 'Schedule weekly took no snapshot of archive-2025 on Sunday: the volume was read-only.',
    help: 'docs/OPERATIONS.md#schedule-failing',
  },
];
const HEALTH = { state: 'warning', problems: PROBLEMS };
const CAPACITY = { capacity: 8 * TIB, used: 6.9 * TIB, available: 1.1 * TIB };
const FILLING = {
  bytes_per_day: 40 * GIB,
  measured_seconds: 604_800,
  full_at: new Date(Date.now() + 28 * 86_400_000).toISOString(),
};

const POOL = {
  uuid: '5f0f0b7e-6a44-4d0c-9a93-5a9f6d1c2b11',
  extent_size: 4194304,
  atomic_unit: 4096,
  placement: 'anywhere',
  ...CAPACITY,
  filling: FILLING,
  reserved: 12 * GIB,
  provisioned: 4.5 * TIB,
  volumes: 12,
  features: ['references', 'sums', 'catalog-sums'],
  health: HEALTH,
  journal: {
    size: 8 * GIB,
    segment_size: 33554432,
    capacity: 8 * GIB,
    used: 1.2 * GIB,
    turns: 214,
    sequenced_lsn: 90412201,
    written_lsn: 90412201,
    synced_lsn: 90412188,
    destaged_lsn: 90388012,
    backpressure_waits: 0,
  },
  map_cache: {
    policy: 's3-fifo',
    size: 67108864,
    used: 61 * 1024 ** 2,
    hits: 81233100,
    misses: 1204331,
    evictions: 922010,
    hit_rate: 0.985,
  },
  index: { map_pages: 402133, versions: 8112045, catalog_bytes: 3.1 * GIB },
  preservation: {
    copies: 0,
    copied_bytes: 0,
    redirects: 0,
    redirected_bytes: 0,
    fill_reads: 0,
    fill_bytes: 0,
    host_bytes: 0,
    space_efficiency: 0.91,
  },
};

const PVS = [
  { id: 0, uuid: 'a1', path: '/dev/sdb', size: 4 * TIB, used: 3.8 * TIB, draining: false, failure: null },
  { id: 1, uuid: 'a2', path: '/dev/sdc', size: 1 * TIB, used: 0.8 * TIB, draining: true, failure: null },
  { id: 2, uuid: 'a3', path: '/dev/sdd', size: 4 * TIB, used: 2.3 * TIB, draining: false, failure: null },
  { id: 3, uuid: 'a4', path: '/dev/sde', size: 0.5 * TIB, used: 0, draining: true, failure: null },
];

const GROUPS = [
  { name: 'shop', volumes: ['db', 'db-log', 'web-images'] },
  { name: 'build', volumes: ['vm-build-01', 'vm-build-02'] },
];

/** The next 01:30 in UTC, which is 02:30 in Berlin in winter. */
function nextNight() {
  const today = START - (START % DAY) + 1.5 * HOUR;
  return today > START ? today : today + DAY;
}

/** The next 13:00 in UTC of a weekday, which is 08:00 in New York in winter. */
function nextMorning() {
  let time = START - (START % DAY) + 13 * HOUR;
  while (time < START || [0, 6].includes(new Date(time).getUTCDay())) time += DAY;
  return time;
}

const SCHEDULES = [
  {
    name: 'hourly',
    every: 3600,
    prefix: 'hourly',
    keep: { last: 0, hourly: 24, daily: 7, weekly: 4, monthly: 0 },
    volumes: ['db', 'db-log', 'mail', 'web-images'],
    own_volumes: ['db', 'db-log', 'mail', 'web-images'],
    paused: false,
    snapshots: 124,
    since: rfc(START - 90 * DAY),
    last_run: rfc(START - (START % HOUR)),
    next: rfc(START - (START % HOUR) + HOUR),
    next_local: null,
    wall: null,
    error: null,
  },
  {
    name: 'nightly',
    every: 86400,
    prefix: 'daily',
    keep: { last: 0, hourly: 0, daily: 14, weekly: 8, monthly: 12 },
    volumes: ['vm-build-01', 'vm-build-02', 'vm-desktop-anna', 'vm-desktop-jonas'],
    own_volumes: ['vm-build-01', 'vm-build-02', 'vm-desktop-anna', 'vm-desktop-jonas'],
    paused: false,
    snapshots: 61,
    since: rfc(START - 90 * DAY),
    last_run: rfc(START - 14 * HOUR),
    next: rfc(nextNight()),
    next_local: null,
    wall: { at: '02:30', tz: 'Europe/Berlin', on: [], between: null },
    error: null,
  },
  {
    name: 'office-hours',
    every: 900,
    prefix: 'office',
    keep: { last: 8, hourly: 10, daily: 0, weekly: 0, monthly: 0 },
    volumes: ['db', 'db-log', 'web-images'],
    groups: ['shop'],
    paused: false,
    snapshots: 18,
    since: rfc(START - 20 * DAY),
    last_run: rfc(START - 20 * HOUR),
    next: rfc(nextMorning()),
    next_local: null,
    wall: { at: null, tz: 'America/New_York', on: ['mon', 'tue', 'wed', 'thu', 'fri'], between: '08:00-18:00' },
    error: null,
  },
  {
    name: 'weekly',
    every: 604800,
    prefix: 'weekly',
    keep: { last: 12, hourly: 0, daily: 0, weekly: 0, monthly: 0 },
    volumes: ['archive-2025'],
    paused: true,
    snapshots: 12,
    since: rfc(START - 200 * DAY),
    last_run: rfc(START - 6 * DAY),
    next: null,
    next_local: null,
    wall: null,
    error: 'The volume was read-only.',
  },
];

function clients() {
  const client = (id, protocol, address, name, what, age) => ({
    id,
    protocol,
    addresses: [address],
    initiator: protocol === 'iscsi' ? what : null,
    user: null,
    exports: [name],
    age,
    tls: protocol === 'nbd',
    in_flight: 3,
    requests: Math.round(9e6 * hash(age, 1)),
    read_bytes: Math.round(90 * GIB * hash(age, 2)),
    write_bytes: Math.round(70 * GIB * hash(age, 3)),
  });
  return [
    client('i1', 'iscsi', '10.0.4.21:41820', 'db', 'iqn.2004-10.com.ubuntu:01:shop-1', 18000),
    client('i2', 'iscsi', '10.0.4.22:52110', 'db', 'iqn.2004-10.com.ubuntu:01:shop-2', 18120),
    client('i3', 'iscsi', '10.0.4.30:50112', 'mail', 'iqn.1991-05.com.microsoft:mail', 91000),
    client('n1', 'nbd', '10.0.8.3:40002', 'vm-build-01', '', 7300),
  ];
}

export const REST = {
  ...TARGETS,
  'GET /status': ({ world }) => ({
    version: '0.1.0',
    pid: 4711,
    started: rfc(START - 12 * DAY),
    data: '/var/lib/hindcast',
    listeners: { api: ['127.0.0.1:8440'], nbd: ['0.0.0.0:10809', 'unix:/run/hindcast/nbd.sock'], iscsi: ['0.0.0.0:3260'] },
    health: HEALTH,
    ...CAPACITY,
    volumes: world.volumes.length,
    nbd_connections: 1,
    iscsi_sessions: 3,
    protection: world.volumes.map(({ name }) => ({
      volume: name,
      last_snapshot: world.snapshots.get(name)?.at(-1)?.created ?? null,
      failing_schedules: name === 'archive-2025' ? ['weekly'] : [],
    })),
  }),
  'GET /health': () => HEALTH,
  'GET /pool': ({ world }) => ({ ...POOL, volumes: world.volumes.length }),
  'GET /pool/pvs': () => PVS,
  'POST /pool/pvs': ({ world, body }) => {
    const pv = {
      id: PVS.length,
      uuid: `a${PVS.length + 1}`,
      path: body.path,
      size: body.size ?? TIB,
      used: 0,
      draining: false,
      failure: null,
    };
    PVS.push(pv);
    addEvent(world, 'pv-added', `pv ${pv.id}`, `Physical volume ${pv.path} was added.`);
    return pv;
  },
  'PATCH /pool/pvs/{pv}': ({ world, pv, body }) => {
    addEvent(world, 'pv-changed', `pv ${pv}`, `Physical volume ${pv} changed.`);
    return Object.assign(
      PVS.find(({ id }) => id === Number(pv)),
      body,
    );
  },
  'DELETE /pool/pvs/{pv}': ({ pv }) =>
    void PVS.splice(
      PVS.findIndex(({ id }) => id === Number(pv)),
      1,
    ),
  'GET /pool/scrub': () => ({
    adopted: 0,
    adopts: false,
    damaged: 0,
    finished: rfc(START - 8 * DAY),
    passes: 3,
    paused: false,
    rate: 134217728,
    repaired: 0,
    running: true,
    started: rfc(START - 3 * HOUR),
    total: 7.5e12,
    unknown: 0,
    unreadable: 0,
    verified: 4.6e12,
  }),
  'GET /groups': () => GROUPS,
  'POST /groups': ({ body }) => GROUPS.push(body) && body,
  'PATCH /groups/{g}': ({ g, body: { add = [], remove = [] } }) => {
    const group = GROUPS.find(({ name }) => name === g);
    group.volumes = [...group.volumes.filter((name) => !remove.includes(name)), ...add];
    return group;
  },
  'DELETE /groups/{g}': ({ g }) =>
    void GROUPS.splice(
      GROUPS.findIndex(({ name }) => name === g),
      1,
    ),
  'GET /schedules': () => SCHEDULES,
  'PATCH /schedules/{s}': ({ s, body }) =>
    Object.assign(
      SCHEDULES.find(({ name }) => name === s),
      body,
    ),
  'GET /clients': clients,
};
