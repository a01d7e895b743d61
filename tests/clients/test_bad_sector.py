#!/usr/bin/python3
"""A physical volume with a sector that can't be read, one that takes no writes, one that does not answer: nbdkit gives
errors, nbdfuse makes a file of it."""

import errno
import os

from harness import *
from libnbd import *

CHUNK = 16 * KIB
SECTOR = 512
# A buffered read of a file needs whole pages.
BLOCK = 4 * KIB
SIZE = 8 * MIB


class BadDisk:
    """A file that is a disk, with sectors that can't be read until they are written. It can fail all writes, or all."""

    PREAD = """
        if [ -e $BAD.away ]; then echo 'EIO away' >&2; exit 1; fi
        for s in $(cat $BAD); do
            if [ $((s * 512)) -lt $(($4 + $3)) ] && [ $((s * 512 + 512)) -gt $4 ]; then
                echo 'EIO a bad sector' >&2; exit 1
            fi
        done
        dd if=$RAW bs=1M iflag=skip_bytes,count_bytes,fullblock skip=$4 count=$3 2>/dev/null"""
    PWRITE = """
        if [ -e $BAD.away ] || [ -e $BAD.failing ]; then echo 'EIO no writes' >&2; exit 1; fi
        for s in $(cat $BAD); do
            if [ $((s * 512)) -lt $4 ] || [ $((s * 512 + 512)) -gt $(($4 + $3)) ]; then echo $s; fi
        done > $BAD.new
        mv $BAD.new $BAD
        dd of=$RAW bs=1M oflag=seek_bytes iflag=fullblock conv=notrunc seek=$4 2>/dev/null"""

    def __init__(self, t, size=64 * MIB):
        need_root()
        need("nbdkit", "nbdfuse", "fusermount3")
        self.raw, self.bad = t.dir / "raw", t.dir / "bad"
        self.socket, self.dir = t.dir / "bad.sock", t.dir / "disk"
        run("truncate", "-s", size, self.raw)
        self.bad.write_text("")
        self.dir.mkdir()
        log = open(t.dir / "disk.log", "ab")
        quiet = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        scripts = dict(
            get_size="stat -c %s $RAW", pread=self.PREAD, pwrite=self.PWRITE, can_write="exit 0",
            can_flush="exit 0", flush="sync $RAW", thread_model="echo serialize_all_requests",
        )
        # One request at a time: the scripts share the list of bad sectors.
        self.nbdkit = subprocess.Popen(
            ["nbdkit", "-f", "-U", str(self.socket), "eval", *(f"{k}={v}" for k, v in scripts.items())],
            env={**os.environ, "RAW": str(self.raw), "BAD": str(self.bad)}, **quiet,
        )
        t.defer(self.nbdkit.kill)
        wait_for("nbdkit", self.socket.exists)
        self.path = self.dir / "pv"
        self.fuse = subprocess.Popen(
            ["nbdfuse", str(self.path), f"nbd+unix:///?socket={self.socket}"], **quiet
        )
        t.defer(self.unmount)
        wait_for("nbdfuse", lambda: self.path.exists())

    def unmount(self):
        wait_for("nbdfuse's unmount", lambda: run("fusermount3", "-u", self.dir, check=False).returncode == 0)

    def set(self, how, on):
        """From now on it is `away`, or `failing` all writes, or is not."""
        flag = pathlib.Path(f"{self.bad}.{how}")
        flag.touch() if on else flag.unlink()

    def spoil(self, content):
        """Makes the sector unreadable that holds `content`, and nothing of it is left in memory."""
        os.sync()
        at = self.raw.read_bytes().find(content)
        assert at >= 0 and at % SECTOR == 0, f"found at {at}"
        with open(self.bad, "a") as file:
            file.write(f"{at // SECTOR}\n")
        self.forget()

    def forget(self):
        """Nothing of it is in memory."""
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("1\n")


def block(byte):
    return bytes([byte]) * BLOCK


def codes(server):
    return {p["code"] for p in server.cli("status")["health"].get("problems", [])}


def on_a_bad_disk(t, alone=True, features=None):
    """A server whose data lies on a bad disk: (server, disk, path of its first physical volume). `alone`: the first
    physical volume is gone; otherwise it takes nothing."""
    disk = BadDisk(t)
    server = t.server(pool="64M", features=features)
    first = server.cli("pool", "pvs")[0]["path"]
    server.cli("pool", "add", disk.path)
    server.cli("pool", "drain", first, *([] if alone else ["--wait"]))
    if alone:
        server.cli("pool", "remove", first)
    return server, disk, first


def reads(uri, want):
    """The volume or snapshot begins with this."""
    with connection(uri) as h:
        assert h.pread(len(want), 0) == want


def patched(content, at, piece):
    return content[:at] + piece + content[at + len(piece):]


def fails_to_read(uri, offset, length):
    with connection(uri) as h:
        refused(errno.EIO, h.pread, length, offset)


@test(limit=240, hindcast_only=True)
def a_bad_sector_is_repaired(t):
    """The volume's history leads to the content, and sums prove it: no client gets an error."""
    server, disk, _ = on_a_bad_disk(t)
    v = server.create("v", SIZE, "16K", "--cdp", "parity")
    put(server, "v", pattern(0, MIB))
    server.drained()
    bad = 18 * BLOCK
    disk.spoil(pattern(0, MIB)[bad:bad + BLOCK])
    reads(v, pattern(0, MIB))
    assert Api(server.api).metric('hindcast_repaired_bytes_total{from="history"}') == BLOCK
    server.kill()
    server.start()
    disk.forget()
    reads(v, pattern(0, MIB))
    assert "data-damaged" not in codes(server)
    assert "damaged" not in server.show("v")
    server.check()


@test(limit=240, hindcast_only=True)
def a_bad_sector_is_lost_and_nothing_else(t):
    """The content is older than the history. Without sums nothing proves what the journal still has."""
    server, disk, _ = on_a_bad_disk(t, features="none")
    v, other = server.create("v", SIZE, "16K"), server.create("other", SIZE)
    chunk = b"".join(block(100 + n) for n in range(4))
    with connection(v) as h, connection(other) as o:
        h.pwrite(chunk, 4 * CHUNK)
        h.flush()
        o.pwrite(pattern(0, MIB), 0)
        o.flush()
    server.drained()
    server.cli("volume", "set", "v", "--cdp", "parity")
    disk.spoil(block(102))
    bad = 4 * CHUNK + 2 * BLOCK
    # A client meets it: an error there, and nothing else happens.
    fails_to_read(v, bad, BLOCK)
    assert "data-damaged" not in codes(server)
    # Destage meets it: a snapshot keeps the chunk, and a part of it is overwritten.
    server.cli("snapshot", "create", "v@s")
    with connection(v) as h, connection(other) as o:
        h.pwrite(block(1), 4 * CHUNK)
        h.flush()
        o.pwrite(pattern(MIB, MIB), MIB)
        o.flush()
    server.drained()

    def as_expected():
        assert "data-damaged" in codes(server)
        assert server.show("v")["damaged"] == [{"offset": bad, "length": BLOCK}], server.show("v")
        fails_to_read(v, bad, BLOCK)
        fails_to_read(server.uri("v@s"), bad, BLOCK)
        with connection(v) as h:
            assert h.pread(2 * BLOCK, 4 * CHUNK) == block(1) + block(101)
            assert h.pread(BLOCK, bad + BLOCK) == block(103)
        with connection(server.uri("v@s")) as h:
            assert h.pread(2 * BLOCK, 4 * CHUNK) == chunk[:2 * BLOCK]
        reads(other, pattern(0, MIB) + pattern(MIB, MIB))

    as_expected()
    assert "pv-read-errors" in codes(server)
    server.kill()
    server.start()
    as_expected()
    # What is written again is whole again; the snapshot's sector is lost until the snapshot goes.
    with connection(v) as h:
        h.pwrite(block(7), bad)
        h.flush()
    server.drained()
    with connection(v) as h:
        assert h.pread(BLOCK, bad) == block(7)
    assert "damaged" not in server.show("v")
    fails_to_read(server.uri("v@s"), bad, BLOCK)
    server.cli("snapshot", "delete", "v@s")
    # The history has it still.
    assert "data-damaged" in codes(server)
    server.cli("volume", "delete", "--now", "v", "--force")
    wait_for("the end of the damage", lambda: "data-damaged" not in codes(server))
    server.check()


@test(limit=240, hindcast_only=True)
def a_disk_that_takes_no_writes_is_left(t):
    server, disk, first = on_a_bad_disk(t, alone=False)
    v, other = server.create("v", SIZE, "16K", "--cdp", "parity"), server.create("other", SIZE)
    with connection(v) as h, connection(other) as o:
        h.pwrite(pattern(0, MIB), 0)
        o.pwrite(pattern(MIB, MIB), 0)
        h.flush()
    server.cli("snapshot", "create", "v@s")
    server.drained()
    server.cli("pool", "drain", first, "--cancel")
    disk.set("failing", True)
    disk.forget()
    with connection(v) as h, connection(other) as o:
        h.pwrite(block(7), 5 * CHUNK)
        o.pwrite(block(8), 9 * CHUNK)
        o.pwrite(pattern(2 * MIB, MIB), MIB)
        h.flush()

    def as_expected():
        reads(v, patched(pattern(0, MIB), 5 * CHUNK, block(7)))
        reads(server.uri("v@s"), pattern(0, MIB))
        reads(other, patched(pattern(MIB, MIB) + pattern(2 * MIB, MIB), 9 * CHUNK, block(8)))

    server.drained()
    assert "pv-failed" in codes(server), codes(server)
    as_expected()
    failed = {pv["path"]: "failure" in pv for pv in server.cli("pool", "pvs")}
    assert failed == {first: False, str(disk.path): True}, failed
    # Killed, and started while the disk still takes nothing.
    server.kill()
    server.start()
    as_expected()
    assert "pv-failed" in codes(server), codes(server)
    server.cli("pool", "drain", disk.path, "--wait")
    as_expected()
    # A mended path: it takes writes after the next start.
    disk.set("failing", False)
    server.stop()
    server.start()
    assert codes(server) <= {"clock-jumped"}, codes(server)
    server.cli("pool", "remove", disk.path)
    as_expected()
    server.check()


@test(limit=240, hindcast_only=True)
def a_disk_that_is_away_is_waited_for(t):
    server, disk, _ = on_a_bad_disk(t)
    v = server.create("v", SIZE, "16K")
    with connection(v) as h:
        h.pwrite(pattern(0, MIB), 0)
        h.flush()
    server.cli("snapshot", "create", "v@s")
    server.drained()
    disk.forget()
    # The label is in the page cache, where it says nothing about the disk.
    with open(disk.path, "rb") as file:
        file.read(64 * KIB)
    disk.set("away", True)
    with connection(v) as h:
        h.pwrite(block(7), 5 * CHUNK)
        h.flush()
        wait_for("the warning", lambda: "pv-away" in codes(server))
        assert h.pread(BLOCK, 5 * CHUNK) == block(7)
        refused(errno.EIO, h.pread, BLOCK, 40 * CHUNK)
    disk.set("away", False)
    server.drained()
    wait_for("the end of the warning", lambda: "pv-away" not in codes(server))
    assert "data-damaged" not in codes(server), "what was away was given up"
    reads(v, patched(pattern(0, MIB), 5 * CHUNK, block(7)))
    reads(server.uri("v@s"), pattern(0, MIB))
    server.check()


if __name__ == "__main__":
    main()
