// Everything on the timeline by the keyboard alone, and the focus after dialogs. The mock answers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { logIn, openBrowser, startMock } from './browser.mjs';

let browser;
let mock;
let page;
before(async () => {
  mock = await startMock();
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  await logIn(page, mock.url);
});
after(async () => {
  await browser?.close();
  mock?.stop();
});

const slider = () => page.getByRole('slider', { name: 'Moment' });
const value = () => slider().getAttribute('aria-valuetext');
const at = () => new URL(page.url()).searchParams.get('at');

async function openTimeline(parameters = '') {
  await page.goto(`${mock.url}/volumes/db${parameters}`);
  await slider().waitFor();
  await page.waitForTimeout(800);
  await slider().focus();
}

async function press(...keys) {
  for (const key of keys) await page.keyboard.press(key);
  await page.waitForTimeout(400);
}

test('arrows move by a bucket, and the address keeps the moment', async () => {
  await openTimeline();
  assert.equal(await value(), 'now');
  await press('ArrowLeft', 'ArrowLeft', 'ArrowLeft');
  assert.match(await value(), /^\d+ [A-Z][a-z]+ \d\d:\d\d:\d\d.*changed since/);
  const moment = Date.parse(at());
  assert.ok(moment < Date.now() - 1000);
  await page.reload();
  await slider().waitFor();
  await page.waitForTimeout(600);
  assert.equal(Date.parse(at()), moment);
  await slider().focus();
  await press('End');
  assert.equal(await value(), 'now');
});

test('Shift and an arrow go to the next snapshot, mark or flush', async () => {
  await openTimeline(`?last=21600&at=${new Date(Date.now() - 3 * 3_600_000).toISOString()}`);
  const before = Date.parse(at());
  await press('Shift+ArrowLeft');
  const point = Date.parse(at());
  assert.ok(point < before && before - point < 600_000);
});

test('Control and an arrow move by one write', async () => {
  const moment = Date.now() - 30 * 60_000;
  const address = (time) => new Date(time).toISOString();
  await openTimeline(`?from=${address(moment - 2000)}&to=${address(moment + 2000)}&at=${address(moment)}`);
  await press('Control+ArrowRight');
  await page.waitForTimeout(600);
  const first = Date.parse(at());
  await press('Control+ArrowRight');
  await page.waitForTimeout(600);
  const second = Date.parse(at());
  assert.ok(first > moment && second > first, `${moment} ${first} ${second}`);
  assert.ok(second - moment < 5000);
});

test('plus and minus zoom, and Home goes to the oldest moment', async () => {
  await openTimeline('?last=21600');
  await press('ArrowLeft', 'ArrowLeft', '+');
  await page.waitForTimeout(400);

  const length = async () => {
    const { searchParams } = new URL(page.url());
    const last = Number(searchParams.get('last'));
    return last || (Date.parse(searchParams.get('to')) - Date.parse(searchParams.get('from'))) / 1000;
  };
  assert.ok(Math.abs((await length()) - 10_800) < 60, String(await length()));
  await press('-');
  await page.waitForTimeout(400);
  assert.ok(Math.abs((await length()) - 21_600) < 60, String(await length()));
  await press('Home');
  assert.match(await value(), /changed since/);
  assert.ok(Date.now() - Date.parse(at()) > 6 * 86_400_000);
});

test('T types a time, B sets a second handle, M marks, and the focus comes back', async () => {
  await openTimeline('?last=21600');
  await press('t');
  await page.keyboard.type('5m ago');
  await press('Enter');
  assert.ok(Math.abs(Date.now() - 300_000 - Date.parse(at())) < 5000);
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute('role')), 'slider');
  await press('b', 'ArrowLeft');
  assert.ok(new URL(page.url()).searchParams.get('and'));
  await press('b', 'm');
  await page.keyboard.type('by-keys');
  await press('Enter');
  await page.getByText('Mark by-keys was set.').waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute('role')), 'slider');
});

test('Escape closes a dialog, and the focus returns to its button', async () => {
  await page.goto(`${mock.url}/volumes`);
  const button = page.getByRole('button', { name: 'Create a volume' });
  await button.focus();
  await press('Enter');
  await page.getByRole('dialog').waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), 'INPUT');
  await press('Escape');
  assert.equal(await page.getByRole('dialog').count(), 0);
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), 'Create a volume');
});

test('going back needs the typed name, and can be undone', async () => {
  await openTimeline(`?last=21600&at=${new Date(Date.now() - 3_600_000).toISOString()}`);
  await page.getByRole('button', { name: 'Go back here' }).focus();
  await press('Enter');
  const submit = page.getByRole('button', { name: 'Go back', exact: true });
  assert.equal(await submit.isDisabled(), true);
  await page.keyboard.type('db');
  await press('Enter');
  const undo = page.getByRole('button', { name: 'Undo' });
  await undo.waitFor();
  await undo.focus();
  await press('Enter');
  await page.getByText('db has its content from before the rollback again.').waitFor();
});

test('a rule that is moved keeps the focus on its button', async () => {
  await page.goto(`${mock.url}/targets`);
  const focused = () => page.evaluate(() => document.activeElement?.getAttribute('aria-label'));
  const first = page.locator('.rules').first();
  const last = await first.locator('li .rule-text').nth(2).textContent();
  await first.getByRole('button', { name: 'Move rule 3 up' }).focus();
  for (const expected of ['Move rule 2 up', 'Move rule 1 down', 'Move rule 2 down', 'Move rule 3 up']) {
    await press('Enter');
    assert.equal(await focused(), expected);
    const place = Number(/\d/.exec(expected)[0]) - 1;
    assert.equal(await first.locator('li .rule-text').nth(place).textContent(), last);
  }
});
