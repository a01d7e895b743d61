// The development server: made-up answers for the API, and the built console under its real headers.
//
//   node mock/main.mjs [--port 18450] [--large] [--open] [--upstream http://127.0.0.1:8440 --token-file FILE] [--dist DIR]
//
// With --upstream, only the routes that the server does not have yet are made up. The others go to
// the server, with the token. Log in at /#link=first, or as anna, jonas or night-watch with the
// password "correct horse battery".

import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { roleOf } from './access.mjs';
import { liveAt, MADE_UP } from './made-up.mjs';
import { Refusal } from './refusal.mjs';
import { REST } from './rest.mjs';
import { VOLUMES } from './volumes.mjs';
import { makeWorld, rfc } from './world.mjs';

const { values: options } = parseArgs({
  options: {
    port: { type: 'string', default: '18450' },
    large: { type: 'boolean' },
    open: { type: 'boolean' },
    upstream: { type: 'string' },
    'token-file': { type: 'string' },
    dist: { type: 'string', default: fileURLToPath(new URL('../../crates/console/dist', import.meta.url)) },
  },
});

const PASSWORD = 'correct horse battery';
const CSP = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
const TYPES = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
};

/** The session of every browser with --open. */
const OPEN_SESSION = { name: 'root', kind: 'link', role: 'admin', volumes: [], expires: rfc(Date.now() + 12 * 3_600_000) };

const world = makeWorld(options.large);
world.listeners = new Set();
const token = options['token-file'] ? (await readFile(options['token-file'], 'utf8')).trim() : '';

function routesOf(table) {
  return Object.entries(table).map(([route, handler]) => {
    const [method, path] = route.split(' ');
    const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
    return { method, names, pattern: new RegExp(`^${path.replace(/\{\w+\}/g, '([^/]+)')}$`), handler };
  });
}

/** Paths that the server behind the mock has, as patterns. */
const upstreamPaths = options.upstream ? await readPaths() : [];

async function readPaths() {
  const document = await (await passToUpstream('GET', '/openapi.json')).json();
  return Object.keys(document.paths).map((path) => new RegExp(`^${path.replace('/api/v1', '').replace(/\{[\w]+\}/g, '[^/]+')}$`));
}

const upstreamHas = (path) => upstreamPaths.some((pattern) => pattern.test(path));
const routes = [...routesOf(MADE_UP), ...(options.upstream ? [] : [...routesOf(VOLUMES), ...routesOf(REST)])];

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

function answer(response, status, body, headers = {}) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(body === undefined ? undefined : JSON.stringify(body));
}

function passToUpstream(method, path, body, more = {}, signal = undefined) {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json', ...more };
  return fetch(`${options.upstream}/api/v1${path}`, { method, headers, body: body || undefined, signal });
}

/** A volume by name: of the mock, or of the server behind it. */
async function volumeOf(name) {
  const local = world.volumes.find((volume) => volume.name === name);
  if (!options.upstream) return local ?? Promise.reject(new Refusal(404, 'not_found', `find volume ${name}: there is none`));
  return (await passToUpstream('GET', `/volumes/${encodeURIComponent(name)}`)).json();
}

async function volumes() {
  return options.upstream ? (await passToUpstream('GET', '/volumes')).json() : world.volumes;
}

function sessionOf(request) {
  return world.sessions.get(/hindcast=(\w+)/.exec(request.headers.cookie ?? '')?.[1]);
}

function logIn(response, body) {
  const byLink = body.link === 'first';
  const role = byLink ? 'admin' : body.password === PASSWORD && roleOf(body.name);
  if (!role)
    return answer(response, 401, {
      kind: 'unauthorized',
      message: 'the name or the password is wrong, or the link was used before',
    });
  const id = Math.random().toString(36).slice(2);
  world.sessions.set(id, {
    name: byLink ? 'root' : body.name,
    role,
    expires: rfc(Date.now() + 12 * 3_600_000),
  });
  return answer(response, 201, world.sessions.get(id), {
    'set-cookie': `hindcast=${id}; HttpOnly; SameSite=Strict; Path=/`,
  });
}

function stream(request, response, path) {
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
  response.flushHeaders();
  if (path === '/live') {
    const timer = setInterval(async () => response.write(`data: ${JSON.stringify(liveAt(await volumes(), Date.now()))}\n\n`), 1000);
    return response.on('close', () => clearInterval(timer));
  }
  const write = (event) => response.write(`id: ${event.id}\ndata: ${JSON.stringify(event)}\n\n`);
  const last = Number(request.headers['last-event-id'] ?? Infinity);
  if (last !== Infinity && last >= world.nextEvent) response.write('event: gap\ndata: {}\n\n');
  for (const event of world.events.filter(({ id }) => id > last)) write(event);
  response.write(': begins\n\n');
  world.listeners.add(write);
  return response.on('close', () => world.listeners.delete(write));
}

async function api(request, response, url) {
  const path = url.pathname.slice('/api/v1'.length);
  const text = await bodyOf(request);
  const body = text ? JSON.parse(text) : {};
  if (path === '/session' && request.method === 'POST') return logIn(response, body);
  const session = options.open ? OPEN_SESSION : sessionOf(request);
  if (!session) return answer(response, 401, { kind: 'unauthorized', message: 'log in first' });
  if (path === '/session') {
    if (request.method === 'GET') return answer(response, 200, session);
    world.sessions.clear();
    return answer(response, 204);
  }
  if (request.method !== 'GET' && session.role === 'viewer')
    return answer(response, 403, { kind: 'forbidden', message: 'the role viewer may not change anything' });
  if (upstreamHas(path)) return pass(request, response, path + url.search, text);
  if (request.headers.accept === 'text/event-stream') return stream(request, response, path);
  for (const { method, names, pattern, handler } of routes) {
    const found = method === request.method && pattern.exec(path);
    if (!found) continue;
    const parts = Object.fromEntries(names.map((name, n) => [name, decodeURIComponent(found[n + 1])]));
    const result = await handler({ ...parts, world, body, query: url.searchParams, session, volumeOf });
    return answer(response, result === undefined ? 204 : 200, result);
  }
  if (!options.upstream)
    return answer(response, 404, {
      kind: 'not_found',
      message: `the mock has no route ${request.method} ${path}`,
    });
  return pass(request, response, path + url.search, text);
}

/** Lets the server answer. A stream is passed on piece by piece. */
async function pass(request, response, path, text) {
  const control = new AbortController();
  response.on('close', () => control.abort());
  const { accept = 'application/json', 'last-event-id': last } = request.headers;
  const passed = await passToUpstream(request.method, path, text, { accept, ...(last && { 'last-event-id': last }) }, control.signal);
  response.writeHead(passed.status, { 'content-type': passed.headers.get('content-type') ?? 'application/json' });
  for await (const part of passed.body ?? []) response.write(part);
  response.end();
}

async function file(response, path) {
  const headers = {
    'content-security-policy': CSP,
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
  };
  const name = extname(path) ? path : '/index.html';
  const content = await readFile(options.dist + name).catch(() => null);
  if (!content) return answer(response, 404);
  response.writeHead(200, { ...headers, 'content-type': TYPES[extname(name)] ?? 'application/octet-stream' });
  return response.end(content);
}

const server = createServer(async (request, response) => {
  const url = new URL(request.url, 'http://localhost');
  try {
    await (url.pathname.startsWith('/api/') ? api(request, response, url) : file(response, url.pathname));
  } catch (error) {
    if (response.headersSent) return response.end();
    answer(response, error.status ?? 500, { kind: error.kind ?? 'internal', message: error.message });
  }
});
server.listen(Number(options.port), '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/#link=first`));
