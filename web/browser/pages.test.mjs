// Every page, light and dark: axe finds nothing serious, no page is wider than its window, and
// nothing breaks the content security policy.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { logIn, openBrowser, startMock } from './browser.mjs';
import { PAGES, visit } from './pages.mjs';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

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

async function findings(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { resultTypes: ['violations'] }),
  );
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) =>
      nodes.map(({ target, failureSummary }) => `${id}: ${target.join(' ')}: ${failureSummary}`),
    );
}

for (const [colorScheme, width] of [
  ['light', 1400],
  ['dark', 390],
]) {
  test(`every page in ${colorScheme} colours, ${width} pixels wide`, async () => {
    const page = await browser.newPage({
      viewport: { width, height: 900 },
      colorScheme,
      reducedMotion: 'reduce',
    });
    const complaints = [];
    page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()));
    page.on('pageerror', (error) => complaints.push(error.message));
    await logIn(page, mock.url);
    for (const entry of PAGES) {
      await visit(page, mock.url, entry);
      const scrolls = await page.evaluate(
        () =>
          document.documentElement.scrollWidth > innerWidth ||
          document.querySelector('main').scrollWidth > document.querySelector('main').clientWidth,
      );
      if (scrolls) complaints.push(`${entry.name} is wider than the window`);
      complaints.push(...(await findings(page)).map((finding) => `${entry.name}: ${finding}`));
    }
    assert.deepEqual(complaints, []);
    await page.close();
  });
}
