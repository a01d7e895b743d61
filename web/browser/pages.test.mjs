// Every page and every dialog, light and dark, at three widths: axe finds nothing serious, nothing
// is wider than its window, and nothing breaks the content security policy.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { logIn, openBrowser, startMock } from './browser.mjs';
import { PAGES, visit } from './pages.mjs';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const WIDTHS = [1600, 1024, 390];
const COLOURS = ['light', 'dark'];

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

/** What axe finds in the open dialog, or in the page without one. */
async function findings(page) {
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document.querySelector('dialog[open]') ?? document, {
      resultTypes: ['violations'],
      // Dialogs have no landmarks of their own.
      rules: { region: { enabled: !document.querySelector('dialog[open]') } },
    }),
  );
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) =>
      nodes.map(({ target, failureSummary }) => `${id}: ${target.join(' ')}: ${failureSummary}`),
    );
}

/** What is wider than the window: the page, its scrolling area, the dialog. */
function tooWide(page) {
  return page.evaluate(() => {
    const parts = ['main', 'dialog[open]'].flatMap((name) => document.querySelector(name) ?? []);
    const wide = parts.filter((part) => part.scrollWidth > part.clientWidth + 1);
    const root = document.documentElement;
    return [...wide, ...(root.scrollWidth > innerWidth ? [root] : [])].map(({ tagName }) => tagName);
  });
}

/** Looks at an open page in all widths and colours. */
async function look(page, name, complaints) {
  await page.evaluate(axe);
  for (const width of WIDTHS) {
    for (const colorScheme of COLOURS) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      await page.evaluate(
        () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
      );
      const at = `${name}, ${width} pixels, ${colorScheme}`;
      for (const part of await tooWide(page)) complaints.push(`${at}: ${part} is too wide`);
      complaints.push(...(await findings(page)).map((finding) => `${at}: ${finding}`));
    }
  }
}

/** Visits some pages in a window of its own. */
async function check(pages) {
  const complaints = [];
  const page = await browser.newPage({ viewport: { width: 1600, height: 900 }, reducedMotion: 'reduce' });
  let at = 'log-in';
  page.on('console', (message) => {
    // The log-in page appears because the server answers 401.
    const expected = at === 'log-in' && message.text().includes('401');
    if (message.type() === 'error' && !expected) complaints.push(`${at}: ${message.text()}`);
  });
  page.on('pageerror', (error) => complaints.push(`${at}: ${error.message}`));
  if (!pages.some(({ anonymous }) => anonymous)) await logIn(page, mock.url);
  for (const entry of pages) {
    at = entry.name;
    await page.setViewportSize({ width: 1600, height: 900 });
    await visit(page, mock.url, entry).then(
      () => look(page, at, complaints),
      (error) => complaints.push(`${at}: ${error.message}`),
    );
  }
  await page.close();
  return complaints;
}

const dialogs = PAGES.filter(({ act }) => act);
const plain = PAGES.filter(({ act, anonymous }) => !act && !anonymous);
const half = Math.ceil(dialogs.length / 2);

for (const [name, parts] of [
  ['the log-in page', [PAGES.filter(({ anonymous }) => anonymous)]],
  ['every page', [plain]],
  ['every dialog', [dialogs.slice(0, half), dialogs.slice(half)]],
]) {
  test(name, async () => {
    const complaints = (await Promise.all(parts.map(check))).flat();
    assert.deepEqual(complaints, []);
  });
}
