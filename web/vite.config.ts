import { loadEnv } from 'vite';
import { defineConfig } from 'vitest/config';

/** Address of the development server's API: the mock, unless scripts/dev.mjs names a server. */
const api = loadEnv('', '.', 'HINDCAST_API').HINDCAST_API ?? 'http://127.0.0.1:18450';

export default defineConfig({
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  server: { host: '127.0.0.1', port: 18451, proxy: { '/api': api } },
  build: {
    outDir: '../crates/console/dist',
    emptyOutDir: true,
    target: 'es2022',
    // The content security policy refuses data: URLs, so Vite must not inline small files.
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: true,
  },
  test: { include: ['src/**/*.test.ts', 'scripts/**/*.test.mjs'], environment: 'node' },
});
