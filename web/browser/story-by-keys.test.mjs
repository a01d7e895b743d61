// The first story of a user by the keyboard alone, against a real server with data that qemu-io
// writes over NBD. The bytes agree with each step, and the focus returns to what opened a dialog.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { openBrowser } from './browser.mjs';
import { assertFocus, press, tabTo, typeOver } from './keys.mjs';
import { assertPattern, missing, startServer, wait, writePattern } from './server.mjs';

const NAME = 'ledger';
const FIRST = 0x11;
const SECOND = 0x22;
const SLIDER = 'slider Moment';

let browser;
let page;
let server;
before(async () => {
  if (missing) return;
  server = await startServer();
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
});
after(async () => {
  await browser?.close();
  await server?.dispose();
});

const at = () => Date.parse(new URL(page.url()).searchParams.get('at'));
const said = (text) => page.getByText(text).waitFor();

async function createVolume() {
  await page.goto(`${server.url}/#link=${server.link()}`);
  await page.waitForSelector('.shell');
  await press(page, 'link Volumes');
  await page.getByRole('heading', { level: 1, name: 'Volumes' }).waitFor();
  await press(page, 'button Create a volume');
  await assertFocus(page, 'field Name');
  await page.keyboard.type(NAME);
  await tabTo(page, 'field Size');
  await typeOver(page, '1G');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: NAME }).waitFor();
}

/** Writes, and waits for the bar. The page is the one that was open before. */
async function seeTheFirstWrite() {
  await press(page, 'link Timeline');
  await page.getByRole('slider').waitFor();
  await page.evaluate(() => {
    globalThis.opened = true;
  });
  await tabTo(page, SLIDER);
  await wait(1500);
  writePattern(server.address(NAME), FIRST);
  await page.waitForFunction(
    () => /The highest is [1-9]/.test(document.querySelector('.pointed')?.textContent ?? ''),
    null,
    { timeout: 2000 },
  );
  assert.equal(await page.evaluate(() => globalThis.opened), true);
}

async function markTheFirst() {
  await page.keyboard.press('m');
  await assertFocus(page, 'field Name');
  await page.keyboard.type('first');
  await page.keyboard.press('Enter');
  await said('Mark first was set.');
  await assertFocus(page, SLIDER);
}

/** Types the time between the writes, and moves by a bar to it and back. */
async function goBetween(time) {
  await page.keyboard.press('t');
  await assertFocus(page, 'field Time');
  const clock = await page.evaluate((at) => new Date(at).toTimeString().slice(0, 8), time);
  await page.keyboard.type(clock);
  await page.keyboard.press('Enter');
  await wait(500);
  await assertFocus(page, SLIDER);
  assert.equal(at(), Math.floor(time / 1000) * 1000);
  await page.keyboard.press('ArrowLeft');
  await wait(500);
  assert.ok(at() < time - 1);
  await page.keyboard.press('ArrowRight');
  await wait(500);
  assert.ok(Math.abs(at() - time) < 1000);
}

async function openAndClose() {
  assert.ok((await tabTo(page, 'button Open')) < 8, 'the actions are far from the playhead');
  await page.keyboard.press('Enter');
  await assertFocus(page, 'choice Keep it open for');
  await press(page, 'button Open');
  await page.getByRole('heading', { name: 'is open' }).waitFor();
  await assertFocus(page, 'button Done');
  assertPattern(await page.getByRole('dialog').locator('.command code').first().textContent(), FIRST);
  await press(page, 'button Close the view', 'Shift+Tab');
  await said('is closed.');
  await assertFocus(page, 'button Open');
}

async function recover() {
  await press(page, 'button Recover to a new volume');
  await assertFocus(page, 'field Name of the new volume');
  await typeOver(page, `${NAME}-then`);
  await page.keyboard.press('Enter');
  await said(`Volume ${NAME}-then has the content of that moment.`);
  assertPattern(server.address(`${NAME}-then`), FIRST);
  await assertFocus(page, 'button Recover to a new volume');
}

async function goBackAndUndo() {
  await press(page, 'button Go back here');
  await assertFocus(page, `field Type ${NAME} to confirm`);
  await page.keyboard.type(NAME);
  await page.keyboard.press('Enter');
  await said(`${NAME} is as it was then.`);
  assertPattern(server.address(NAME), FIRST);
  // Its button is disabled at the present, so the page has the focus.
  await assertFocus(page, 'page');
  await press(page, 'button Undo');
  await said('has its content from before the rollback again.');
  assertPattern(server.address(NAME), SECOND);
  await assertFocus(page, 'page');
}

test('the story by the keyboard alone', { skip: missing, timeout: 120_000 }, async () => {
  await createVolume();
  await seeTheFirstWrite();
  await markTheFirst();
  await wait(3000);
  const between = Date.now();
  await wait(3000);
  writePattern(server.address(NAME), SECOND);
  assertPattern(server.address(NAME), SECOND);
  await goBetween(between);
  await openAndClose();
  await recover();
  await goBackAndUndo();
});
