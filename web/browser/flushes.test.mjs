// Only consistent points, against a real server: the line goes from flush to flush, and the moment
// at a flush is that flush for the server, too. Times of the server have nanoseconds.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';
import { missing, qemuIo, startServer, wait } from './server.mjs';

const NAME = 'db';
const FLUSHES = 6;

let browser;
let page;
let server;
before(async () => {
  if (missing) return;
  server = await startServer();
  server.command('volume', 'create', NAME, '--size', '64M', '--cdp', 'parity');
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  await logIn(page, server.url, server.link());
});
after(async () => {
  await browser?.close();
  await server?.dispose();
});

/** Sends a request of the page's own session. */
function api(method, path, body) {
  return page.evaluate(
    async ([verb, to, content]) => {
      const headers = { 'content-type': 'application/json' };
      const options = { method: verb, headers, body: content && JSON.stringify(content) };
      return (await fetch(`/api/v1${to}`, options)).json();
    },
    [method, path, body],
  );
}

test('the moment at a flush is the flush', { skip: missing, timeout: 60_000 }, async () => {
  for (let n = 1; n <= FLUSHES; n += 1) {
    qemuIo(server.address(NAME), [`write -P ${n} 0 64k`, 'flush', `write -P ${n + 100} 0 64k`]);
    await wait(300);
  }
  const { flushes } = await api('GET', `/volumes/${NAME}/timeline`);
  assert.ok(flushes.items.length >= FLUSHES, JSON.stringify(flushes));

  await page.goto(`${server.url}/volumes/${NAME}?last=60`);
  const slider = page.getByRole('slider', { name: 'Moment' });
  await slider.waitFor();
  await wait(800);
  await page.getByRole('button', { name: 'Only consistent points' }).click();
  await slider.focus();
  await page.keyboard.press('Home');
  const at = () => new URL(page.url()).searchParams.get('at');
  const seen = [];
  for (const _ of flushes.items) {
    await page.getByText('At a flush.').waitFor();
    await wait(400);
    seen.push(at());
    const view = await api('POST', `/volumes/${NAME}/views`, { moment: at(), last_flush: true });
    assert.equal(view.lsn, flushes.items[seen.length - 1].lsn, `at ${at()}`);
    await page.keyboard.press('Shift+ArrowRight');
    await wait(400);
  }
  assert.equal(new Set(seen).size, flushes.items.length);
  assert.equal(at(), null, 'behind the last flush is the present');
});
