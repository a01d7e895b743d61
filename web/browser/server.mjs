// A real server for a test, with its own pool, and clients that write to its volumes over NBD.
//
// HINDCAST names the program; the default is a debug build of this repository.

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const TARGET = process.env.CARGO_TARGET_DIR ?? fileURLToPath(new URL('../../target', import.meta.url));
export const PROGRAM = process.env.HINDCAST ?? join(TARGET, 'debug/hindcast');

/** Why no real server can run here, or false. A test passes it as its option `skip`. */
export const missing =
  !existsSync(PROGRAM) && `there is no ${PROGRAM}: cargo build -p hindcast, or set HINDCAST`;
if (missing) console.error(`SKIPPED: ${missing}`);

export const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

class Server {
  data = mkdtempSync(join(tmpdir(), 'console-'));
  socket = join(this.data, 'api.sock');
  api = '127.0.0.1:0';
  nbd = '127.0.0.1:0';

  async start() {
    const log = openSync(join(this.data, 'log'), 'a');
    const pool = [
      '--create',
      '--data',
      join(this.data, 'pool'),
      '--pool-size',
      '1G',
      '--journal-size',
      '64M',
    ];
    const ports = ['--api', `unix:${this.socket}`, '--api', this.api, '--nbd', this.nbd, '--iscsi', 'none'];
    this.child = spawn(PROGRAM, ['serve', ...pool, ...ports], { stdio: ['ignore', log, log] });
    this.child.once('exit', () => {
      this.ended = true;
    });
    this.ended = false;
    const { listeners } = await this.answering();
    // A server that starts again listens on the ports that its clients know.
    this.api = listeners.api.find((listener) => !listener.startsWith('unix:'));
    [this.nbd] = listeners.nbd;
    this.url = `http://${this.api}`;
  }

  async answering() {
    for (let tries = 0; tries < 200 && !this.ended; tries += 1) {
      try {
        return JSON.parse(this.command('status', '--output', 'json'));
      } catch {
        await wait(50);
      }
    }
    throw new Error(`the server does not answer; its log is ${join(this.data, 'log')}`);
  }

  /** Runs a command of the program on this server, as an administrator, and returns its output. */
  command(...args) {
    const options = { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] };
    return execFileSync(PROGRAM, ['--socket', this.socket, ...args], options);
  }

  /** The secret of a new one-time link of an administrator. */
  link() {
    return this.command('console').trim().split('#link=')[1];
  }

  /** Adds a user, and returns the password. */
  addUser(name, role) {
    const password = `${name} has a long password`;
    const file = join(this.data, 'password');
    writeFileSync(file, password);
    this.command('access', 'user', 'add', name, '--role', role, '--password-file', file);
    return password;
  }

  async end(signal = 'SIGTERM') {
    if (this.ended) return;
    this.child.kill(signal);
    await once(this.child, 'exit');
  }

  async dispose() {
    await this.end();
    rmSync(this.data, { recursive: true, force: true });
  }

  address(volume) {
    return `nbd://${this.nbd}/${volume}`;
  }
}

export async function startServer() {
  const server = new Server();
  // A test that fails must not leave the server behind.
  process.on('exit', () => server.child?.kill('SIGKILL'));
  await server.start();
  return server;
}

/** Runs commands of qemu-io on an NBD address, and returns what they print. */
export function qemuIo(address, commands, ...options) {
  const args = [commands].flat().flatMap((command) => ['-c', command]);
  return execFileSync('qemu-io', ['-f', 'raw', ...options, ...args, address], { encoding: 'utf8' });
}

/** Writes a pattern to the second MiB of a volume. */
export const writePattern = (address, pattern) => qemuIo(address, `write -P ${pattern} 1M 1M`);

/** Fails unless the second MiB has the pattern. */
export function assertPattern(address, pattern) {
  const output = qemuIo(address, `read -P ${pattern} 1M 1M`, '-r');
  if (/Pattern verification failed/.test(output))
    throw new Error(`${address} has not the pattern ${pattern}`);
}
