// A real server that is killed, and starts again, under an open page: the page says so, comes back,
// and misses no event.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';
import { missing, startServer } from './server.mjs';

let browser;
let server;
before(async () => {
  if (missing) return;
  server = await startServer();
  server.command('volume', 'create', 'db', '--size', '64M', '--cdp', 'parity');
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
  await server?.dispose();
});

const shownIds = (page) =>
  page.locator('li[data-id]').evaluateAll((lines) => lines.map((line) => Number(line.dataset.id)));

async function serverIds(page) {
  const events = await (await page.request.get(`${server.url}/api/v1/events?limit=200`)).json();
  return events.map(({ id }) => id);
}

test('a page outlives a server that is killed', { skip: missing, timeout: 60_000 }, async () => {
  const page = await browser.newPage();
  await logIn(page, server.url, server.link());
  await page.getByRole('link', { name: 'Events', exact: true }).click();
  await page.locator('li[data-id]').first().waitFor();
  await page.evaluate(() => {
    globalThis.opened = true;
  });
  server.command('mark', 'db', 'before-the-crash');
  await page.getByText('before-the-crash').first().waitFor();
  const before = await shownIds(page);
  await server.end('SIGKILL');
  await page.getByText('The server does not answer.').waitFor({ timeout: 10_000 });
  assert.deepEqual(await shownIds(page), before);
  await server.start();
  // The page was away while this happened.
  server.command('mark', 'db', 'after-the-crash');
  // Sessions are in memory, so the server does not know this one any more.
  await page.getByRole('heading', { name: 'Log in to Hindcast' }).waitFor({ timeout: 15_000 });
  const password = server.addUser('anna', 'admin');
  await page.getByLabel('Name').fill('anna');
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByText('after-the-crash').first().waitFor();
  server.command('mark', 'db', 'in-sight-again');
  await page.getByText('in-sight-again').first().waitFor();
  assert.equal(await page.getByText('The server does not answer.').count(), 0);
  assert.equal(await page.evaluate(() => globalThis.opened), true);
  // An event of the last moments before the crash may be in no file. Then the page drops it, too.
  const ids = await serverIds(page);
  assert.deepEqual(await shownIds(page), ids);
  assert.ok(ids.filter((id) => !before.includes(id)).length >= 2, `${before} and ${ids}`);
});
