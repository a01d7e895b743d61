// Dialogs that change what a real server has: groups, schedules, rules, accounts, LUNs. The command
// line then shows what the dialogs did.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { logIn, openBrowser } from './browser.mjs';
import { missing, startServer } from './server.mjs';

const options = { skip: missing, timeout: 60_000 };

let browser;
let server;
let page;
before(async () => {
  if (missing) return;
  server = await startServer();
  for (const name of ['db', 'log', 'wal'])
    server.command('volume', 'create', name, '--size', '64M', '--cdp', 'parity');
  server.command('snapshot', 'create', 'db@kept');
  server.command('group', 'create', 'shop', 'db', 'log');
  server.command('target', 'create', 'cluster');
  browser = await openBrowser();
  page = await browser.newPage({ viewport: { width: 1400, height: 1000 } });
  await logIn(page, server.url, server.link());
});
after(async () => {
  await browser?.close();
  await server?.dispose();
});

const json = (...words) => JSON.parse(server.command(...words, '--output', 'json'));
const button = (name) => page.getByRole('button', { name, exact: true });
const dialog = () => page.getByRole('dialog');
const field = (name) => dialog().getByLabel(name, { exact: true });

async function submit(name) {
  await dialog().getByRole('button', { name, exact: true }).click();
  await dialog().waitFor({ state: 'detached' });
}

async function go(path) {
  await page.goto(server.url + path);
  await page.waitForSelector('main h1');
  await page.waitForFunction(() => !document.querySelector('[aria-busy]'));
}

test('a schedule of a group by the clock of a zone, and its change', options, async () => {
  await go('/schedules');
  await button('Create a schedule').click();
  await field('Name').fill('work');
  await dialog().getByRole('group', { name: 'Groups' }).getByLabel('shop').check();
  await field('Every').fill('15m');
  await dialog().getByRole('group', { name: 'On' }).getByLabel('Mon').check();
  await field('Between').fill('08:00-18:00');
  await field('Time zone').fill('America/New_York');
  const command = await dialog().locator('.command code').textContent();
  assert.match(command, /work shop --every 15m --on mon --between 08:00-18:00 --tz America\/New_York /);
  await submit('Create');
  const made = json('schedule', 'show', 'work');
  assert.deepEqual(made.groups, ['shop']);
  assert.deepEqual(made.wall, { tz: 'America/New_York', on: ['mon'], between: '08:00-18:00' });

  await button('Change the schedule work').click();
  await field('Between').fill('');
  await dialog().getByRole('group', { name: 'On' }).getByLabel('Mon').uncheck();
  await field('Hours').fill('30');
  await submit('Change');
  const changed = json('schedule', 'show', 'work');
  assert.equal(changed.wall ?? null, null);
  assert.equal(changed.keep.hourly, 30);
});

test('the command of a dialog makes the same schedule as the dialog', options, async () => {
  await go('/schedules');
  await button('Create a schedule').click();
  await field('Name').fill('night');
  await dialog().getByRole('group', { name: 'Volumes' }).getByLabel('wal').check();
  await field('Every').fill('1d');
  await field('At').fill('02:30');
  await field('Time zone').fill('Europe/Berlin');
  const command = await dialog().locator('.command code').textContent();
  await submit('Create');
  const byDialog = json('schedule', 'show', 'night');
  server.command('schedule', 'delete', 'night');
  server.command(...command.split(' ').slice(1));
  const byCommand = json('schedule', 'show', 'night');
  for (const part of ['every', 'wall', 'keep', 'volumes', 'next'])
    assert.deepEqual(byCommand[part], byDialog[part], part);
});

test('a group gets a volume, a snapshot, a mark, and goes back', options, async () => {
  await go('/schedules');
  await button('Change the volumes of shop').click();
  await field('wal').check();
  await field('log').uncheck();
  await submit('Change');
  assert.deepEqual(json('group', 'show', 'shop').volumes, ['db', 'wal']);

  await button('Take a snapshot of shop').click();
  await field('Name').fill('both');
  await submit('Take the snapshot');
  await button('Mark the present of shop').click();
  await field('Name').fill('deployed');
  await submit('Set the mark');
  const names = json('snapshot', 'list').map(({ volume, name }) => `${volume}@${name}`);
  assert.ok(names.includes('db@both') && names.includes('wal@both') && !names.includes('log@both'));

  await button('Roll back shop').click();
  await field('Moment').fill('both');
  assert.ok(await dialog().getByRole('button', { name: 'Roll back', exact: true }).isDisabled());
  await field('Type shop to confirm').fill('shop');
  await submit('Roll back');
  assert.equal(json('snapshot', 'list').filter(({ name }) => /^before-/.test(name)).length, 2);
});

test('rules of NBD for all volumes are added, moved and removed', options, async () => {
  await go('/targets');
  for (const address of ['10.0.0.1', '10.0.0.2']) {
    await button('Add a rule for NBD to all volumes').click();
    await field('Addresses').fill(address);
    await submit('Add the rule');
  }
  const card = page.locator('section.card', { hasText: 'NBD rules for all volumes' });
  const shown = () => json('access', 'list', '--all')[0].rules.map(({ addresses }) => addresses[0]);
  await card.getByRole('button', { name: 'Move rule 2 up' }).click();
  await card.locator('li', { hasText: '10.0.0.2' }).getByText('1', { exact: true }).waitFor();
  assert.deepEqual(shown(), ['10.0.0.2', '10.0.0.1']);
  await card.getByRole('button', { name: 'Remove rule 1' }).click();
  await submit('Remove');
  assert.deepEqual(shown(), ['10.0.0.1']);
});

test('a target gets accounts, a rule for one of them, and a snapshot as a LUN', options, async () => {
  await go('/targets');
  const [{ name }] = json('target', 'list').filter((target) => !target.volume);
  await button(`CHAP of ${name}`).click();
  await field('Account').fill('alice');
  await field('Secret').fill('a secret of alice');
  await field('The target proves itself to initiators').selectOption('set');
  await field('Account of the target').fill('storage');
  await field('Secret of the target').fill('a secret of the target');
  await submit('Set the account');
  assert.deepEqual(json('target', 'show', name).chap, { user: 'alice', mutual_user: 'storage' });

  await button(`Add a rule to ${name}`).click();
  await field('CHAP account').fill('alice');
  await field('LUNs').fill('4');
  await submit('Add the rule');
  await button(`Add a LUN to ${name}`).click();
  await field('It is').selectOption('snapshot');
  await field('Volume').selectOption('db');
  await field('Snapshot').fill('kept');
  await field('Number').fill('4');
  await submit('Add');
  const target = json('target', 'show', name);
  assert.deepEqual([target.luns[0].lun, target.luns[0].source], [4, 'db@kept']);
  assert.deepEqual([target.rules[0].user, target.rules[0].luns], ['alice', [4]]);

  await button(`CHAP of ${name}`).click();
  await button('Remove the account alice').click();
  await submit('Remove');
  assert.equal(json('target', 'show', name).chap ?? null, null);
});

test('a volume is switched to refuse writes only after its name is typed', options, async () => {
  await go('/volumes/log/settings');
  await button('Refuse writes').click();
  assert.match(await dialog().locator('.command code').textContent(), /volume set log --read-only/);
  await field('Type log to confirm').fill('log');
  await submit('Change');
  assert.equal(json('volume', 'show', 'log').read_only, true);
  await page.getByRole('button', { name: 'Refuse writes', pressed: true }).click();
  await page.getByRole('button', { name: 'Refuse writes', pressed: false }).waitFor();
  assert.equal(json('volume', 'show', 'log').read_only, false);
});

test('a volume loses data, or a part of its history, only after its name is typed', options, async () => {
  server.command('volume', 'set', 'wal', '--cdp', 'parity', '--retain', 'all');
  await go('/volumes/wal/settings');
  const refuses = (name) => dialog().getByRole('button', { name, exact: true }).isDisabled();
  const confirmation = field('Type wal to confirm');
  await button('Resize').click();
  await field('New size').fill('128M');
  assert.equal(await refuses('Resize'), false);
  await field('New size').fill('32M');
  assert.equal(await refuses('Resize'), true);
  await confirmation.fill('wal');
  await submit('Resize');
  assert.equal(json('volume', 'show', 'wal').size, 32 << 20);

  const retention = () => json('volume', 'show', 'wal').cdp?.retain_seconds ?? null;
  for (const [kept, seconds] of [
    ['7d', 604_800],
    ['1d', 86_400],
  ]) {
    await button('Change').click();
    await field('Keep for').fill(kept);
    assert.equal(await refuses('Change'), true);
    await confirmation.fill('wal');
    await submit('Change');
    assert.equal(retention(), seconds);
  }
  await button('Change').click();
  await field('Keep for').fill('2d');
  assert.equal(await confirmation.count(), 0);
  await submit('Change');
  assert.equal(retention(), 172_800);

  await button('Change').click();
  await field('Encoding').selectOption('off');
  assert.equal(await refuses('Change'), true);
  await confirmation.fill('wal');
  await submit('Change');
  assert.equal(json('volume', 'show', 'wal').cdp ?? null, null);
});

test('the audit shows what was asked, by who asked', options, async () => {
  await go('/audit');
  await page.getByLabel('Search the audit').fill('schedules/work');
  await page.locator('tbody tr').first().waitFor();
  await page
    .getByRole('button', { name: /^Show PATCH/ })
    .first()
    .click();
  assert.match(await dialog().locator('.asked').textContent(), /"hourly": 30/);
  await dialog().getByRole('button', { name: 'Done' }).click();
  await page.getByLabel('Who').fill('not-a-user');
  await page.getByRole('heading', { name: 'No entry matches' }).waitFor();
});
