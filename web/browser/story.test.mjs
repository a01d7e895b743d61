// The first story of a user, against a real server with data that qemu-io writes over NBD:
//
//   HINDCAST_CONSOLE=http://127.0.0.1:8440 HINDCAST_LINK=… HINDCAST_NBD=127.0.0.1:10809 npm run browser
//
// HINDCAST_LINK is the secret of a one-time link of an administrator. A volume is made; a bar
// appears; the playhead is dragged to before the second write; open, recover, go back and undo give
// the bytes that they promise.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';

const { HINDCAST_CONSOLE: url, HINDCAST_LINK: link, HINDCAST_NBD: nbd } = process.env;
const missing = !(url && link && nbd);
if (missing) console.error('SKIPPED: the story test needs HINDCAST_CONSOLE, HINDCAST_LINK and HINDCAST_NBD.');

const NAME = `story-${Date.now()}`;
const FIRST = 0x11;
const SECOND = 0x22;

function qemuIo(address, command, ...options) {
  return execFileSync('qemu-io', ['-f', 'raw', ...options, '-c', command, address], { encoding: 'utf8' });
}

const write = (pattern) => qemuIo(`nbd://${nbd}/${NAME}`, `write -P ${pattern} 1M 1M`);

/** Fails unless the whole range has the pattern. */
function assertPattern(address, pattern) {
  const output = qemuIo(address, `read -P ${pattern} 1M 1M`, '-r');
  assert.doesNotMatch(output, /Pattern verification failed/, `${address} has not the pattern ${pattern}`);
}

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

let browser;
let page;
before(async () => {
  if (missing) return;
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  await logIn(page, url, link);
});
after(() => browser?.close());

async function createVolume() {
  await page.getByRole('link', { name: 'Volumes', exact: true }).click();
  await page.getByRole('button', { name: 'Create a volume' }).first().click();
  await page.getByRole('textbox', { name: 'Name' }).fill(NAME);
  await page.getByRole('textbox', { name: 'Size' }).fill('1G');
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('heading', { name: NAME }).waitFor();
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
  assertPattern(`nbd://${nbd}/${NAME}-then`, FIRST);
}

async function goBackAndUndo() {
  await page.getByRole('button', { name: 'Go back here' }).click();
  await page.getByLabel(`Type ${NAME} to confirm`).fill(NAME);
  await page.getByRole('button', { name: 'Go back', exact: true }).click();
  await page.getByRole('button', { name: 'Undo' }).waitFor();
  assertPattern(`nbd://${nbd}/${NAME}`, FIRST);
  await page.getByRole('button', { name: 'Undo' }).click();
  await page.getByText('has its content from before the rollback again.').waitFor();
  assertPattern(`nbd://${nbd}/${NAME}`, SECOND);
}

test('the bytes agree with every step of the story', { skip: missing, timeout: 120_000 }, async () => {
  await createVolume();
  await page.getByRole('link', { name: 'Timeline' }).first().click();
  await page.getByRole('slider', { name: 'Moment' }).waitFor();
  await wait(1500);
  write(FIRST);
  await page.waitForFunction(
    () => /The highest is [1-9]/.test(document.querySelector('.pointed')?.textContent ?? ''),
    null,
    { timeout: 2000 },
  );
  await wait(4000);
  const between = Date.now();
  await wait(4000);
  write(SECOND);
  assertPattern(`nbd://${nbd}/${NAME}`, SECOND);
  await dragTo(between);
  await openView();
  await recover();
  await goBackAndUndo();
});
