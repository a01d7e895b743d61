#!/usr/bin/python3
"""Shortages that pass: the host's file system filled by another program, and a limit of descriptors."""

import errno
import os
import resource

from postgres import *
from libnbd import *


class Host:
    """A file system of its own, which somebody else can fill."""

    def __init__(self, t, size, make=("mkfs.ext4", "-q", "-m", "0")):
        need_root()
        need("losetup", make[0])
        self.image, self.dir = t.dir / "host.img", t.dir / "host"
        run("truncate", "-s", size, self.image)
        run(*make, self.image)
        self.dir.mkdir()
        run("mount", "-o", "loop", self.image, self.dir)
        t.defer(self.unmount)

    def unmount(self):
        wait_for("umount", lambda: run("umount", self.dir, check=False).returncode == 0, limit=20, step=0.2)

    def fill(self):
        """Takes all that there is, and goes on taking what is given back."""
        try:
            file = os.open(self.dir / "filler", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        except OSError:
            return
        for piece in (MIB, 4 * KIB):
            try:
                while os.write(file, b"x" * piece):
                    pass
            except OSError:
                pass
        os.close(file)

    def empty(self):
        (self.dir / "filler").unlink()


def codes(server):
    return {p["code"] for p in server.cli("status")["health"].get("problems", [])}


@test(limit=420, hindcast_only=True)
def the_host_is_filled_under_postgresql(t):
    host = Host(t, 1536 * MIB)
    server, disk, postgres = prepare(t, name="host/data", pool="4G", journal="256M")
    server.cli("volume", "set", "db", "--cdp", "undo")
    server.create("other", 64 * MIB)
    put(server, "other", pattern(1, 8 * MIB))
    put(server, "other", pattern(2, 64 * KIB))
    bench = Bench(t, postgres, 0, 600)
    time.sleep(3)
    told, taken, refused = set(), 0, 0
    end = time.monotonic() + 20
    while time.monotonic() < end:
        host.fill()
        # What has its place goes on, unless the journal is full of what has to wait. Reads always
        # do.
        with connection(server.uri("other")) as h:
            try:
                h.pwrite(pattern(2, 64 * KIB), 0)
                h.flush()
                taken += 1
            except nbd.Error as error:
                assert error.errnum == errno.ENOSPC, error.string
                assert "host-full-waiting" in codes(server), codes(server)
                refused += 1
            assert h.pread(64 * KIB, 0) == pattern(2, 64 * KIB)
            assert h.pread(MIB, MIB) == pattern(1, 8 * MIB)[MIB:2 * MIB]
        told |= codes(server)
        time.sleep(0.5)
    t.say(f"told while the host was full: {', '.join(sorted(told))}")
    t.say(f"writes to another volume: {taken} taken, {refused} refused")
    # Each refusal was told: no further file of the journal can be made, and what is in it waits for space.
    assert taken + refused >= 10, "reads or writes of another volume hung"
    assert "poisoned" not in told
    assert told & {"host-full", "host-full-waiting", "ballast-used", "history-room-low", "history-room-refusing"}
    host.empty()
    wait_for("the end of the shortage", lambda: not codes(server) - {"reserve-exceeded"}, limit=60)
    put(server, "other", pattern(3, MIB))
    postgres.stop_at_once()
    recorded = {0: bench.committed()}
    assert recorded[0], "pgbench committed nothing: the test would prove nothing"
    disk.tear_down()
    # The file system on the volume was told that there is no space, and may have given up: as after
    # a power cut.
    disk.attach()
    disk.mount_checked()
    postgres.start()
    total = verify(t, postgres, recorded)
    t.say(f"{len(recorded[0])} transactions seen committed, {total} in all: all there")
    bench = Bench(t, postgres, 1, 3)
    recorded[1] = bench.committed()
    assert recorded[1], "it does not go on"
    verify(t, postgres, recorded)
    postgres.stop()
    disk.detach()
    server.check()


@test(limit=240, hindcast_only=True)
def a_copy_shares_the_blocks_of_a_physical_volume(t):
    """What is overwritten needs space then, behind the commit of a batch, too."""
    host = Host(t, 400 * MIB, make=("mkfs.xfs", "-q", "-m", "reflink=1"))
    server = t.server(pool="64M", journal="64M")
    first = server.cli("pool", "pvs")[0]["path"]
    pv = host.dir / "pv"
    server.cli("pool", "add", pv, "--size", "128M")
    server.cli("pool", "drain", first)
    server.cli("pool", "remove", first)
    server.create("v", 64 * MIB, "64K", "--cdp", "undo")
    old, new = pattern(1, 16 * MIB), pattern(2, 16 * MIB)
    for n in range(4):
        put(server, "v", old, n * 16 * MIB)
    server.drained()
    run("cp", "--reflink=always", pv, host.dir / "backup")
    host.fill()
    put(server, "v", new, 16 * MIB)
    wait_for("the warning", lambda: "host-full-waiting" in codes(server), limit=60)

    def as_written():
        return all(get(server, "v", 16 * MIB, n * 16 * MIB) == (new if n == 1 else old) for n in range(4))

    assert as_written()
    # Killed while a batch is half done, and opened while there is still no space.
    server.kill()
    server.start()
    assert as_written()
    assert "poisoned" not in codes(server)
    (host.dir / "backup").unlink()
    host.empty()
    server.drained()
    assert as_written()
    assert not codes(server) & {"poisoned", "host-full-waiting", "pv-failed"}, codes(server)
    server.check()


@test(limit=400, hindcast_only=True)
def two_thousand_segments_and_a_thousand_descriptors(t):
    """Each volume has a history, and each history a segment that is being written."""
    server = t.server(start=False, pool="2G", journal="256M", destage_start=60)
    server.limits = {resource.RLIMIT_NOFILE: (1024, 1024)}
    server.start()
    volumes = [f"v{n}" for n in range(2000)]
    for name in volumes:
        server.create(name, MIB, "4K", "--cdp", "undo")
    t.say("all are there")
    for round_ in range(2):
        for n, name in enumerate(volumes):
            put(server, name, pattern(2 * n + round_, 4096))
        server.drained()
        t.say(f"round {round_} is in place")
        if round_ == 0:
            between = time.time() + 0.5
            time.sleep(1)
    assert "poisoned" not in codes(server)
    segments = sum(server.cli("history", name)["status"]["segments"] for name in volumes[::100])
    assert segments >= len(volumes[::100]), segments
    open_files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    assert open_files <= 1024

    def moments():
        for n, name in enumerate(volumes[::40]):
            assert get(server, name, 4096) == pattern(80 * n + 1, 4096)
        for n, name in enumerate(volumes[::200]):
            seconds = time.time() - between
            assert get(server, f"{name}@-{seconds:.1f}s", 4096) == pattern(400 * n, 4096)

    moments()
    server.kill()
    server.start()
    moments()
    server.check()


if __name__ == "__main__":
    main()
