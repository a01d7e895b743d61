// Serves the console with live reload: npm run dev [-- URL]
//
// URL is a server, such as http://127.0.0.1:8440. Without it, this starts the mock server, too.

import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

/** The port on which the development server looks for the mock. */
const PORT = '18450';

const [server] = process.argv.slice(2);
const root = fileURLToPath(new URL('..', import.meta.url));
const children = [];

function run(script, args, env = process.env) {
  const child = spawn(process.execPath, [fileURLToPath(new URL(script, import.meta.url)), ...args], {
    cwd: root,
    stdio: ['ignore', 'ignore', 'inherit'],
    env,
  });
  children.push(child);
  // One without the other serves nothing, so both end together.
  child.on('exit', (code) => {
    for (const other of children) other.kill();
    process.exitCode ??= code ?? 1;
  });
}

for (const signal of ['SIGINT', 'SIGTERM'])
  process.on(signal, () => {
    process.exitCode = 0;
    for (const child of children) child.kill();
  });

if (!server) run('../mock/main.mjs', ['--port', PORT]);
run('../node_modules/vite/bin/vite.js', [], {
  ...process.env,
  HINDCAST_API: server ?? `http://127.0.0.1:${PORT}`,
});
console.log(
  server
    ? `http://127.0.0.1:18451 with the API of ${server}; for a log-in without a password, run "hindcast console", and open its link with this port`
    : 'http://127.0.0.1:18451/#link=first with made-up data',
);
