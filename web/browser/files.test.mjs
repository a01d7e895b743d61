// Files of a moment, against a real server with a file system that mkfs.ext4 made and qemu-img
// wrote
// over NBD. HINDCAST_SHOTS names a directory for pictures.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';
import { makeImage } from './filesystem.mjs';
import { missing, startServer, wait } from './server.mjs';

const NAME = 'files';
const THEN = 'this line is of then\n';

let browser;
let page;
let server;
let work;
before(async () => {
  if (missing) return;
  work = mkdtempSync(join(tmpdir(), 'hindcast-files-'));
  server = await startServer();
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 }, acceptDownloads: true });
  await logIn(page, server.url, server.link());
});
after(async () => {
  if (work) rmSync(work, { recursive: true });
  await browser?.close();
  await server?.dispose();
});

/** Writes a file system with these files over NBD. */
function write(files) {
  const image = makeImage(work, files);
  execFileSync('qemu-img', ['convert', '-n', '-f', 'raw', '-O', 'raw', image, `nbd://${server.nbd}/${NAME}`]);
}

/** Sends a request of the page's own session. */
function api(method, path, body) {
  return page.evaluate(
    async ([verb, to, content]) => {
      const headers = { 'content-type': 'application/json' };
      const response = await fetch(`/api/v1${to}`, {
        method: verb,
        headers,
        body: content && JSON.stringify(content),
      });
      return response.status === 204 ? null : response.json();
    },
    [method, path, body],
  );
}

test('a file of then is found, read and saved', { skip: missing, timeout: 120_000 }, async () => {
  const history = { encoding: 'parity' };
  const made = await api('POST', '/volumes', { name: NAME, size: 16 << 20, cdp: history });
  assert.equal(made.name, NAME, JSON.stringify(made));
  write({ 'etc/motd': THEN, 'etc/old': 'gone later', zeros: Buffer.alloc(300) });
  await wait(1500);
  const then = new Date().toISOString();
  await wait(1500);
  write({ 'etc/motd': 'another line', zeros: Buffer.alloc(300) });

  await page.goto(`${server.url}/volumes/${NAME}?at=${then}`);
  await page.getByRole('button', { name: 'Files', exact: true }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'etc/' }).click();
  await dialog.getByRole('button', { name: 'old' }).waitFor();
  await dialog.getByRole('button', { name: 'motd' }).click();
  await dialog.getByLabel('Content of motd').getByText(THEN.trim()).waitFor();
  assert.match(await dialog.locator('.command code').last().textContent(), /^hindcast files cp /);
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    dialog.getByRole('link', { name: 'Download' }).click(),
  ]);
  assert.equal(download.suggestedFilename(), 'motd');
  assert.equal(readFileSync(await download.path(), 'utf8'), THEN);
  await dialog.getByRole('button', { name: 'Disk' }).click();
  await dialog.getByRole('button', { name: 'zeros' }).click();
  await dialog.getByText('This file is not text.').waitFor();
  assert.equal((await api('GET', '/views')).length, 1);
  if (process.env.HINDCAST_SHOTS)
    await page.screenshot({ path: join(process.env.HINDCAST_SHOTS, 'files.png') });
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await wait(500);
  assert.deepEqual(await api('GET', '/views'), [], 'the view ends with the dialog');
});

test('the files that differ between two moments are named', { skip: missing, timeout: 60_000 }, async () => {
  // A window of the last seconds leaves the moment behind on a slow machine.
  await page.getByRole('button', { name: 'All', exact: true }).click();
  await page.getByRole('button', { name: 'Compare' }).click();
  await page.getByRole('slider', { name: 'Moment' }).focus();
  await page.keyboard.press('End');
  await page.getByRole('button', { name: 'Compare the two' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Which files differ?' }).click();
  const files = dialog.getByRole('table', { name: 'Files that differ' });
  await files.waitFor();
  const rows = await files.locator('tr').allTextContents();
  assert.ok(
    rows.some((row) => row.startsWith('removed/etc/old')),
    rows.join('\n'),
  );
  assert.ok(
    rows.some((row) => row.startsWith('changed/etc/motd')),
    rows.join('\n'),
  );
  if (process.env.HINDCAST_SHOTS)
    await page.screenshot({ path: join(process.env.HINDCAST_SHOTS, 'files-differ.png') });
  await page.keyboard.press('Escape');
});

test('a view that is open is listed, and can be closed', { skip: missing, timeout: 60_000 }, async () => {
  const moment = new Date(Date.now() - 1000).toISOString();
  const view = await api('POST', `/volumes/${NAME}/views`, { moment, lease_seconds: 900 });
  await page.goto(`${server.url}/volumes/${NAME}/access`);
  await page.getByRole('button', { name: `Show ${view.address}` }).click();
  await page.getByRole('heading', { name: `${view.address} is open` }).waitFor();
  const commands = await page.getByRole('dialog').locator('.command code').allTextContents();
  server.command(...`view renew ${view.id} --lease 1h`.split(' '));
  assert.ok(commands.includes(`hindcast view renew ${view.id} --lease 1h`), commands.join('\n'));
  assert.ok(commands.includes(`hindcast view delete ${view.id}`), commands.join('\n'));
  await page.getByRole('dialog').getByRole('button', { name: 'Done' }).click();
  await page.getByRole('button', { name: `Close ${view.address}` }).click();
  await page.getByRole('heading', { name: 'No view is open' }).waitFor();
  assert.deepEqual(await api('GET', '/views'), []);
});
