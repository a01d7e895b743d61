// Routes of volumes, snapshots, recoveries and the trash, in memory, for use without a server.

import { Refusal } from './refusal.mjs';
import { addEvent, historyOf, lsnOf, makeSnapshot, makeVolume, momentOf, position, rfc, timeOfLsn } from './world.mjs';

function volumeNamed(world, name) {
  const volume = world.volumes.find((candidate) => candidate.name === name);
  if (!volume) throw new Refusal(404, 'not_found', `find volume ${name}: there is none`);
  return Object.assign(volume, { snapshots: world.snapshots.get(name)?.length ?? 0 });
}

function checkFree(world, name) {
  if (world.volumes.some((volume) => volume.name === name)) throw new Refusal(409, 'conflict', `use the name ${name}: a volume has it already`);
}

function createVolume(world, body) {
  checkFree(world, body.name);
  const retain = body.cdp?.enabled ? (body.cdp.retain_seconds ?? null) : 0;
  const volume = makeVolume(body.name, body.size, { age: 0, used: 0, clients: 0, retain });
  world.volumes.push(volume);
  world.snapshots.set(volume.name, []);
  historyOf(world, volume.name, volume.size).begins = Date.now();
  addEvent(world, 'volume-created', volume.name, `Volume ${volume.name} was created.`);
  return volume;
}

function deleteVolume(world, name) {
  const volume = volumeNamed(world, name);
  world.volumes.splice(world.volumes.indexOf(volume), 1);
  const trashed = {
    uuid: volume.uuid,
    name,
    deleted: rfc(Date.now()),
    purge_at: rfc(Date.now() + 86_400_000),
    size: volume.size,
    space: volume.allocated,
    snapshots: volume.snapshots,
    history: volume.cdp !== null,
    labels: volume.labels,
    volume,
  };
  world.trash.push(trashed);
  addEvent(world, 'volume-deleted', name, `Volume ${name} was moved to the trash.`);
  return { trash: trashed };
}

function restore(world, id, body) {
  const trashed = world.trash.find(({ uuid }) => uuid === id);
  const name = body.name ?? trashed.name;
  checkFree(world, name);
  world.trash.splice(world.trash.indexOf(trashed), 1);
  const volume = { ...(trashed.volume ?? makeVolume(name, trashed.size)), name };
  world.volumes.push(volume);
  addEvent(world, 'volume-restored', name, `Volume ${name} was restored from the trash.`);
  return volume;
}

function patchVolume(world, name, body) {
  const volume = volumeNamed(world, name);
  const { labels = {}, cdp, ...rest } = body;
  for (const [key, value] of Object.entries(labels)) {
    if (value === null) delete volume.labels[key];
    else volume.labels[key] = value;
  }
  if (cdp?.enabled === false) volume.cdp = null;
  else if (cdp)
    volume.cdp = {
      encoding: 'parity',
      compression: 'zstd',
      anchors: { policy: 'model' },
      max_distance: null,
      retain_seconds: null,
      retain_bytes: null,
      ...volume.cdp,
      ...cdp,
    };
  delete rest.force;
  Object.assign(volume, rest);
  addEvent(world, 'volume-changed', volume.name, `Volume ${volume.name} was changed.`);
  return volume;
}

function timeOf(world, volume, moment) {
  const snapshot = world.snapshots.get(volume)?.find(({ name }) => name === moment);
  if (snapshot) return Date.parse(snapshot.created);
  const time = Date.parse(moment);
  if (Number.isNaN(time)) throw new Refusal(400, 'invalid', `read the moment ${moment}: use a time, or the name of a mark or snapshot`);
  return time;
}

/** Puts a new snapshot between a volume's present and what was before it. */
function follow(volume, snapshot) {
  Object.assign(snapshot, { parent: volume.parent, after_moment: volume.after_moment });
  Object.assign(volume, { parent: `${volume.name}@${snapshot.name}`, after_moment: null });
}

function createSnapshots(world, body) {
  return body.snapshots.map(({ volume, name }) => {
    const time = body.at ? timeOf(world, volume, body.at) : Date.now();
    const of = volumeNamed(world, volume);
    const snapshot = makeSnapshot(of, name ?? rfc(time).slice(0, 19).replace(/[-:]/g, ''), time);
    const list = world.snapshots.get(volume);
    follow(of, snapshot);
    list.push(snapshot);
    list.sort((a, b) => (a.created < b.created ? -1 : 1));
    addEvent(world, 'snapshot-created', volume, `Snapshot ${volume}@${snapshot.name} was created.`);
    return snapshot;
  });
}

function createMark(world, name, body) {
  const history = historyOf(world, name, volumeNamed(world, name).size);
  if (history.marks.some(([mark]) => mark === body.name)) throw new Refusal(409, 'conflict', `use the name ${body.name}: a mark of ${name} has it already`);
  history.marks.push([body.name, Date.now()]);
  addEvent(world, 'mark', name, `Mark ${body.name} was set on ${name}.`);
  return { name: body.name, ...position(Date.now()) };
}

function recover(world, body) {
  return body.volumes.map(({ volume, name }) => {
    checkFree(world, name);
    const source = volumeNamed(world, volume);
    const time = timeOf(world, volume, body.to);
    const made = {
      ...makeVolume(name, source.size, { age: 0, used: 0.01, clients: 0 }),
      origin: `${volume}@lsn:${lsnOf(time)}`,
      after_moment: `${volume}@lsn:${lsnOf(time)}`,
    };
    world.volumes.push(made);
    world.snapshots.set(name, []);
    addEvent(world, 'recovery', volume, `Volume ${name} was recovered from ${volume}.`);
    return { ...made, moment: position(time) };
  });
}

function goBack(world, name, undoName, to) {
  const volume = volumeNamed(world, name);
  const undo = makeSnapshot(volume, undoName, Date.now());
  const snapshot = world.snapshots.get(name).find((candidate) => candidate.name === to);
  const time = snapshot ? Date.parse(snapshot.created) : timeOf(world, name, to);
  const origin = snapshot ? `${name}@${to}` : `${name}@lsn:${lsnOf(time)}`;
  follow(volume, undo);
  world.snapshots.get(name).push(undo);
  Object.assign(volume, { origin, parent: snapshot ? origin : volume.parent, after_moment: momentOf(origin) });
  historyOf(world, name).rollbacks.push({ at: Date.now(), to: time });
  addEvent(world, 'rollback', name, `Volume ${name} was rolled back.`, 'warning');
  return { undo, volume: volumeNamed(world, name) };
}

function originOf({ origin }) {
  if (!origin) return null;
  const [volume, moment] = origin.split('@');
  if (!momentOf(origin)) return { kind: 'snapshot', volume, snapshot: moment };
  const lsn = Number(moment.slice(4));
  return { kind: 'moment', volume, lsn, time: rfc(timeOfLsn(lsn)) };
}

const stamp = () => rfc(Date.now()).slice(0, 19).replace(/[-:]/g, '');

export const VOLUMES = {
  'GET /volumes': ({ world }) => world.volumes.map(({ name }) => volumeNamed(world, name)),
  'POST /volumes': ({ world, body }) => createVolume(world, body),
  'GET /volumes/{v}': ({ world, v }) => volumeNamed(world, v),
  'PATCH /volumes/{v}': ({ world, v, body }) => patchVolume(world, v, body),
  'DELETE /volumes/{v}': ({ world, v }) => deleteVolume(world, v),
  'GET /volumes/{v}/stats': ({ world, v }) => {
    const regions = Array.from({ length: 64 }, (_, n) => ({
      reads: Math.round(9e5 * Math.exp(-(((n - 20) / 9) ** 2)) + 4e3),
      writes: n < 3 ? 800_000 : Math.round(5e5 * Math.exp(-(((n - 26) / 6) ** 2))),
    }));
    return {
      name: v,
      region_size: volumeNamed(world, v).size / 64,
      regions,
      requests: {},
      preservation: {},
      index: { bytes: 41e6, chunks: 6e6, versions: 9e5 },
    };
  },
  'GET /volumes/{v}/cdp': ({ world, v }) => {
    const { cdp, history } = volumeNamed(world, v);
    return {
      volume: v,
      settings: cdp,
      anchors: 540,
      records: 21e6,
      segments: 420,
      written: 294e9,
      stored: 41e9,
      payload: 39e9,
      kept: 41e9,
      short: false,
      window_seconds: history?.held_seconds ?? 0,
      from: cdp ? position(historyOf(world, v).begins) : null,
      distance: null,
    };
  },
  'GET /volumes/{v}/snapshots': ({ world, v }) => world.snapshots.get(v) ?? [],
  'GET /snapshots': ({ world }) => [...world.snapshots.values()].flat(),
  'POST /snapshots': ({ world, body }) => createSnapshots(world, body),
  'POST /volumes/{v}/snapshots/delete': ({ world, v, body }) => {
    world.snapshots.set(
      v,
      world.snapshots.get(v).filter(({ name }) => !body.names.includes(name)),
    );
    addEvent(world, 'snapshot-deleted', v, `${body.names.length} snapshots of ${v} were deleted.`);
  },
  'PATCH /volumes/{v}/snapshots/{s}': ({ world, v, s, body }) =>
    Object.assign(
      world.snapshots.get(v).find(({ name }) => name === s),
      body,
    ),
  'POST /volumes/{v}/snapshots/{s}/clones': ({ world, v, s, body }) => {
    checkFree(world, body.name);
    const clone = {
      ...makeVolume(body.name, volumeNamed(world, v).size, { age: 0, used: 0, clients: 0 }),
      origin: `${v}@${s}`,
      parent: `${v}@${s}`,
    };
    world.volumes.push(clone);
    world.snapshots.set(body.name, []);
    addEvent(world, 'clone', body.name, `Clone ${body.name} of ${v}@${s} was created.`);
    return clone;
  },
  'POST /volumes/{v}/snapshots/{s}/rollback': ({ world, v, s, body }) => goBack(world, v, body.undo ?? `before-rollback-${stamp()}`, s),
  'POST /volumes/{v}/marks': ({ world, v, body }) => createMark(world, v, body),
  'GET /volumes/{v}/flatten': ({ world, v }) => ({ origin: originOf(volumeNamed(world, v)), running: null }),
  'POST /marks': ({ world, body }) => body.volumes.map((name) => createMark(world, name, body)),
  'POST /recoveries': ({ world, body }) => recover(world, body),
  'POST /recoveries/in-place': ({ world, body }) => {
    if (!body.force && body.volumes.some((name) => volumeNamed(world, name).clients > 0))
      throw new Refusal(409, 'conflict', 'roll back: clients use the volume; use --force');
    return body.volumes.map((name) => goBack(world, name, body.undo ?? `before-recovery-${stamp()}`, body.to));
  },
  'GET /trash': ({ world }) => world.trash.map(({ volume: _, ...rest }) => rest),
  'POST /trash/{id}/restore': ({ world, id, body }) => restore(world, id, body),
  'DELETE /trash/{id}': ({ world, id }) => {
    world.trash = world.trash.filter(({ uuid }) => uuid !== id);
  },
};
