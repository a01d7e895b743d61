// Takes the pictures of docs/console/undo.md: the first story of a user, against a real server.

import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { logIn, openBrowser } from './browser.mjs';
import { missing, qemuIo, startServer, wait } from './server.mjs';

if (missing) throw new Error(missing);

const PICTURES = fileURLToPath(new URL('../../docs/console/', import.meta.url));
const work = mkdtempSync(join(tmpdir(), 'guide-'));
mkdirSync(PICTURES, { recursive: true });

const io = (...commands) => qemuIo(server.address('db'), commands);

/** Writes what a database might: small pages of which little changes, and a flush. */
function workOn(round) {
  const pages = Array.from({ length: 6 + (round % 5) * 4 }, (_, n) => (n * 37 + round * 11) % 4000);
  io(...pages.map((page) => `write -q -P ${1 + (round % 200)} ${page * 256}k 512`), 'flush');
}

/**
 * Overwrites the volume from its start to its end with content that does not compress, as the
 * accident does.
 */
async function accident() {
  const file = join(work, 'random');
  writeFileSync(file, randomBytes(256 << 10));
  for (let step = 0; step < 10; step += 1) {
    const places = Array.from(
      { length: 6 },
      (_, n) => `write -q -s ${file} ${20 + (step * 6 + n) * 16}M 256k`,
    );
    io(...places, 'flush');
    await wait(350);
  }
}

const server = await startServer();
const browser = await openBrowser();
const page = await browser.newPage({ viewport: { width: 1440, height: 960 }, deviceScaleFactor: 1 });

async function picture(name) {
  await wait(700);
  await page.screenshot({ path: join(PICTURES, `${name}.png`) });
}

const button = (name) => page.getByRole('button', { name, exact: true });

async function createVolume() {
  await page.getByRole('link', { name: 'Volumes', exact: true }).click();
  await page.getByRole('button', { name: 'Create a volume' }).first().click();
  await page.getByRole('textbox', { name: 'Name' }).fill('db');
  await page.getByRole('textbox', { name: 'Size' }).fill('1G');
  await picture('1-create');
  await button('Create').click();
  await page.getByRole('heading', { level: 1, name: 'db' }).waitFor();
}

async function setMark(name) {
  await page.getByRole('link', { name: 'Timeline' }).first().click();
  await page.getByRole('slider', { name: 'Moment' }).waitFor();
  await button('Mark now').click();
  await page.getByRole('dialog').getByRole('textbox').first().fill(name);
  await page.getByRole('dialog').getByRole('button', { name: 'Set the mark' }).click();
}

/** Drags the playhead to a time, as story.test.mjs does. */
async function dragTo(time) {
  await button('5 min').click();
  await wait(800);
  const box = await page.locator('.stage').boundingBox();
  const left = box.x + 88;
  const last = Number(new URL(page.url()).searchParams.get('last'));
  const x = left + (box.width - 88) * (1 - (Date.now() - time) / 1000 / last);
  await page.mouse.move(box.x + box.width - 2, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(x, box.y + 60, { steps: 12 });
  await page.mouse.up();
  await wait(900);
}

async function story() {
  await logIn(page, server.url, server.link());
  await createVolume();
  for (let round = 0; round < 30; round += 1) {
    workOn(round);
    await wait(900);
    if (round === 12) await setMark('before-upgrade');
  }
  const good = Date.now();
  await wait(3000);
  await accident();
  await wait(1500);
  await page.getByRole('link', { name: 'Timeline' }).first().click();
  await page.reload();
  await button('5 min').click();
  await wait(3000);
  await picture('2-accident');
  await dragTo(good);
  await picture('3-moment');
  await button('Map').click();
  await wait(1500);
  await picture('4-map');
  await button('Map').click();
  await button('Open').click();
  await page.getByRole('dialog').getByRole('button', { name: 'Open', exact: true }).click();
  await page.getByRole('heading', { name: 'is open' }).waitFor();
  await picture('5-open');
  await page.getByRole('button', { name: 'Close the view' }).click();
  await page.getByText('is closed.').waitFor();
  await button('Go back here').click();
  await page.getByLabel('Type db to confirm').fill('db');
  await picture('6-go-back');
  await button('Go back').click();
  await page.getByRole('button', { name: 'Undo' }).waitFor();
  await wait(1500);
  await picture('7-gone-back');
  await page.getByRole('button', { name: 'Undo' }).click();
  await page.getByText('has its content from before the rollback again.').waitFor();
  await picture('8-undone');
  await page.getByRole('link', { name: 'Snapshots' }).first().click();
  await page.reload();
  await picture('9-kept');
  await page.getByRole('link', { name: 'Events', exact: true }).click();
  await picture('10-events');
}

try {
  await story();
} finally {
  await browser.close();
  await server.dispose();
}
