// The timeline's canvas is as it was: fixed data, a clock that stands still, one pixel for each.
//
// After a change that should change the picture, look at it, and renew the golden pictures:
//
//   GOLDEN=renew node --test browser/golden.test.mjs
//
// They are of Debian 12's Chromium with the font DejaVu Sans. The tolerance covers the smoothing of
// another version; with another font the labels differ, and the test is skipped.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { logIn, openBrowser, startMockAt } from './browser.mjs';

const GOLDEN = fileURLToPath(new URL('golden/', import.meta.url));

/** Noon of a day in winter, in milliseconds. */
const NOON = Date.UTC(2027, 0, 20, 12);

/** The largest difference of a colour, of 255, and the largest share of pixels above it. */
const COLOUR = 24;
const SHARE = 0.0001;

let browser;
let mock;
before(async () => {
  mock = await startMockAt(NOON);
  browser = await openBrowser();
});
after(async () => {
  await browser?.close();
  await mock?.stop();
});

/** The share of pixels in which two pictures differ. Pictures of different sizes differ in all. */
async function difference(one, other) {
  const page = await browser.newPage();
  const share = await page.evaluate(
    async ([first, second, colour]) => {
      const read = async (base64) => {
        const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
        const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
        const canvas = new OffscreenCanvas(image.width, image.height);
        canvas.getContext('2d').drawImage(image, 0, 0);
        return canvas.getContext('2d').getImageData(0, 0, image.width, image.height);
      };
      const [a, b] = [await read(first), await read(second)];
      if (a.width !== b.width || a.height !== b.height) return 1;
      let differing = 0;
      for (let at = 0; at < a.data.length; at += 4) {
        const far = [0, 1, 2, 3].some((part) => Math.abs(a.data[at + part] - b.data[at + part]) > colour);
        if (far) differing += 1;
      }
      return differing / (a.data.length / 4);
    },
    [one, other, COLOUR],
  );
  await page.close();
  return share;
}

/** Opens a timeline, and returns its canvas as a PNG in base 64. */
async function canvasOf({ width, colorScheme, address }) {
  const page = await browser.newPage({
    viewport: { width, height: 900 },
    deviceScaleFactor: 1,
    colorScheme,
    timezoneId: 'UTC',
    reducedMotion: 'reduce',
  });
  await page.clock.setFixedTime(NOON);
  await logIn(page, mock.url);
  await page.goto(mock.url + address);
  await page.getByRole('slider').waitFor();
  // The window's own picture arrives after that of the whole history.
  await page.waitForTimeout(2500);
  const url = await page.locator('.stage canvas').evaluate((canvas) => canvas.toDataURL('image/png'));
  await page.close();
  return url.split(',')[1];
}

/** True if the browser draws text with the font of the golden pictures. */
async function hasFont() {
  const page = await browser.newPage();
  const [wanted, used] = await page.evaluate(() => {
    const context = new OffscreenCanvas(1, 1).getContext('2d');
    return ['"DejaVu Sans"', 'system-ui'].map((font) => {
      context.font = `40px ${font}, monospace`;
      return context.measureText('Snapshots 0123456789').width;
    });
  });
  await page.close();
  return wanted === used;
}

const ago = (hours) => new Date(NOON - hours * 3_600_000).toISOString();

const PICTURES = {
  'wide-light': { width: 1400, colorScheme: 'light', address: '/volumes/db?last=10800&heat=' },
  'week-light': { width: 1400, colorScheme: 'light', address: '/volumes/db?last=590000' },
  'writes-dark': {
    width: 1400,
    colorScheme: 'dark',
    address: `/volumes/db?from=${ago(0.5)}&to=${ago(0.499)}`,
  },
  'narrow-dark': { width: 390, colorScheme: 'dark', address: '/volumes/db?last=10800' },
};

for (const [name, picture] of Object.entries(PICTURES)) {
  test(`the timeline is as in golden/${name}.png`, async (context) => {
    if (!(await hasFont())) return context.skip('the font of the golden pictures is not DejaVu Sans here');
    const file = join(GOLDEN, `${name}.png`);
    const drawn = await canvasOf(picture);
    if (process.env.GOLDEN === 'renew') {
      mkdirSync(GOLDEN, { recursive: true });
      return writeFileSync(file, drawn, 'base64');
    }
    assert.ok(existsSync(file), `${file} is missing: GOLDEN=renew node --test browser/golden.test.mjs`);
    const share = await difference(drawn, readFileSync(file, 'base64'));
    const seen = join(tmpdir(), `golden-${name}.png`);
    if (share > SHARE) writeFileSync(seen, drawn, 'base64');
    assert.ok(
      share <= SHARE,
      `${(share * 100).toFixed(2)} % of the pixels differ. Compare ${seen} with ${file}. If the change is ` +
        'right: GOLDEN=renew node --test browser/golden.test.mjs',
    );
    return undefined;
  });
}
