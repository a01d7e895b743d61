// Who may do what, against a real server: the Access page, a viewer, foreign pages, ended sessions,
// wrong passwords.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';
import { missing, qemuIo, startServer } from './server.mjs';

const options = { skip: missing, timeout: 60_000 };
const DOCUMENT = JSON.parse(readFileSync(new URL('../openapi.json', import.meta.url), 'utf8'));

let browser;
let server;
let viewer;
before(async () => {
  if (missing) return;
  server = await startServer();
  server.command('volume', 'create', 'db', '--size', '64M', '--cdp', 'parity');
  qemuIo(server.address('db'), 'write -P 1 0 1M');
  server.command('snapshot', 'create', 'db@kept');
  server.command('volume', 'create', 'gone', '--size', '64M');
  server.command('volume', 'delete', 'gone');
  server.command('group', 'create', 'shop', 'db');
  server.command('schedule', 'create', 'hourly', '--every', '1h', '--keep-last', '3', 'db');
  server.command('target', 'create', 'shop');
  viewer = server.addUser('vera', 'viewer');
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
  await server?.dispose();
});

/** A page with a new session, by a one-time link or by a name and a password. */
async function openPage(name, password) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 } });
  const page = await context.newPage();
  if (!name) {
    await logIn(page, server.url, server.link());
    return page;
  }
  await page.goto(server.url);
  await typeIn(page, name, password);
  await page.waitForSelector('.shell');
  return page;
}

async function typeIn(page, name, password) {
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Log in' }).click();
}

/** The status of a request that the page itself sends. */
function statusOf(page, method, path) {
  return page.evaluate(
    async ([verb, to]) => {
      const headers = { 'content-type': 'application/json' };
      return (await fetch(to, { method: verb, headers, body: '{}' })).status;
    },
    [method, path],
  );
}

const PAGES = ['', 'volumes', 'tree', 'pool', 'targets', 'schedules', 'tasks', 'events', 'trash'];
const TABS = ['', 'snapshots', 'activity', 'access', 'settings'].map((tab) => `volumes/db/${tab}`);

/** Words with which the names of refused buttons begin. */
const REFUSED = new RegExp(
  '^(Create|Delete|Remove|Restore|Add|Take|Clone|Roll|Protect|Unprotect|Rename|Resize|Labels|Change|Keep|Open|' +
    'Recover|Go back|Mark|Find|Drain|Check|Stop|Pause|Resume|Enable|Disable|CHAP|Move|Disconnect|End|Refuse|Serve)\\b',
);

test('a viewer sees no button that the server refuses', options, async () => {
  const page = await openPage('vera', viewer);
  const admin = await openPage();
  const offered = new Set();
  for (const path of [...PAGES, ...TABS]) {
    for (const [who, seen] of [
      [page, null],
      [admin, offered],
    ]) {
      await who.goto(`${server.url}/${path}`);
      await who.waitForSelector('main h1');
      await who.waitForFunction(() => !document.querySelector('[aria-busy]'));
      await who.waitForTimeout(200);
      const names = await who
        .locator('button:visible')
        .evaluateAll((buttons) => buttons.map((one) => one.ariaLabel ?? one.textContent));
      if (seen) for (const name of names) seen.add(name);
      else
        for (const name of names) assert.doesNotMatch(name, REFUSED, `/${path} shows "${name}" to a viewer`);
      if (!seen) assert.equal(await who.locator('main input[type=checkbox]').count(), 0, path);
    }
  }
  // The words above are those of real buttons: an administrator sees them on the same pages.
  const dangerous = [...offered].filter((name) => REFUSED.test(name));
  assert.ok(dangerous.length >= 20, dangerous.join(', '));
});

test('the server refuses a viewer every change that the document lists', options, async () => {
  const page = await openPage('vera', viewer);
  const allowed = ['POST /api/v1/session', 'DELETE /api/v1/session', 'POST /api/v1/access/links'];
  const answers = [];
  for (const [path, methods] of Object.entries(DOCUMENT.paths)) {
    for (const method of Object.keys(methods).map((name) => name.toUpperCase())) {
      if (method === 'GET' || allowed.includes(`${method} ${path}`)) continue;
      const status = await statusOf(page, method, path.replace(/\{[^}]+\}/g, '1'));
      answers.push(`${method} ${path}: ${status}`);
    }
  }
  assert.ok(answers.length > 60);
  assert.deepEqual(
    answers.filter((answer) => !answer.endsWith(' 403')),
    [],
  );
});

test('a page of another origin can change nothing', options, async () => {
  const page = await openPage();
  const send = (headers) =>
    page.request.post(`${server.url}/api/v1/volumes/db/marks`, {
      headers: { 'content-type': 'application/json', ...headers },
      data: { name: `from-${headers.origin?.length}` },
      failOnStatusCode: false,
    });
  assert.equal((await send({ origin: 'https://evil.example' })).status(), 403);
  assert.equal((await send({ origin: server.url, 'sec-fetch-site': 'cross-site' })).status(), 403);
  assert.equal((await send({ origin: server.url })).ok(), true);
  // A page of another port is of another origin, although the browser sends it the same cookies.
  const other = await page.context().newPage();
  await other.route('http://127.0.0.1:9/**', (route) =>
    route.fulfill({ contentType: 'text/html', body: '<p>' }),
  );
  await other.goto('http://127.0.0.1:9/');
  const marks = () => server.command('events', '--of', 'db', '--output', 'json');
  const before = marks();
  const outcome = await other.evaluate(async (url) => {
    const init = { method: 'POST', mode: 'no-cors', credentials: 'include', body: '{"name":"evil"}' };
    return fetch(url, init).then(
      (response) => response.type,
      () => 'refused',
    );
  }, `${server.url}/api/v1/volumes/db/marks`);
  assert.match(outcome, /opaque|refused/);
  assert.equal(marks(), before);
});

test('the end of a session shows the log-in page, without a reload', options, async () => {
  const page = await openPage('vera', viewer);
  await page.goto(`${server.url}/volumes/db`);
  await page.getByRole('slider').waitFor();
  const sessions = JSON.parse(server.command('access', 'session', 'list', '--output', 'json'));
  const own = sessions.filter(({ name }) => name === 'vera');
  server.command('access', 'session', 'end', ...own.map(({ id }) => id));
  await page.getByRole('heading', { name: 'Log in to Hindcast' }).waitFor({ timeout: 10_000 });
  await typeIn(page, 'vera', viewer);
  await page.getByRole('slider').waitFor();
  assert.match(page.url(), /volumes\/db/);
});

test('an administrator adds, changes and removes a user', options, async () => {
  const page = await openPage();
  await page.goto(`${server.url}/access`);
  await page.getByRole('button', { name: 'Add a user' }).click();
  const dialog = page.getByRole('dialog');
  const submit = dialog.getByRole('button', { name: 'Add the user' });
  await dialog.getByLabel('Name').fill('anna');
  await dialog.getByLabel('Role').selectOption('operator');
  await dialog.getByLabel('Password', { exact: true }).fill('eleven char');
  await dialog.getByText('A password has at least 12 characters.').waitFor();
  await dialog.getByLabel('Password', { exact: true }).fill('twelve chars');
  await dialog.getByLabel('The same again').fill('twelve charz');
  await dialog.getByText('The two passwords differ.').waitFor();
  assert.equal(await submit.isDisabled(), true);
  await dialog.getByLabel('The same again').fill('twelve chars');
  assert.equal(
    await dialog.locator('.command code').textContent(),
    'hindcast access user add anna --role operator',
  );
  await submit.click();
  await page.getByText('User anna was added.').waitFor();
  const anna = await openPage('anna', 'twelve chars');
  await page.getByRole('button', { name: 'Change anna' }).click();
  await dialog.getByLabel('Role').selectOption('viewer');
  await dialog.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByText('User anna was changed.').waitFor();
  await anna.getByRole('heading', { name: 'Log in to Hindcast' }).waitFor({ timeout: 10_000 });
  await page.getByRole('button', { name: 'Remove anna' }).click();
  await dialog.getByRole('button', { name: 'Remove', exact: true }).click();
  await page.getByText('User anna was removed.').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Change anna' }).count(), 0);
});

test('a token works as its dialog says, and its secret is shown once', options, async () => {
  const page = await openPage();
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write'], { origin: server.url });
  await page.goto(`${server.url}/access`);
  await page.getByRole('button', { name: 'Create a token' }).first().click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name').fill('ci');
  await dialog.getByRole('textbox', { name: 'Volumes' }).fill('db, web*');
  await dialog.getByLabel('Expires after').fill('30d');
  await dialog.getByLabel('Its holder may open views').check();
  assert.equal(
    await dialog.locator('.command code').textContent(),
    "hindcast access token create ci --role viewer --volumes 'db,web*' --views --expires 30d",
  );
  await dialog.getByRole('button', { name: 'Create the token' }).click();
  await page.getByRole('heading', { name: 'Token ci was created' }).waitFor();
  const secret = await dialog.locator('.command code').textContent();
  await dialog.getByRole('button', { name: 'Copy the secret' }).click();
  await dialog.getByRole('button', { name: 'Copied' }).waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), secret);
  await dialog.getByRole('button', { name: 'Done' }).click();
  const get = async (path) => {
    const headers = { authorization: `Bearer ${secret}` };
    return (await fetch(`${server.url}/api/v1${path}`, { headers })).status;
  };
  assert.equal(await get('/volumes/db'), 200);
  assert.equal(await get('/volumes'), 403);
  const row = page.getByRole('row').filter({ hasText: 'ci' });
  assert.match((await row.getByRole('cell').nth(1).textContent()) ?? '', /viewer.*views/);
  assert.ok(!(await page.content()).includes(secret));
  await page.getByRole('button', { name: 'Revoke ci' }).click();
  await dialog.getByRole('button', { name: 'Revoke', exact: true }).click();
  await page.getByText('Token ci was revoked.').waitFor();
  assert.equal(await get('/volumes/db'), 401);
});

// The last test: afterwards the server refuses every log-in of this address for a while.
test('after five wrong passwords the right one has to wait', options, async () => {
  const page = await (await browser.newContext()).newPage();
  await page.goto(server.url);
  for (let tries = 1; tries <= 5; tries += 1) {
    await typeIn(page, 'vera', `wrong password ${tries}`);
    await page.getByText('The name or the password is wrong').waitFor();
    await page.getByLabel('Name').fill('');
    await page.reload();
  }
  const answered = page.waitForResponse((response) => response.request().method() === 'POST');
  await typeIn(page, 'vera', viewer);
  assert.equal((await answered).status(), 429);
  await page.getByText('The log-in failed.').waitFor();
  await page.getByText(/again in|wait/i).waitFor();
  await page.waitForTimeout(11_000);
  await typeIn(page, 'vera', viewer);
  await page.waitForSelector('.shell');
});
