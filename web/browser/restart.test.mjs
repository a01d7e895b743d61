// A server that stops and starts again under an open page: the page says so, comes back, and misses
// no event.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { openBrowser, startMock } from './browser.mjs';

let browser;
let mock;
before(async () => {
  mock = await startMock('--open');
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
  await mock?.stop();
});

test('a page outlives its server', async () => {
  const { port } = new URL(mock.url);
  const page = await browser.newPage();
  await page.goto(`${mock.url}/events`);
  await page.getByText('was moved to the trash').waitFor();
  await mock.stop();
  await page.getByText('The server does not answer.').waitFor({ timeout: 8000 });
  assert.equal(await page.getByText('was moved to the trash').count(), 1);
  mock = await startMock('--open', '--port', port);
  const mark = { method: 'POST', body: JSON.stringify({ name: 'after-restart' }) };
  await fetch(`${mock.url}/api/v1/volumes/db/marks`, mark);
  await page.getByText('Mark after-restart was set on db.').waitFor({ timeout: 10_000 });
  assert.equal(await page.getByText('The server does not answer.').count(), 0);
});
