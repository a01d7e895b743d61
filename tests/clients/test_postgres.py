#!/usr/bin/python3
"""PostgreSQL on ext4 on an exported volume, under pgbench, its storage killed with SIGKILL again and again.

After every kill each transaction that was seen committed must be in the ledger, the books must balance, the file
system must check clean, and pg_amcheck must find every table and index whole."""

from postgres import *


@test(limit=420)
def every_commit_survives_kills(t):
    need_root()
    server, disk, postgres = prepare(t)
    recorded = {}
    for kill in range(20 if t.long else 3):
        bench = Bench(t, postgres, kill, 600)
        time.sleep(3 + kill * 7 % 5)
        assert bench.process.poll() is None, (bench.logs / "output").read_text()
        server.kill()
        postgres.stop_at_once()
        recorded[kill] = bench.committed()
        assert recorded[kill], "pgbench committed nothing: the test would prove nothing"
        disk.tear_down()

        server.start()
        disk.attach()
        disk.mount_checked()
        postgres.start()
        total = verify(t, postgres, recorded)
        t.say(f"kill {kill + 1}: {len(recorded[kill])} transactions seen committed in this run, {total} in all: all there")
    postgres.stop()
    disk.detach()
    server.check()


@test(limit=240)
def stops_and_starts_in_good_order(t):
    need_root()
    server, disk, postgres = prepare(t)
    bench = Bench(t, postgres, 0, 10)
    recorded = {0: bench.committed()}
    assert bench.process.returncode == 0, (bench.logs / "output").read_text()
    postgres.stop()
    disk.detach()
    server.check()
    disk.attach()
    run("e2fsck", "-fn", disk.device, timeout=600)
    disk.mount()
    postgres.start()
    t.say(f"{verify(t, postgres, recorded)} transactions are there")
    postgres.stop()


if __name__ == "__main__":
    main()
