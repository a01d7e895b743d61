// Consistent points, and what is next to a moment, where the timeline only counts points. The mock
// answers, with a flush every five seconds and ten thousand snapshots.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { logIn, openBrowser, startMock } from './browser.mjs';

const HOUR = 3_600_000;

let browser;
let mock;
let page;
before(async () => {
  mock = await startMock('--large');
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  await logIn(page, mock.url);
});
after(async () => {
  await browser?.close();
  mock?.stop();
});

const slider = () => page.getByRole('slider', { name: 'Moment' });
const panel = () => page.getByRole('complementary', { name: 'Moment' });
const at = () => Date.parse(new URL(page.url()).searchParams.get('at'));
const ago = (time) => new Date(Date.now() - time).toISOString();

async function openTimeline(volume, parameters) {
  await page.goto(`${mock.url}/volumes/${volume}?${parameters}`);
  await slider().waitFor();
  await page.waitForTimeout(800);
  await slider().focus();
}

/** Presses a key, and returns the moment once the line is at a flush. */
async function pressToFlush(key) {
  const before = at();
  await page.keyboard.press(key);
  await page.waitForFunction(
    (old) => Date.parse(new URL(location.href).searchParams.get('at')) !== old,
    before,
  );
  await panel().getByText('At a flush.').waitFor();
  await page.waitForTimeout(400);
  return at();
}

test('only consistent points: keys go from flush to flush in both directions', async () => {
  // Five minutes list their flushes, and a day only counts them.
  for (const seconds of [300, 86_400]) {
    await openTimeline('db', `last=${seconds}&at=${ago(2 * 60_000)}`);
    await page.getByRole('button', { name: 'Only consistent points' }).click();
    await panel().getByText('At a flush.').waitFor();
    await slider().focus();
    await page.waitForTimeout(400);
    const start = at();
    const later = await pressToFlush('Shift+ArrowRight');
    assert.ok(later > start && later - start < 8000, `${later - start} ms forth`);
    const latest = await pressToFlush('Control+ArrowRight');
    assert.ok(latest > later && latest - later < 60_000, `${latest - later} ms forth`);
    await pressToFlush('Shift+ArrowLeft');
    assert.equal(await pressToFlush('Shift+ArrowRight'), latest);
    assert.match(await slider().getAttribute('aria-valuetext'), /, at a flush$/);
    await page.getByRole('button', { name: 'Only consistent points' }).click();
    assert.equal(await panel().getByText('At a flush.').count(), 0);
  }
});

test('only consistent points: an arrow moves on where a bar is shorter than the way to a flush', async () => {
  await openTimeline('db', `last=60&at=${ago(40_000)}`);
  await page.getByRole('button', { name: 'Only consistent points' }).click();
  await panel().getByText('At a flush.').waitFor();
  await slider().focus();
  await page.waitForTimeout(400);
  const start = at();
  const next = await pressToFlush('ArrowRight');
  assert.ok(next > start && next - start < 8000, `${next - start} ms`);
});

test('the next of ten thousand snapshots is known, and reached', async () => {
  await openTimeline('db', `last=600000&at=${ago(50 * HOUR)}`);
  const row = panel().locator('.near-row', { hasText: 'Snapshot' });
  await row.getByRole('button').nth(1).waitFor();
  assert.match(await row.getByRole('button').nth(0).textContent(), /before|here/);
  assert.match(await row.getByRole('button').nth(1).textContent(), /after/);
  const start = at();
  await page.keyboard.press('Shift+ArrowRight');
  await page.waitForFunction((old) => Date.parse(new URL(location.href).searchParams.get('at')) > old, start);
  assert.ok(at() - start < HOUR, `${at() - start} ms`);
});
