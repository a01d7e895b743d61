#!/usr/bin/python3
"""Snapshots of PostgreSQL under pgbench: each clone mounts, recovers, and satisfies the ledger.

What the database had committed before the snapshot was asked for must be in the clone, and nothing that was begun only
after it was there; each client's transactions are there without a gap, and the books balance."""

from postgres import *


def counts(postgres):
    """{client: (number of its transactions, number of the last)}."""
    rows = postgres.sql("SELECT client, count(*), max(n) FROM ledger GROUP BY client").splitlines()
    return {int(client): (int(count), int(last)) for client, count, last in (row.split("|") for row in rows)}


def verify_clone(t, server, n, before, after):
    """The clone as a disk of its own, and the database on it."""
    name = f"clone{n}"
    server.cli("clone", "create", f"db@s{n}", name)
    disk = Disk(t, server, name)
    disk.attach()
    disk.mount_checked()
    postgres = Postgres(t, disk.mount_dir / "pgdata", name=f"pg-{name}")
    # It is the pid of the original, which runs.
    (postgres.data / "postmaster.pid").unlink()
    postgres.start()
    found = counts(postgres)
    for client, (count, last) in found.items():
        assert count == last, f"client {client}: {count} transactions, the last is number {last}"
    for client, (_, last) in before.items():
        assert client in found and found[client][1] >= last, f"client {client}: {found.get(client)} after {last}"
    for client, (_, last) in found.items():
        assert client in after and last <= after[client][1], f"client {client}: {last} is of the future"
    balanced(postgres)
    postgres.stop()
    disk.detach()
    server.cli("volume", "delete", "--now", name)
    return sum(count for count, _ in found.values())


@test(limit=600, hindcast_only=True)
def every_clone_recovers(t):
    need_root()
    server, disk, postgres = prepare(t)
    bench = Bench(t, postgres, 0, 36000)
    wait_for("the first transactions", lambda: len(counts(postgres)) == CLIENTS)
    rounds = 100 if t.long else 5
    for n in range(rounds):
        server.cli("volume", "set", "db", "--method", "cow" if n % 2 else "row")
        before = counts(postgres)
        server.cli("snapshot", "create", f"db@s{n}")
        after = counts(postgres)
        assert bench.process.poll() is None, (bench.logs / "output").read_text()
        total = verify_clone(t, server, n, before, after)
        if n % 10 in (0, rounds - 1):
            t.say(f"snapshot {n + 1}: {total} transactions, all of them whole")
    last = counts(postgres)
    assert sum(c for c, _ in last.values()) > sum(c for c, _ in after.values()), "the bench stood still"
    bench.process.terminate()
    bench.process.wait(60)
    postgres.stop()
    disk.detach()
    server.check()


if __name__ == "__main__":
    main()
