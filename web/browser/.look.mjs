// Takes one picture for a look while developing: node browser/look.mjs PATH FILE [WIDTHxHEIGHT] [light|dark] [script]
import { chromium } from 'playwright-core';

const [path, file, size = '1600x1000', scheme = 'light', script] = process.argv.slice(2);
const [width, height] = size.split('x').map(Number);
const args =
  '--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync'.split(
    ' ',
  );
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args });
const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme });
page.on('console', (m) => ['error', 'warning'].includes(m.type()) && console.log(m.text()));
page.on('pageerror', (e) => console.log('ERR', e.stack));
await page.goto('http://127.0.0.1:18450/#link=first');
await page.waitForTimeout(400);
await page.goto(`http://127.0.0.1:18450${path}`);
await page.waitForTimeout(1200);
if (script) await new Function('page', `return (async () => {${script}})()`)(page);
await page.waitForTimeout(300);
await page.screenshot({ path: file });
await browser.close();
