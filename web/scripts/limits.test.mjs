// The limits of the console: bytes that a browser loads, and lines of a file.

import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';

/** Most bytes of JavaScript after gzip. */
const BUDGET = 120_000;

/** Most lines of a source. */
const LINES = 400;

/** Made by scripts from other documents. */
const GENERATED = ['api/schema.ts', 'lib/help-texts.ts'];

function filesOf(directory) {
  const root = new URL(directory, import.meta.url);
  const names = readdirSync(fileURLToPath(root), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => `${parentPath}/${name}`);
  return names.map((name) => [name.slice(fileURLToPath(root).length), readFileSync(name)]);
}

const relative = (name) => name.replace(/^\//, '');

test('the built JavaScript fits its budget', () => {
  const scripts = filesOf('../../crates/console/dist').filter(([name]) => name.endsWith('.js'));
  const size = scripts.reduce((sum, [, content]) => sum + gzipSync(content, { level: 9 }).length, 0);
  console.log(`JavaScript: ${size} bytes after gzip, of ${BUDGET}`);
  expect(scripts.length).toBeGreaterThan(0);
  expect(size).toBeLessThanOrEqual(BUDGET);
});

test('the built console has no fonts, and names no other host', () => {
  for (const [name, content] of filesOf('../../crates/console/dist')) {
    expect(name).toMatch(/\.(html|js|css|svg)$/);
    const hosts = String(content).match(/(?:https?:)?\/\/[a-z0-9.-]+\.[a-z]{2,}/gi) ?? [];
    // Namespaces of SVG and MathML are names, which no browser asks for.
    expect(hosts.filter((host) => host !== 'http://www.w3.org')).toEqual([]);
  }
});

test(`no source has more than ${LINES} lines`, () => {
  const long = [
    ...filesOf('../src'),
    ...filesOf('../mock'),
    ...filesOf('../browser'),
    ...filesOf('../scripts'),
  ]
    .filter(([name]) => /\.(tsx?|css|mjs)$/.test(name) && !GENERATED.includes(relative(name)))
    .map(([name, content]) => [relative(name), String(content).split('\n').length - 1])
    .filter(([, lines]) => lines > LINES);
  expect(long).toEqual([]);
});
