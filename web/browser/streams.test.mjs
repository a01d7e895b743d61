// The endless answers of the server: hidden tabs hold none, and a page says why it has none. The
// mock answers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { openBrowser, startMock } from './browser.mjs';

const TABS = 5;

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

/**
 * A browser whose tabs the test hides and shows. A headless one treats every tab as the one in
 * front, so the test stands in for its `visibilityState`.
 */
async function openContext() {
  const context = await browser.newContext();
  await context.addInitScript(() => {
    let state = 'visible';
    Object.defineProperty(document, 'visibilityState', { get: () => state });
    Object.defineProperty(document, 'hidden', { get: () => state === 'hidden' });
    window.turn = (to) => {
      state = to;
      document.dispatchEvent(new Event('visibilitychange'));
    };
  });
  return context;
}

const turn = (page, state) => page.evaluate((to) => window.turn(to), state);
const openEvents = async (page) => {
  await page.goto(`${mock.url}/events`, { timeout: 5000 });
  await page.locator('.page-head').getByText('live', { exact: true }).waitFor({ timeout: 5000 });
};

test('a fifth tab loads while four are hidden, and a shown one misses nothing', async () => {
  const context = await openContext();
  const pages = [];
  for (let n = 0; n < TABS; n += 1) {
    const page = await context.newPage();
    await openEvents(page);
    pages.push(page);
    if (n < TABS - 1) await turn(page, 'hidden');
  }
  const mark = { method: 'POST', body: JSON.stringify({ name: 'while-hidden' }) };
  await fetch(`${mock.url}/api/v1/volumes/db/marks`, mark);
  const text = 'Mark while-hidden was set on db.';
  await pages.at(-1).getByText(text).waitFor();
  assert.equal(await pages[0].getByText(text).count(), 0);
  await turn(pages.at(-1), 'hidden');
  await turn(pages[0], 'visible');
  await pages[0].getByText(text).waitFor({ timeout: 5000 });
  await context.close();
});

test('the tabs would keep each other from loading if they were all shown', async () => {
  const context = await openContext();
  // Which of them stays empty depends on whose requests wait for the streams of which tab. A tab
  // whose rates have not begun holds one stream less.
  await assert.rejects(async () => {
    for (let n = 0; n < TABS; n += 1) {
      const page = await context.newPage();
      await Promise.all([page.waitForResponse('**/api/v1/live', { timeout: 5000 }), openEvents(page)]);
    }
  });
  await context.close();
});

test('a stream that is refused is not called live, and the page says what to do', async () => {
  const page = await browser.newPage();
  const refused = { kind: 'busy', message: 'follow events: too many streams are open; try again later' };
  let status = 409;
  const refuse = (route) =>
    route.request().headers().accept === 'text/event-stream'
      ? route.fulfill({ status, contentType: 'application/json', body: JSON.stringify(refused) })
      : route.continue();
  await page.route('**/api/v1/{events,live}', refuse);
  await page.goto(`${mock.url}/events`);
  await page.getByText('New events do not appear by themselves.').waitFor();
  await page.getByText('Close other windows of the console.').waitFor();
  await page.getByText('was moved to the trash').waitFor();
  assert.equal(await page.locator('.page-head').getByText('live', { exact: true }).count(), 0);
  await page.goto(`${mock.url}/`);
  await page.getByText("The rates can't be followed.").waitFor();
  await page.unroute('**/api/v1/{events,live}');
  await page.getByRole('button', { name: 'Try again' }).first().click();
  await page.getByText("The rates can't be followed.").waitFor({ state: 'detached' });

  status = 403;
  refused.kind = 'forbidden';
  refused.message = 'the role metrics may not read events';
  const forbid = (route) =>
    route.fulfill({ status, contentType: 'application/json', body: JSON.stringify(refused) });
  await page.route(/\/api\/v1\/events/, forbid);
  await page.goto(`${mock.url}/`);
  await page.getByText('The events could not be read.').waitFor();
  assert.equal(await page.getByText('The server has reported no event yet.').count(), 0);
  await page.goto(`${mock.url}/events`);
  await page.getByText('Ask an administrator for a role that may read this.').waitFor();
  assert.equal(await page.getByText('No event').count(), 0);
  await page.close();
});
