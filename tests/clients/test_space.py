#!/usr/bin/python3
"""A full pool: the protocol's own error for what can't be promised, and everything else goes on."""

import errno
import random

from harness import *
from libnbd import *

PIECE = 256 * KIB


def fill(h, size, written, seed):
    """Writes pieces until there is no space; returns the content by offset, of acknowledged writes only."""
    for offset in range(0, size, PIECE):
        if offset in written:
            continue
        data = pattern(seed + offset, PIECE)
        try:
            h.pwrite(data, offset)
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC, f"{error.errno}: {error.string}"
            return
        written[offset] = data
    raise AssertionError("the pool never got full")


def compare(h, written):
    for offset, data in written.items():
        assert h.pread(PIECE, offset) == data, f"{offset} differs"


def overwrite(h, written, rng, rounds):
    """Small writes into what is allocated already."""
    for _ in range(rounds):
        offset = rng.choice(list(written))
        at = rng.randrange(PIECE // 4096) * 4096
        data = rng.randbytes(4096)
        h.pwrite(data, offset + at)
        written[offset] = written[offset][:at] + data + written[offset][at + 4096:]


def eventually_writes(h, offset, data):
    """Space that was freed comes back once the freeing is durable."""
    def accepted():
        try:
            h.pwrite(data, offset)
            return True
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC, f"{error.errno}: {error.string}"
            return False
    wait_for("a write into freed space", accepted, limit=60, step=0.2)


class Full:
    """A pool of 256 MiB with a settled volume and a large thin one that fills it."""

    def __init__(self, t, **kwargs):
        self.server = t.server(pool="256M", journal="64M", **kwargs)
        self.calm = self.server.create("calm", 32 * MIB)
        self.big = self.server.create("big", "2G")
        self.calm_data, self.big_data = {}, {}
        with connection(self.calm) as h:
            for offset in range(0, 32 * MIB, PIECE):
                self.calm_data[offset] = pattern(offset, PIECE)
                h.pwrite(self.calm_data[offset], offset)
        self.server.drained()
        self.fill()

    def fill(self):
        with connection(self.big) as h:
            fill(h, 2 * GIB, self.big_data, 1)

    def verify(self):
        with connection(self.calm) as calm, connection(self.big) as big:
            compare(calm, self.calm_data)
            compare(big, self.big_data)

    def check(self):
        self.server.check()
        self.verify()


@test(limit=240, hindcast_only=True)
def everything_else_goes_on(t):
    full = Full(t)
    assert sum(map(len, full.big_data.values())) > 150 * MIB, "most of the pool must be usable"
    full.verify()
    rng = random.Random(5)
    with connection(full.calm) as h:
        overwrite(h, full.calm_data, rng, 2000)
        h.flush()
    with connection(full.big) as h:
        overwrite(h, full.big_data, rng, 2000)
        refused(errno.ENOSPC, h.pwrite, bytes([1]) * PIECE, 2 * GIB - PIECE)
        h.flush()
    full.verify()
    # Control operations have room of their own.
    full.server.cli("volume", "create", "late", "--size", "1G")
    full.server.cli("volume", "delete", "--now", "late")
    status = full.server.cli("status")
    assert status["health"]["state"] == "warning", f"a full pool is nothing to warn about? {status['health']}"
    full.check()


@test(limit=240, hindcast_only=True)
def trim_makes_room(t):
    full = Full(t)
    with connection(full.big) as h:
        for offset in list(full.big_data)[::2]:
            h.trim(PIECE, offset)
            full.big_data[offset] = bytes(PIECE)
        data = pattern(99, PIECE)
        eventually_writes(h, 2 * GIB - PIECE, data)
        full.big_data[2 * GIB - PIECE] = data
    full.verify()
    full.check()


@test(limit=240, hindcast_only=True)
def deleting_a_volume_makes_room(t):
    full = Full(t)
    full.server.cli("volume", "delete", "--now", "calm")
    full.calm_data.clear()
    with connection(full.big) as h:
        data = pattern(98, PIECE)
        eventually_writes(h, 2 * GIB - PIECE, data)
        full.big_data[2 * GIB - PIECE] = data
        compare(h, full.big_data)
    full.server.check()
    with connection(full.big) as h:
        compare(h, full.big_data)


@test(limit=240, hindcast_only=True)
def a_physical_volume_makes_room(t):
    full = Full(t)
    before = len(full.big_data)
    full.server.cli("pool", "add", t.dir / "more.pv", "--size", "128M")
    full.fill()
    gained = (len(full.big_data) - before) * PIECE
    assert gained > 80 * MIB, f"128 MiB were added, {gained} bytes could be written"
    full.verify()
    full.check()


@test(limit=240, hindcast_only=True)
def full_and_killed(t):
    """A full pool recovers from SIGKILL: what was promised is kept."""
    full = Full(t, destage_start=100)
    rng = random.Random(6)
    for _ in range(5 if t.long else 2):
        with connection(full.calm) as h:
            overwrite(h, full.calm_data, rng, 500)
        full.server.kill()
        full.server.start()
        full.verify()
        with connection(full.big) as h:
            refused(errno.ENOSPC, h.pwrite, bytes([1]) * 4 * MIB, 2 * GIB - 8 * MIB)
    full.check()


@test(limit=240, hindcast_only=True)
def small_scattered_writes_fill_it(t):
    """4 KiB into each 64 KiB chunk: every write takes a whole slot, and reservation knows."""
    server = t.server(pool="256M", journal="64M")
    uri = server.create("v", "8G", "64K")
    written = 0
    with connection(uri) as h:
        try:
            while True:
                h.pwrite(pattern(written, 4096), written * 64 * KIB + 8192)
                written += 1
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC, error.string
        assert written * 64 * KIB < 256 * MIB, "more was acknowledged than the pool can hold"
        assert written * 64 * KIB > 150 * MIB, f"only {written} slots of 64 KiB could be used in 256 MiB"
    server.drained()
    server.check()
    with connection(uri) as h:
        for i in range(written):
            assert h.pread(4096, i * 64 * KIB + 8192) == pattern(i, 4096), f"write {i}"


if __name__ == "__main__":
    main()
