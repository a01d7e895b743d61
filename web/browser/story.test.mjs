// The first story of a user, with the mouse, against a real server with data that qemu-io writes
// over NBD: a volume is made; a bar appears; the playhead is dragged to before the second write;
// open, a file, recover, go back and undo give the bytes that they promise.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';
import { makeImage, makePartitionTable } from './filesystem.mjs';
import { assertPattern, missing, qemuIo, startServer, wait, writePattern } from './server.mjs';

const NAME = 'story';
const FIRST = 0x11;
const SECOND = 0x22;

/** Where the volume's partition is: behind the pattern. */
const START = 32 << 20;
const LENGTH = 16 << 20;

/** What the file /etc/motd has before the damage. */
const THEN = 'this line is of before the damage';

let browser;
let page;
let server;
let work;
before(async () => {
  if (missing) return;
  work = mkdtempSync(join(tmpdir(), 'hindcast-story-'));
  server = await startServer();
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  await logIn(page, server.url, server.link());
});
after(async () => {
  if (work) rmSync(work, { recursive: true });
  await browser?.close();
  await server?.dispose();
});

async function createVolume() {
  await page.getByRole('link', { name: 'Volumes', exact: true }).click();
  await page.getByRole('button', { name: 'Create a volume' }).first().click();
  await page.getByRole('textbox', { name: 'Name' }).fill(NAME);
  await page.getByRole('textbox', { name: 'Size' }).fill('1G');
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: NAME }).waitFor();
}

/** Drags the playhead to a time, by the window that the address holds. */
async function dragTo(time) {
  const box = await page.locator('.stage').boundingBox();
  await page.getByRole('button', { name: '5 min', exact: true }).click();
  await wait(800);
  const left = box.x + 88;
  const last = Number(new URL(page.url()).searchParams.get('last'));
  const x = left + (box.width - 88) * (1 - (Date.now() - time) / 1000 / last);
  await page.mouse.move(box.x + box.width - 2, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(x, box.y + 60, { steps: 8 });
  await page.mouse.up();
  await wait(600);
  const at = Date.parse(new URL(page.url()).searchParams.get('at'));
  assert.ok(Math.abs(at - time) < 2000, `the playhead is ${at - time} ms off`);
}

/** Writes a partition with a file over NBD, and the pattern in front of it. */
function write(pattern, motd) {
  const table = makePartitionTable(work, START, LENGTH);
  const image = makeImage(work, { 'etc/motd': `${motd}\n` });
  const address = server.address(NAME);
  qemuIo(address, [`write -s ${table} 0 512`, `write -s ${image} ${START} ${LENGTH}`]);
  writePattern(address, pattern);
}

/** Looks into a file of the moment. It has what it had then. */
async function readFile() {
  await page.getByRole('button', { name: 'Files', exact: true }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'etc/' }).click();
  await dialog.getByRole('button', { name: 'motd' }).click();
  await dialog.getByLabel('Content of motd').getByText(THEN).waitFor();
  await dialog.getByRole('button', { name: 'Done' }).click();
  await dialog.waitFor({ state: 'detached' });
}

async function openView() {
  await page.getByRole('button', { name: 'Open', exact: true }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Open', exact: true }).click();
  await page.getByRole('heading', { name: 'is open' }).waitFor();
  const address = await page.getByRole('dialog').locator('.command code').first().textContent();
  assertPattern(address, FIRST);
  await page.getByRole('button', { name: 'Close the view' }).click();
  await page.getByText('is closed.').waitFor();
}

async function recover() {
  await page.getByRole('button', { name: 'Recover to a new volume' }).click();
  await page.getByLabel('Name of the new volume').fill(`${NAME}-then`);
  await page.getByRole('button', { name: 'Recover', exact: true }).click();
  await page.getByText(`Volume ${NAME}-then has the content of that moment.`).waitFor();
  assertPattern(server.address(`${NAME}-then`), FIRST);
}

async function goBackAndUndo() {
  await page.getByRole('button', { name: 'Go back here' }).click();
  await page.getByLabel(`Type ${NAME} to confirm`).fill(NAME);
  await page.getByRole('button', { name: 'Go back', exact: true }).click();
  await page.getByRole('button', { name: 'Undo' }).waitFor();
  assertPattern(server.address(NAME), FIRST);
  await page.getByRole('button', { name: 'Undo' }).click();
  await page.getByText('has its content from before the rollback again.').waitFor();
  assertPattern(server.address(NAME), SECOND);
}

test('the bytes agree with every step of the story', { skip: missing, timeout: 120_000 }, async () => {
  await createVolume();
  await page.getByRole('link', { name: 'Timeline' }).first().click();
  await page.getByRole('slider', { name: 'Moment' }).waitFor();
  await wait(1500);
  write(FIRST, THEN);
  await page.waitForFunction(
    () => /The highest is [1-9]/.test(document.querySelector('.pointed')?.textContent ?? ''),
    null,
    { timeout: 2000 },
  );
  await wait(4000);
  const between = Date.now();
  await wait(4000);
  write(SECOND, 'nothing is left');
  assertPattern(server.address(NAME), SECOND);
  await dragTo(between);
  await openView();
  await readFile();
  await recover();
  await goBackAndUndo();
});
