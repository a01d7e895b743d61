"""What every client test needs: a server, commands, tests that register themselves.

A test is a function `test(t)` decorated with `@test(...)`; `t` is a `Context`, which gives directories, servers and
processes and takes them down afterwards, last one first. `main()` runs the tests of one script and prints one line
for each, and a closing line `N passed, N failed, N skipped`.

Environment:
  HINDCAST        the binary (default: target/release/hindcast, then target/debug/hindcast)
  HINDCAST_PEER   `nbdkit`: run against `nbdkit file` instead, to tell a wrong test from a wrong server; tests of
                  what only Hindcast has are skipped
  HINDCAST_DIR    where scratch directories go (default /var/tmp; must be on a disk)
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEER = os.environ.get("HINDCAST_PEER")
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

# `hindcast`'s exit codes.
DONE, FAILED, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE, NO_SPACE = range(7)


class Skip(Exception):
    """The test can't run here; the reason is printed."""


class CommandFailed(Exception):
    """A command ended with an unexpected exit code."""


def binary():
    """The path of `hindcast`."""
    if "HINDCAST" in os.environ:
        path = pathlib.Path(os.environ["HINDCAST"]).resolve()
        if not path.exists():
            sys.exit(f"HINDCAST={path} does not exist")
        return path
    for profile in ("release", "debug"):
        path = ROOT / "target" / profile / "hindcast"
        if path.exists():
            return path
    sys.exit("no hindcast binary: `cargo build`, or set HINDCAST, or HINDCAST_PEER=nbdkit")


def run(*command, check=True, timeout=300, **kwargs):
    """Runs a command and returns its standard output."""
    command = [str(c) for c in command]
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run(command, text=True, errors="replace", capture_output=True, timeout=timeout, **kwargs)
    if check and done.returncode != 0:
        raise CommandFailed(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout if check else done


def need(*programs):
    """Skips the test unless all programs are installed."""
    for program in programs:
        if not shutil.which(program):
            raise Skip(f"{program} is not installed")


def need_root():
    """Skips the test unless it may mount and set up loop devices."""
    if os.geteuid() != 0:
        raise Skip("needs root: loop devices and mounts")
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            raise Skip(f"{device} does not exist here")


def wait_for(what, condition, limit=60.0, step=0.05):
    """Polls until `condition()` is true."""
    end = time.monotonic() + limit
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit:.0f} s in vain for: {what}")
        time.sleep(step)
    return result


def sha256(path):
    """Hash of a file or device."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(MIB):
            digest.update(block)
    return digest.hexdigest()


def tree_checksums(root):
    """Relative path -> hash (or link target) of everything below `root`."""
    sums = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            key = os.path.relpath(path, root)
            sums[key] = os.readlink(path) if os.path.islink(path) else sha256(path)
    return sums


class Api(http.client.HTTPConnection):
    """The admin API on a server's Unix socket, for what takes the command line too long."""

    def __init__(self, path):
        super().__init__("localhost")
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)

    def post(self, path, body):
        """Creates something."""
        self.request("POST", f"/api/v1/{path}", json.dumps(body), {"content-type": "application/json"})
        answer = self.getresponse()
        said = answer.read()
        assert answer.status == 201, (path, answer.status, said)

    def metric(self, name):
        """The value of a metric that has no labels."""
        self.request("GET", "/metrics")
        lines = self.getresponse().read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.split()[0] in (name, f"{name}_total"))


class Daemon:
    """What the two servers have in common: one process behind a Unix socket."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.log = self.dir.parent / (self.dir.name + ".log")
        self.process = None
        self.env = {}
        # Limits of the process, as `resource` names them: {what: (soft, hard)}.
        self.limits = {}

    def limit(self):
        for what, most in self.limits.items():
            resource.setrlimit(what, most)

    def spawn(self, command):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self.env}, preexec_fn=self.limit if self.limits else None,
            )

    def ended(self):
        return self.process is None or self.process.poll() is not None

    def log_tail(self):
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def kill(self):
        """SIGKILL: what is not in the kernel yet is gone."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self, limit=60):
        """SIGTERM, and a clean exit."""
        self.process.terminate()
        code = self.process.wait(limit)
        self.process = None
        assert code == 0, f"the server ended with {code} on SIGTERM\n{self.log_tail()}"

    def take_down(self):
        if not self.ended():
            self.kill()

    def uri(self, export):
        return f"nbd+unix:///{export}?socket={self.socket}"


class Hindcast(Daemon):
    """The real thing."""

    def __init__(self, directory, pool="4G", journal="256M", destage_start=0, features=None, args=()):
        """`destage_start`: per cent of the journal in use at which destage begins; 0 keeps it busy, and lets
        `drained` come true. `features`: those of a new pool, as `--pool-features` takes
        them."""
        super().__init__(directory)
        self.answered = False
        self.features = features
        self.socket = self.dir / "nbd.sock"
        self.api = self.dir / "hindcast.sock"
        self.args = [f"--pool-size={pool}", f"--journal-size={journal}", f"--destage-start={destage_start}", *args]
        if not any(str(arg).startswith("--iscsi=") for arg in args):
            # The default is one fixed port; tests may run beside other servers.
            self.args.append("--iscsi=none")
        if not any(str(arg).startswith("--api=") for arg in args):
            self.args.append(f"--api=unix:{self.api}")

    def start(self, wait=True):
        # A server that has answered has a pool: it has to be found again, not made.
        create = [] if self.answered else ["--create"]
        if create and self.features:
            create.append(f"--pool-features={self.features}")
        self.spawn([binary(), "serve", *create, "--data", self.dir, f"--nbd=unix:{self.socket}", *self.args])
        if wait:
            wait_for("the server's answer", self.is_up, limit=120)
        return self

    def is_up(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}\n{self.log_tail()}")
        up = self.cli("status", code=None)[0] == DONE
        self.answered |= up
        return up

    def refuses_to_start(self):
        """It must end by itself, in order, with a message; returns what it said."""
        start = self.log.stat().st_size if self.log.exists() else 0
        self.start(wait=False)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError("the server started, but should refuse") from None
        said = self.log.read_bytes()[start:].decode(errors="replace")
        assert code in (FAILED, USAGE, NOT_FOUND, CONFLICT), f"exit code {code}\n{said}"
        assert said.strip() and "panicked" not in said, said
        return said

    def cli(self, *args, code=DONE):
        """Runs the command line with `-o json`. Returns the parsed output, or (code, output, errors) with `code=None`.
        With another `code` than 0 it must fail exactly so, with a message, which is returned. `code` may be a tuple."""
        codes = code if isinstance(code, tuple) else (code,)
        done = subprocess.run(
            [str(binary()), *map(str, args), "-o", "json"],
            env={**os.environ, "HINDCAST_SOCKET": str(self.api)},
            stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=300,
        )
        if code is None:
            return done.returncode, done.stdout, done.stderr
        assert done.returncode in codes, (
            f"hindcast {' '.join(map(str, args))}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
        )
        if done.returncode != DONE:
            assert done.stderr.strip(), f"hindcast {' '.join(map(str, args))} failed without a message"
            return done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    def create(self, name, size, chunk="16K", *flags):
        self.cli("volume", "create", name, "--size", size, "--chunk", chunk, *flags)
        return self.uri(name)

    def show(self, name):
        return self.cli("volume", "show", name)

    def allocated(self, name):
        return self.show(name)["allocated"]

    def pool(self):
        return self.cli("pool", "show")

    def drained(self):
        """Waits until all that was written is in place."""
        def done():
            journal = self.pool()["journal"]
            return journal["destaged_lsn"] >= journal["sequenced_lsn"]
        wait_for("destage of everything", done, limit=120)

    def check(self):
        """Stops the server, verifies the pool offline, starts it again."""
        self.stop()
        report = self.check_offline()
        self.start()
        return report

    def check_offline(self):
        done = run(binary(), "check", "--data", self.dir, "-o", "json", check=False, timeout=600)
        assert done.returncode == DONE, f"check: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        report = json.loads(done.stdout)
        assert report["findings"] == [], f"check found: {json.dumps(report['findings'], indent=1)}"
        return report


class Peer(Daemon):
    """Another server that the same tests run against: one sparse file for each volume."""

    def create(self, name, size, chunk="16K", *_):
        run("truncate", "-s", size, self.dir / name)
        self.publish(name)
        return self.place(name)

    def publish(self, name):
        """Makes a new file known to the server."""

    def allocated(self, name):
        return (self.dir / name).stat().st_blocks * 512

    def drained(self):
        run("sync", "-f", self.dir)

    def check(self):
        pass


class Nbdkit(Peer):
    """`nbdkit file`."""

    def __init__(self, directory, args=(), **_):
        super().__init__(directory)
        self.socket = self.dir.parent / (self.dir.name + ".sock")
        self.args = args

    def start(self, wait=True):
        self.socket.unlink(missing_ok=True)
        self.spawn(["nbdkit", "-f", "-U", self.socket, *self.args, "file", f"dir={self.dir}"])
        wait_for("nbdkit", self.socket.exists)
        time.sleep(0.1)
        return self

    def place(self, name):
        return self.uri(name)


class Context:
    """What a test is given."""

    def __init__(self, name, long):
        self.long = long
        self._stack = contextlib.ExitStack()
        parent = os.environ.get("HINDCAST_DIR", "/var/tmp")
        # Short: a Unix socket's path has at most 107 bytes.
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hc-", dir=parent))
        self.dir.chmod(0o755)
        self.failed = False

    def defer(self, function, *args, **kwargs):
        """Calls a function when the test has ended; errors of it are printed, not raised."""
        def guarded():
            try:
                function(*args, **kwargs)
            except Exception as error:
                print(f"  while cleaning up: {error}", flush=True)
        self._stack.callback(guarded)

    def server(self, name="data", start=True, **kwargs):
        """A new server of its own, started."""
        server = (Nbdkit if PEER == "nbdkit" else Hindcast)(self.dir / name, **kwargs)
        self.defer(server.take_down)
        return server.start() if start else server

    def say(self, text):
        """Progress of a long test."""
        print(f"  {text}", flush=True)

    def close(self):
        self._stack.close()
        if self.failed and os.environ.get("HINDCAST_KEEP"):
            print(f"  kept: {self.dir}", flush=True)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)


TESTS = []


def test(limit=120, hindcast_only=False):
    """Registers a test; `limit` is in seconds. `hindcast_only`: a peer has nothing like it."""
    def register(function):
        TESTS.append((function, limit, hindcast_only))
        return function
    return register


def _expired(*_):
    raise TimeoutError("the test's time is up")


def _run_one(function, limit, hindcast_only, long):
    name = f"{pathlib.Path(sys.argv[0]).stem}: {function.__name__}"
    start = time.monotonic()
    context = Context(function.__name__, long)
    signal.signal(signal.SIGALRM, _expired)
    signal.alarm(limit * (10 if long else 1))
    try:
        if hindcast_only and PEER:
            raise Skip(f"only Hindcast has what this tests, and the server is {PEER}")
        function(context)
        result, detail = "passed", ""
    except Skip as skip:
        result, detail = "skipped", str(skip)
    except BaseException:
        context.failed = True
        result, detail = "failed", traceback.format_exc()
        for log in [*context.dir.glob("*.log"), *context.dir.glob("pg/*.log")]:
            detail += f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}\n"
        if sys.exc_info()[0] is KeyboardInterrupt:
            raise
    finally:
        signal.alarm(0)
        context.close()
    seconds = time.monotonic() - start
    word = {"passed": "ok  ", "failed": "FAIL", "skipped": "SKIP"}[result]
    print(f"{word} {name} ({seconds:.1f} s){': ' if detail else ''}{detail}", flush=True)
    return result


def main():
    """Runs the tests of the script that calls it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", action="store_true", help="more rounds, more data")
    parser.add_argument("--list", action="store_true", help="only print names")
    parser.add_argument("names", nargs="*", help="only tests whose name contains one of these")
    options = parser.parse_args()
    chosen = [t for t in TESTS if not options.names or any(n in t[0].__name__ for n in options.names)]
    if options.list:
        print("\n".join(t[0].__name__ for t in chosen))
        return
    if not chosen:
        sys.exit(f"no test's name contains {options.names}")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for function, limit, hindcast_only in chosen:
        counts[_run_one(function, limit, hindcast_only, options.long)] += 1
    print(", ".join(f"{n} {what}" for what, n in counts.items()), flush=True)
    sys.exit(1 if counts["failed"] else 0)
