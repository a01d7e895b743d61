// Rollbacks of a real volume, in the tree and beside its snapshots.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';
import { missing, startServer, wait, writePattern } from './server.mjs';

const options = { skip: missing, timeout: 60_000 };

let browser;
let server;
let page;
before(async () => {
  if (missing) return;
  server = await startServer();
  server.command('volume', 'create', 'db', '--size', '64M', '--cdp', 'parity');
  writePattern(server.address('db'), 1);
  server.command('snapshot', 'create', 'db@first');
  writePattern(server.address('db'), 2);
  server.command('mark', 'db', 'good');
  await wait(1100);
  writePattern(server.address('db'), 3);
  server.command('snapshot', 'create', 'db@second');
  server.command('clone', 'create', 'db@second', 'copy');
  server.command('rollback', 'db@good', '--force', '--undo-name', 'undo');
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  await logIn(page, server.url, server.link());
});
after(async () => {
  await browser?.close();
  await server?.dispose();
});

/** The names of the tree's rows, from the top. */
async function rowsOfTree() {
  await page.goto(`${server.url}/tree`);
  await page.locator('.tree-frame .dot').first().waitFor();
  const names = page.locator('.tree-frame svg > g > a text, .tree-frame svg > g > text.soft');
  return names.allTextContents();
}

/** The names in the table of snapshots, from the top. */
async function rowsOfSnapshots() {
  await page.goto(`${server.url}/volumes/db/snapshots`);
  await page.locator('tbody tr').first().waitFor();
  return page.locator('tbody td.wide').allTextContents();
}

test('the past that a rollback ended has its own line, and what came from it', options, async () => {
  assert.deepEqual(await rowsOfTree(), ['db', 'before a rollback', 'copy']);
  assert.equal(await page.locator('.tree-frame .back').count(), 1);
  assert.equal(await page.locator('.tree-frame .pause').count(), 1);
});

test('the present follows the moment to which the volume went back', options, async () => {
  const rows = await rowsOfSnapshots();
  assert.match(rows.join(' | '), /^Now \| undo.* \| second.* \| Moment lsn:\d+ rolled back to \| first/);
  // The server tells when that moment was.
  const row = page.locator('tbody tr', { hasText: 'Moment lsn:' });
  assert.match(await row.locator('time').textContent(), /ago|now/);
});

test('after the undo of the rollback, the volume is on its old line again', options, async () => {
  server.command('rollback', 'db@undo', '--force', '--undo-name', 'redo');
  const rows = await rowsOfSnapshots();
  assert.match(rows.join(' | '), /^Now \| redo.* \| undo.* \| second/);
  assert.deepEqual(await rowsOfTree(), ['db', 'before a rollback', 'copy']);
});
