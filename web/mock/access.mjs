// The routes of users, tokens and sessions of the mock.

import { HOUR, hash, MINUTE, seedOf } from './history.mjs';
import { Refusal } from './refusal.mjs';
import { rfc, START } from './world.mjs';

const DAY = 24 * HOUR;

const USERS = [
  { name: 'anna', role: 'admin', created: rfc(START - 200 * DAY) },
  { name: 'jonas', role: 'operator', created: rfc(START - 120 * DAY) },
  { name: 'night-watch', role: 'viewer', created: rfc(START - 30 * DAY) },
];

const TOKENS = [
  {
    name: 'backup',
    role: 'operator',
    volumes: ['db', 'mail'],
    created: rfc(START - 90 * DAY),
    expires: rfc(START + 275 * DAY),
    last_used: rfc(START - 14 * MINUTE),
  },
  { name: 'prometheus', role: 'metrics', volumes: [], created: rfc(START - 200 * DAY), expires: null, last_used: rfc(START - 9000) },
];

const SESSIONS = [
  {
    id: '2f6c0a1d9b3e4857',
    kind: 'user',
    name: 'jonas',
    role: 'operator',
    address: '10.0.4.12',
    since: rfc(START - 26 * HOUR),
    last_used: rfc(START - 25 * HOUR),
    expires: rfc(START + 6 * HOUR),
  },
];

const ownSession = ({ name, role, expires }) => ({
  id: '0123456789abcdef',
  kind: 'link',
  name,
  role,
  address: '10.0.4.11',
  since: rfc(START - 9 * MINUTE),
  last_used: rfc(Date.now()),
  expires,
});

function add(list, item, what) {
  if (list.some(({ name }) => name === item.name)) throw new Refusal(409, 'conflict', `create ${what} ${item.name}: there is one`);
  list.push(item);
  list.sort((a, b) => (a.name < b.name ? -1 : 1));
  return item;
}

function take(list, key, value, what) {
  const index = list.findIndex((item) => item[key] === value);
  if (index < 0) throw new Refusal(404, 'not_found', `find ${what} ${value}: there is none`);
  list.splice(index, 1);
}

function createToken({ body }) {
  const { name, role, volumes = [], views = false, expires_seconds: seconds } = body;
  const expires = seconds ? rfc(Date.now() + seconds * 1000) : null;
  const token = add(TOKENS, { name, role, volumes, views, created: rfc(Date.now()), expires, last_used: null }, 'token');
  const secret = Array.from({ length: 64 }, (_, n) => Math.floor(hash(seedOf(name), n) * 16).toString(16)).join('');
  return { token, secret: `hindcast_${secret}` };
}

export const ACCESS = {
  'GET /access/users': () => USERS,
  'POST /access/users': ({ body: { name, role } }) => add(USERS, { name, role, created: rfc(Date.now()) }, 'user'),
  'PATCH /access/users/{name}': ({ name, body: { role } }) => Object.assign(USERS.find((user) => user.name === name) ?? {}, role && { role }),
  'DELETE /access/users/{name}': ({ name }) => take(USERS, 'name', name, 'user'),
  'GET /access/tokens': () => TOKENS,
  'POST /access/tokens': createToken,
  'DELETE /access/tokens/{name}': ({ name }) => take(TOKENS, 'name', name, 'token'),
  'GET /access/sessions': ({ session }) => [ownSession(session), ...SESSIONS],
  'DELETE /access/sessions/{id}': ({ id }) => take(SESSIONS, 'id', id, 'session'),
};

export const roleOf = (name) => USERS.find((user) => user.name === name)?.role;
