// Log-in, roles, and what happens when a session ends. The mock server answers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { logIn, openBrowser, startMock } from './browser.mjs';

let browser;
let mock;
before(async () => {
  mock = await startMock();
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
  mock?.stop();
});

async function fillIn(page, name, password) {
  await page.goto(mock.url);
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Log in' }).click();
}

test('a one-time link opens a session, and leaves the address', async () => {
  const page = await browser.newPage();
  await logIn(page, mock.url);
  assert.equal(new URL(page.url()).hash, '');
  assert.equal(await page.getByRole('heading', { level: 1 }).textContent(), 'Overview');
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), []);
  await page.close();
});

test('a wrong password says so, and the right one opens the console', async () => {
  const page = await browser.newPage();
  await fillIn(page, 'anna', 'a wrong password');
  await page.getByText('The log-in failed.').waitFor();
  await fillIn(page, 'anna', 'correct horse battery');
  await page.waitForSelector('.shell');
  await page.close();
});

test('a viewer sees no button that the server refuses', async () => {
  const page = await browser.newPage();
  await fillIn(page, 'night-watch', 'correct horse battery');
  await page.waitForSelector('.shell');
  await page.goto(`${mock.url}/volumes/db?last=10800&at=${new Date(Date.now() - 3_600_000).toISOString()}`);
  await page.getByRole('button', { name: 'Compare' }).waitFor();
  for (const name of ['Open', 'Go back here', 'Recover to a new volume', 'Keep as snapshot', 'Mark now']) {
    assert.equal(await page.getByRole('button', { name }).count(), 0, name);
  }
  assert.equal(await page.getByRole('link', { name: 'Audit' }).count(), 0);
  const status = await page.evaluate(async () => {
    const response = await fetch('/api/v1/volumes/db/marks', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"name":"x"}',
    });
    return response.status;
  });
  assert.equal(status, 403);
  await page.close();
});

test('the end of a session shows the log-in page', async () => {
  const page = await browser.newPage();
  await logIn(page, mock.url);
  await page.evaluate(() =>
    fetch('/api/v1/session', { method: 'DELETE', headers: { 'content-type': 'application/json' } }),
  );
  await page.goto(`${mock.url}/volumes`);
  await page.getByRole('heading', { name: 'Log in to Hindcast' }).waitFor();
  await page.close();
});
