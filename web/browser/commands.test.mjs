// Each command that a page or a dialog shows is one that the program understands. The commands go
// to a socket that does not exist, so none of them changes anything.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { logIn, openBrowser, startMock } from './browser.mjs';
import { PAGES, visit } from './pages.mjs';
import { missing, PROGRAM } from './server.mjs';

/** The exit code of a command whose arguments are wrong. */
const USAGE = 2;

/** Commands that would begin something here instead of asking a server. */
const ALONE = /^hindcast (serve|check)\b/;

/** What the program says of a command that asks for a password, because a test has no terminal. */
const NO_TERMINAL = /there is no terminal to ask for the password/;

let browser;
let mock;
let work;
before(async () => {
  if (missing) return;
  work = mkdtempSync(join(tmpdir(), 'commands-'));
  chmodSync(work, 0o700);
  // The file names that commands with secrets show.
  for (const name of ['FILE', 'FILE2']) writeFileSync(join(work, name), 'a secret for a test');
  symlinkSync(resolve(PROGRAM), join(work, 'hindcast'));
  mock = await startMock();
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
  await mock?.stop();
  if (work) rmSync(work, { recursive: true, force: true });
});

/** Runs a line in a shell that finds the program, and no server. */
function run(line) {
  const env = { ...process.env, PATH: `${work}:${process.env.PATH}`, HINDCAST_SOCKET: join(work, 'none') };
  return spawnSync('sh', ['-c', line], { cwd: work, env, encoding: 'utf8', timeout: 10_000 });
}

async function commandsOf(page) {
  const lines = await page.locator('.command code').allTextContents();
  return lines.filter((line) => line.startsWith('hindcast ') && !ALONE.test(line));
}

/** Opens a view, and returns the commands that its dialog has. */
async function commandsOfView(page) {
  await visit(
    page,
    mock.url,
    PAGES.find(({ name }) => name === 'volume-open'),
  );
  await page.getByRole('dialog').getByRole('button', { name: 'Open', exact: true }).click();
  await page.getByRole('heading', { name: 'is open' }).waitFor();
  const lines = await commandsOf(page);
  for (const what of [/^hindcast view renew \S+ --lease 1h$/, /^hindcast view delete \S+$/])
    assert.ok(
      lines.some((line) => what.test(line)),
      lines.join('\n'),
    );
  return lines;
}

test('every command that is shown is understood', { skip: missing }, async () => {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 }, reducedMotion: 'reduce' });
  const seen = new Map();
  await logIn(page, mock.url);
  for (const entry of PAGES.filter(({ anonymous }) => !anonymous)) {
    await visit(page, mock.url, entry);
    for (const line of await commandsOf(page)) seen.set(line, entry.name);
  }
  for (const line of await commandsOfView(page)) seen.set(line, 'an open view');
  await page.close();
  assert.ok(seen.size > 45, `${seen.size} commands`);
  const refused = [...seen].flatMap(([line, name]) => {
    const { status, stderr } = run(line);
    if (NO_TERMINAL.test(stderr)) return [];
    return status === USAGE || status === 127 ? [`${name}: ${line}: ${stderr.trim()}`] : [];
  });
  assert.deepEqual(refused, []);
  // The check can fail: a wrong option has the exit code that it looks for.
  assert.equal(run('hindcast volume list --no-such-option').status, USAGE);
});
