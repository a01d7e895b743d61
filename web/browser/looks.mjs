// Pictures of every page and dialog with the mock's data: npm run looks [-- DIRECTORY [NAME…]]
//
// The pictures are for people to look at. They show each page at three sizes, light and dark.

import { mkdirSync } from 'node:fs';
import { logIn, openBrowser, startMock } from './browser.mjs';
import { PAGES, visit } from './pages.mjs';

const SIZES = [
  [390, 844],
  [1024, 768],
  [1600, 1000],
];

const [directory = 'looks', ...only] = process.argv.slice(2);
const chosen = PAGES.filter(({ name }) => only.length === 0 || only.includes(name));
mkdirSync(directory, { recursive: true });
const mock = await startMock();
const browser = await openBrowser();
async function picture(colorScheme, [width, height]) {
  const page = await browser.newPage({
    viewport: { width, height },
    colorScheme,
    timezoneId: 'Europe/Berlin',
    reducedMotion: 'reduce',
    // A phone has no room for scroll bars, and draws them above the page.
    isMobile: width < 500,
    hasTouch: width < 500,
  });
  // The log-in page comes first in the list, before the window has a session.
  for (const entry of chosen) {
    if (!entry.anonymous && page.url() === 'about:blank') await logIn(page, mock.url);
    await visit(page, mock.url, entry);
    await page.screenshot({ path: `${directory}/${entry.name}-${width}-${colorScheme}.png` });
    if (entry.anonymous) await logIn(page, mock.url);
  }
  await page.close();
}

for (const colorScheme of ['light', 'dark']) {
  await Promise.all(SIZES.map((size) => picture(colorScheme, size)));
}
await browser.close();
mock.stop();
