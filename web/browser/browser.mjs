// Starts what the browser tests need: Chromium, and the mock server with the built console.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const FLAGS =
  '--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync';

export function openBrowser() {
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  return chromium.launch({ executablePath, args: FLAGS.split(' ') });
}

/** Starts the mock server, on a free port unless the arguments name one. */
export function startMock(...args) {
  return start([], args);
}

/** Starts the mock server with a clock that stands still. All that it makes up is then always the same. */
export function startMockAt(time, ...args) {
  return start(['--import', `data:text/javascript,Date.now=()=>${time}`], args);
}

async function start(node, args) {
  const script = fileURLToPath(new URL('../mock/main.mjs', import.meta.url));
  const child = spawn(process.execPath, [...node, script, '--port', '0', ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  // A test that fails must not leave the server behind.
  process.on('exit', () => child.kill());
  const [line] = await once(child.stdout, 'data');
  const url = new URL(String(line).trim()).origin;
  const stop = async () => {
    child.kill();
    await once(child, 'exit');
  };
  return { url, stop };
}

/** Logs in by the mock's one-time link. */
export async function logIn(page, url, link = 'first') {
  await page.goto(`${url}/#link=${link}`);
  await page.waitForSelector('.shell');
}
