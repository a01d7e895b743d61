// What the mock server holds: a small company's volumes, in memory, relative to the present time.

import { DAY, HOUR, hash, MINUTE, seedOf } from './history.mjs';

const GIB = 1024 ** 3;
export const START = Date.now();

/** A time as RFC 3339 with six digits of the second. */
export const rfc = (time) => {
  const micros = String(Math.floor((time - Math.floor(time)) * 1000)).padStart(3, '0');
  return new Date(Math.floor(time)).toISOString().replace('Z', `${micros}Z`);
};
const uuid = (seed) => {
  const hex = Array.from({ length: 32 }, (_, n) => Math.floor(hash(seed, n) * 16).toString(16)).join('');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20)}`;
};

/** The position of a time in the order of writes. */
export const lsnOf = (time) => Math.max(1, Math.round((time - (START - 30 * DAY)) * 0.04));
/** The time of a position. */
export const timeOfLsn = (lsn) => START - 30 * DAY + lsn / 0.04;
export const position = (time) => ({ lsn: lsnOf(time), time: rfc(time) });

const NO_REQUESTS = {
  reads: 0,
  read_bytes: 0,
  writes: 0,
  write_bytes: 0,
  flushes: 0,
  discards: 0,
  discard_bytes: 0,
  staged_read_bytes: 0,
  errors: 0,
};

export function makeVolume(name, size, options = {}) {
  const retain = options.retain === undefined ? 7 * 86400 : options.retain;
  const age = options.age ?? 21 * DAY;
  const cdp =
    retain === 0
      ? null
      : {
          encoding: 'parity',
          compression: 'zstd',
          anchors: { policy: 'model' },
          max_distance: null,
          retain_seconds: retain,
          retain_bytes: null,
        };
  return {
    name,
    uuid: uuid(seedOf(name)),
    size,
    chunk_size: 16384,
    block_size: 512,
    read_only: false,
    method: 'row',
    order: 'dependent',
    snapshot_space: Math.round(size * 0.03),
    snapshot_reserve: 10,
    auto_delete: false,
    importing: false,
    nbd: true,
    last_change: cdp || options.clients !== 0 ? rfc(START - Math.round(hash(seedOf(name), 9) ** 4 * 2 * DAY)) : undefined,
    cdp,
    origin: null,
    parent: options.parent ?? null,
    after_moment: null,
    created: rfc(START - age),
    allocated: Math.round(size * (options.used ?? 0.4)),
    handles: options.clients ?? 1,
    clients: options.clients ?? 1,
    snapshots: 0,
    labels: options.labels ?? {},
    stats: { ...NO_REQUESTS },
    history: cdp ? { held_seconds: Math.min(age / 1000, retain ?? age / 1000), wanted_seconds: retain } : null,
    damaged: [],
  };
}

export function makeSnapshot(volume, name, time, options = {}) {
  return {
    name,
    uuid: uuid(seedOf(volume.name + name)),
    volume: volume.name,
    created: rfc(time),
    size: volume.size,
    parent: options.parent ? `${volume.name}@${options.parent}` : null,
    after_moment: null,
    protected: options.protected ?? false,
    expires: options.expires ?? null,
    handles: 0,
    clones: options.clones ?? [],
    labels: options.labels ?? {},
    unique: Math.round(hash(seedOf(name), 1) * 900 * 1024 ** 2),
    shared: Math.round(hash(seedOf(name), 2) * 2 * GIB),
    writable: null,
  };
}

function companyVolumes() {
  const volumes = [
    makeVolume('db', 200 * GIB, { used: 0.62, clients: 2, labels: { app: 'shop', tier: 'gold' } }),
    makeVolume('db-log', 40 * GIB, { used: 0.71, clients: 2, labels: { app: 'shop', tier: 'gold' } }),
    makeVolume('mail', 500 * GIB, { used: 0.44, labels: { app: 'mail' }, retain: 30 * 86400 }),
    makeVolume('web-images', 1024 * GIB, { used: 0.31, labels: { app: 'shop' }, retain: 86400 }),
    makeVolume('vm-build-01', 80 * GIB, { used: 0.55, labels: { app: 'ci' }, retain: 86400 }),
    makeVolume('vm-build-02', 80 * GIB, { used: 0.52, labels: { app: 'ci' }, retain: 86400 }),
    makeVolume('vm-desktop-anna', 120 * GIB, { used: 0.48, labels: { owner: 'anna' } }),
    makeVolume('vm-desktop-jonas', 120 * GIB, { used: 0.39, clients: 0, labels: { owner: 'jonas' } }),
    makeVolume('archive-2025', 2048 * GIB, { used: 0.83, clients: 0, retain: 0, labels: { app: 'archive' } }),
    makeVolume('scratch', 100 * GIB, { used: 0.12, retain: 0, clients: 0 }),
    makeVolume('db-test', 200 * GIB, {
      used: 0.02,
      age: 2 * DAY,
      parent: 'db@release-4.2',
      labels: { app: 'shop', tier: 'test' },
    }),
    makeVolume('db-0914', 200 * GIB, { used: 0.01, age: 5 * HOUR, clients: 0, labels: { app: 'shop' } }),
  ];
  for (const [name, { to, moment }] of Object.entries(ROLLBACKS)) {
    const volume = volumes.find((candidate) => candidate.name === name);
    volume.origin = moment ? `${name}@lsn:${lsnOf(to)}` : null;
  }
  volumes.at(-1).origin = `db@lsn:${lsnOf(START - 26 * HOUR)}`;
  volumes.at(-2).origin = 'db@release-4.2';
  return volumes;
}

function snapshotsOf(volume) {
  if (volume.name === 'db-0914' || volume.name === 'scratch') {
    Object.assign(volume, before(volume, undefined, [], START));
    return [];
  }
  const snapshots = [];
  const hour = START - (START % HOUR);
  for (let n = 24; n >= 1; n -= 1)
    snapshots.push([
      `hourly-${rfc(hour - n * HOUR)
        .slice(5, 13)
        .replace('T', '-')}`,
      hour - n * HOUR,
    ]);
  for (let n = 7; n >= 2; n -= 1) snapshots.push([`daily-${rfc(hour - n * DAY).slice(5, 10)}`, hour - n * DAY]);
  if (volume.name === 'db') snapshots.push(['release-4.2', START - 2.2 * DAY], ['before-migration-2', START - 52 * MINUTE]);
  const rollback = ROLLBACKS[volume.name];
  if (rollback) snapshots.push([rollback.undo, rollback.at]);
  const sorted = snapshots.filter(([, time]) => time > Date.parse(volume.created)).sort((a, b) => a[1] - b[1]);
  const all = sorted.map(([name, time]) =>
    makeSnapshot(volume, name, time, {
      protected: name === 'release-4.2',
      clones: name === 'release-4.2' ? ['db-test'] : [],
      labels: /^(hourly|daily)/.test(name) ? { schedule: name.split('-')[0] } : {},
    }),
  );
  for (const [n, snapshot] of all.entries()) {
    const { parent, after_moment } = before(volume, rollback, all.slice(0, n), Date.parse(snapshot.created));
    Object.assign(snapshot, { parent, after_moment });
  }
  Object.assign(volume, before(volume, rollback, all, START));
  return all;
}

/**
 * Volumes that were rolled back, when, and to what time; `moment` unless that is the time of a
 * snapshot.
 */
const ROLLBACKS = {
  mail: { at: START - 30 * HOUR, to: START - (START % HOUR) - 4 * DAY, undo: 'before-rollback' },
  'web-images': { at: START - 4.2 * HOUR, to: START - 30 * HOUR, undo: 'before-recovery', moment: true },
};

/**
 * What something of a volume directly follows that was taken at `time`, after the snapshots
 * `taken`.
 */
function before(volume, rollback, taken, time) {
  const last = taken.at(-1);
  const isFirst = rollback && time > rollback.at && Date.parse(last?.created) === Math.floor(rollback.at);
  const parent = isFirst ? taken.findLast(({ created }) => Date.parse(created) <= rollback.to) : last;
  const moment = isFirst && rollback.moment ? `${volume.name}@lsn:${lsnOf(rollback.to)}` : null;
  if (!parent && volume.origin && !volume.origin.startsWith(`${volume.name}@`))
    return { parent: /@lsn:/.test(volume.origin) ? null : volume.origin, after_moment: momentOf(volume.origin) };
  return { parent: parent ? `${volume.name}@${parent.name}` : null, after_moment: moment };
}

export const momentOf = (origin) => (/@lsn:/.test(origin ?? '') ? origin : null);

/** Everything that the history of a volume needs, for volumes of the mock and of a real server. */
export function historyOf(world, name, size) {
  let history = world.histories.get(name);
  if (!history) {
    const busy = name === 'db' || name === 'db-log' ? 42 : 3 + 20 * hash(seedOf(name), 3);
    history = {
      seed: seedOf(name),
      size,
      writesPerSecond: busy,
      bytesEach: 14_000,
      begins: START - 6.4 * DAY,
      gaps: name === 'db' ? [[START - 3.6 * DAY, START - 3.35 * DAY]] : [],
      rollbacks: name === 'db' ? [{ at: START - 1.3 * DAY, to: START - 1.72 * DAY }] : [],
      intrusion: name === 'db' ? START - 41 * MINUTE : undefined,
      marks:
        name === 'db'
          ? [
              ['before-migration', START - 74 * MINUTE],
              ['release-4.3', START - 5.1 * HOUR],
              ['year-end-test', START - 2.6 * DAY],
            ]
          : [],
    };
    world.histories.set(name, history);
  }
  return history;
}

/** Adds what a large installation has: 500 volumes, and 10,000 snapshots of one of them. */
function enlarge(volumes, snapshots) {
  for (let n = volumes.length; n < 500; n += 1) {
    volumes.push(makeVolume(`vm-${String(n).padStart(4, '0')}`, 64 * GIB, { used: hash(n, 4) * 0.8, labels: { rack: `r${n % 12}` } }));
    snapshots.set(volumes.at(-1).name, []);
  }
  const [db] = volumes;
  const many = Array.from({ length: 10_000 }, (_, n) =>
    makeSnapshot(db, `every-${n}`, START - (10_000 - n) * 0.9 * MINUTE, { parent: n > 0 ? `every-${n - 1}` : null }),
  );
  // Those that clones depend on stay.
  const needed = snapshots.get('db').filter(({ clones }) => clones.length > 0);
  snapshots.set(
    'db',
    [...many, ...needed].sort((a, b) => (a.created < b.created ? -1 : 1)),
  );
}

export function makeWorld(large = false) {
  const volumes = companyVolumes();
  const snapshots = new Map(volumes.map((volume) => [volume.name, snapshotsOf(volume)]));
  if (large) enlarge(volumes, snapshots);
  const world = {
    volumes,
    snapshots,
    histories: new Map(),
    views: [],
    events: [],
    nextEvent: 1,
    trash: [],
    sessions: new Map(),
    failures: 0,
  };
  world.trash.push({
    uuid: uuid(77),
    name: 'vm-old-printer',
    deleted: rfc(START - 5 * HOUR),
    purge_at: rfc(START + 19 * HOUR),
    size: 32 * GIB,
    space: 9 * GIB,
    snapshots: 12,
    history: true,
    labels: { owner: 'jonas' },
  });
  addPastEvents(world);
  return world;
}

function addPastEvents(world) {
  const past = [
    [26 * HOUR, 'recovery', 'info', 'db', 'Volume db-0914 was recovered from db at 09:14.'],
    [7 * HOUR, 'pv-added', 'info', 'pv 2', 'Physical volume /dev/sdc was added with 4 TiB.'],
    [5 * HOUR, 'volume-deleted', 'info', 'vm-old-printer', 'Volume vm-old-printer was moved to the trash.'],
    [3 * HOUR, 'schedule-run', 'info', 'hourly', 'Schedule hourly took 9 snapshots.'],
    [2 * HOUR, 'schedule-run', 'info', 'hourly', 'Schedule hourly took 9 snapshots.'],
    [74 * MINUTE, 'mark', 'info', 'db', 'Mark before-migration was set on db.'],
    [65 * MINUTE, 'access-refused', 'warning', 'mail', 'NBD client 10.0.4.17 was refused: no rule allows it.'],
    [60 * MINUTE, 'schedule-run', 'info', 'hourly', 'Schedule hourly took 9 snapshots.'],
    [38 * MINUTE, 'health-began', 'warning', 'space', 'The pool has 14 % of its space left.'],
    [12 * MINUTE, 'client-connected', 'info', 'db', 'Initiator iqn.2004-10.com.ubuntu:01:shop-1 connected to db.'],
  ];
  for (const [ago, kind, severity, subject, message] of past) addEvent(world, kind, subject, message, severity, START - ago);
}

export function addEvent(world, kind, subject, message, severity = 'info', time = Date.now()) {
  const event = { id: world.nextEvent, time: rfc(time), kind, severity, subject, message };
  world.nextEvent += 1;
  world.events.push(event);
  for (const listener of world.listeners ?? []) listener(event);
}
