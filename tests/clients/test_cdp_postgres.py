#!/usr/bin/python3
"""A table dropped under pgbench: recovery to just before it, by time, as a new volume, on which PostgreSQL recovers.

Everything committed before that time is there, the books balance, and the volume itself has gone on meanwhile."""

import datetime

from postgres import *


def counts(postgres):
    """{client: (number of its transactions, number of the last)}."""
    rows = postgres.sql("SELECT client, count(*), max(n) FROM ledger GROUP BY client").splitlines()
    return {int(client): (int(count), int(last)) for client, count, last in (row.split("|") for row in rows)}


@test(limit=900, hindcast_only=True)
def a_dropped_table_comes_back(t):
    need_root()
    server, disk, postgres = prepare(t, pool="8G")
    server.cli("volume", "set", "db", "--cdp", "parity")
    bench = Bench(t, postgres, 0, 600 if t.long else 20)
    wait_for("the first transactions", lambda: len(counts(postgres)) == CLIENTS)
    time.sleep(590 if t.long else 10)
    before = counts(postgres)
    moment = datetime.datetime.now(datetime.timezone.utc)
    time.sleep(0.05)
    postgres.sql("DROP TABLE ledger CASCADE")
    assert not postgres.sql("SELECT 1 FROM pg_class WHERE relname = 'ledger'").strip()
    bench.process.kill()
    bench.process.wait()
    # Life goes on for a while.
    postgres.sql("CREATE TABLE later AS SELECT generate_series(1, 100000) AS n")

    at = moment.isoformat().replace("+00:00", "Z")
    start = time.monotonic()
    server.cli("recover", "db", "--to", at, "--as", "db-then")
    there = time.monotonic()
    then = Disk(t, server, "db-then")
    then.attach()
    then.mount()
    again = Postgres(t, then.mount_dir / "pgdata", name="pg-then")
    # It is the pid of the original, which runs.
    (again.data / "postmaster.pid").unlink()
    again.start()
    found = counts(again)
    first = time.monotonic()
    t.say(f"the volume was there after {there - start:.3f} s, the first query answered after {first - start:.2f} s")
    for client, (count, last) in found.items():
        assert count == last, f"client {client}: {count} transactions, the last is number {last}"
    for client, (_, last) in before.items():
        assert client in found and found[client][1] >= last, f"client {client}: {found.get(client)} after {last}"
    assert not again.sql("SELECT 1 FROM pg_class WHERE relname = 'later'").strip(), "that is of the future"
    balanced(again)
    status = server.cli("history", "db")["status"]
    t.say(f"{status['records']} records, {status['written'] >> 20} MiB written, {status['stored'] >> 20} MiB of log")
    again.stop()
    then.detach()
    assert postgres.sql("SELECT count(*) FROM later").strip() == "100000"
    postgres.stop()
    disk.detach()
    server.check()


if __name__ == "__main__":
    main()
