"""PostgreSQL on ext4 on an exported volume, and a bench whose every commit is accounted for.

Each transaction moves money as TPC-B does and adds its own number to a ledger. pgbench logs, outside the volume, which
transactions it saw committed: each of those must be in the ledger, and the books must balance. Data checksums are on."""

import collections
import os
import pwd
import signal
import subprocess

from harness import *
from mounted import Disk

CLIENTS = 8
SCALE = 3

SCHEMA = "CREATE TABLE ledger (run int, client int, n int, delta int, PRIMARY KEY (run, client, n));"

# `n` counts as pgbench's own log does.
TRANSACTION = f"""
\\set n :n + 1
\\set aid random(1, 100000 * {SCALE})
\\set tid random(1, 10 * {SCALE})
\\set bid random(1, {SCALE})
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO ledger VALUES (:run, :client_id, :n, :delta);
END;
"""


def postgres_programs():
    """The directory of PostgreSQL's programs."""
    need("runuser", "psql", "pgbench")
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise Skip("PostgreSQL's server is not installed")
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        raise Skip("there is no user postgres")
    return found[-1].parent


class Postgres:
    """A database cluster in `data`, reached by a socket outside of it, in a directory `name`."""

    def __init__(self, t, data, name="pg"):
        self.t, self.data = t, data
        self.bin = postgres_programs()
        self.sockets = t.dir / name
        self.sockets.mkdir()
        shutil.chown(self.sockets, "postgres")
        self.log = self.sockets / "postgres.log"
        t.defer(self.stop_at_once)

    def as_postgres(self, *command, **kwargs):
        return run("runuser", "-u", "postgres", "--", *command, cwd="/", **kwargs)

    def init(self):
        self.data.mkdir()
        shutil.chown(self.data, "postgres")
        self.data.chmod(0o700)
        self.as_postgres(self.bin / "initdb", "-D", self.data, "--data-checksums", "-A", "trust", "-E", "UTF8",
                         "--locale=C")
        with open(self.data / "postgresql.auto.conf", "a") as settings:
            settings.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.sockets}'\nshared_buffers = 64MB\n"
                "max_wal_size = 128MB\ncheckpoint_timeout = 30s\nfsync = on\nfull_page_writes = on\n"
                "wal_sync_method = fdatasync\n"
            )
            settings.flush()
            os.fsync(settings.fileno())

    def start(self):
        """Starts it and waits until recovery has ended."""
        self.as_postgres(self.bin / "pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "120",
                         "-o", f"-k {self.sockets}", "start")

    def stop(self):
        self.as_postgres(self.bin / "pg_ctl", "-D", self.data, "-w", "-t", "120", "-m", "fast", "stop")

    def stop_at_once(self):
        """As a power cut would; its storage may be dead, so that its own means may fail."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            pid = self.pid_by_socket()
        if pid is None:
            return
        for signal_ in (signal.SIGQUIT, signal.SIGKILL):
            try:
                os.kill(pid, signal_)
                wait_for("postgres to end", lambda: not os.path.exists(f"/proc/{pid}"), limit=20)
                return
            except ProcessLookupError:
                return
            except AssertionError:
                continue

    def pid_by_socket(self):
        """From the lock file beside the socket, which does not lie on the volume."""
        try:
            return int((self.sockets / ".s.PGSQL.5432.lock").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def sql(self, statement):
        return run("psql", "-h", self.sockets, "-U", "postgres", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-qAtc",
                   statement)

    def pgbench(self, *args):
        return ["pgbench", "-h", str(self.sockets), "-U", "postgres", *map(str, args), "postgres"]


class Bench:
    """One run of pgbench in the background, and its log of committed transactions."""

    def __init__(self, t, postgres, number, seconds):
        self.logs = t.dir / f"pgbench-{number}"
        self.logs.mkdir()
        script = self.logs / "transaction.sql"
        script.write_text(TRANSACTION)
        command = postgres.pgbench("-n", "-f", script, "-c", CLIENTS, "-j", 2, "-T", seconds, "-D", f"run={number}",
                                   "-D", "n=0", "--log", f"--log-prefix={self.logs}/log")
        with open(self.logs / "output", "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        t.defer(self.process.kill)

    def committed(self):
        """After its end: {(client, n)} of the transactions whose COMMIT was answered."""
        # It ends by itself when its connections break, and flushes its log then.
        self.process.wait(60)
        seen = set()
        for log in self.logs.glob("log.*"):
            for line in log.read_text().splitlines():
                fields = line.split()
                assert len(fields) >= 6, f"a torn line in pgbench's log: {line!r}"
                seen.add((int(fields[0]), int(fields[1])))
        return seen

    def longest(self, after, until=float("inf")):
        """After its end: seconds of the longest transaction that ended between two times."""
        lines = [line.split() for log in self.logs.glob("log.*") for line in log.read_text().splitlines()]
        ended = ((int(f[4]) + int(f[5]) / 1e6, int(f[2]) / 1e6) for f in lines)
        return max((seconds for at, seconds in ended if after <= at <= until), default=0)


def balanced(postgres):
    """The books balance, and every table and index is whole."""
    sums = postgres.sql(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),"
        " (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM ledger)"
    ).strip().split("|")
    assert len(set(sums)) == 1, f"the books don't balance: accounts, tellers, branches, ledger = {sums}"
    postgres.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
    run(postgres.bin / "pg_amcheck", "-h", postgres.sockets, "-U", "postgres", "--heapallindexed", "postgres")


def verify(t, postgres, recorded):
    """Compares the ledger with all that was seen committed; returns how much was."""
    ledger = collections.defaultdict(set)
    for line in postgres.sql("SELECT run, client, n FROM ledger").splitlines():
        number, client, n = map(int, line.split("|"))
        ledger[number].add((client, n))
    for number, seen in recorded.items():
        lost = seen - ledger[number]
        assert not lost, f"run {number}: {len(lost)} of {len(seen)} committed transactions lost, as {sorted(lost)[:5]}"
        # Each client had at most one COMMIT on its way that it saw no answer to.
        extra = ledger[number] - seen
        assert len(extra) <= CLIENTS, f"run {number}: {len(extra)} transactions in the ledger that nobody saw"
    balanced(postgres)
    return sum(map(len, recorded.values()))


def prepare(t, **options):
    """A server with such options, and PostgreSQL with its ledger on a volume of it."""
    server = t.server(destage_start=25, **options)
    server.create("db", "4G")
    disk = Disk(t, server, "db")
    postgres = Postgres(t, disk.mount_dir / "pgdata")
    disk.attach()
    run("mkfs.ext4", "-q", "-F", disk.device)
    disk.mount()
    postgres.init()
    postgres.start()
    postgres.sql(SCHEMA)
    run(*postgres.pgbench("-i", "-q", "-s", SCALE))
    return server, disk, postgres
