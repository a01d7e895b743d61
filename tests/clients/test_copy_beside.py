#!/usr/bin/python3
"""A copy fills the journal on a slow disk: writes to other volumes go on. nbdkit delays the disk's writes, nbdfuse makes a
file of it, and a loop device and ext4 a place for the server's data."""

import statistics
import threading

from harness import *
from libnbd import *

# The default. In a smaller one the throttle has less room to work in.
JOURNAL = 1024 * MIB
COPY = 1536 * MIB
# Without the throttle it takes over two seconds, with it less than 0.2 s.
WORST = 0.5


class SlowDisk:
    """A directory on a disk on which each write takes 1 ms longer."""

    def __init__(self, t, size=8 * 1024 * MIB):
        need_root()
        need("nbdkit", "nbdfuse", "fusermount3", "losetup", "mkfs.ext4")
        raw, socket, fuse = t.dir / "raw", t.dir / "slow.sock", t.dir / "fuse"
        self.dir = t.dir / "slow"
        run("truncate", "-s", size, raw)
        fuse.mkdir()
        self.dir.mkdir()
        log = open(t.dir / "disk.log", "ab")
        quiet = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        nbdkit = subprocess.Popen(
            ["nbdkit", "-f", "-U", str(socket), "--filter=delay", "file", str(raw), "wdelay=1ms"], **quiet
        )
        t.defer(nbdkit.kill)
        wait_for("nbdkit", socket.exists)
        subprocess.Popen(["nbdfuse", str(fuse), f"nbd+unix:///?socket={socket}"], **quiet)
        t.defer(wait_for, "nbdfuse's unmount", lambda: run("fusermount3", "-u", fuse, check=False).returncode == 0)
        wait_for("nbdfuse", (fuse / "nbd").exists)
        device = run("losetup", "-f", "--show", fuse / "nbd").strip()
        t.defer(run, "losetup", "-d", device)
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", device)
        run("mount", device, self.dir)
        t.defer(run, "umount", self.dir)


class Probe:
    """Writes 4 KiB every 10 ms, and notes how long each write takes."""

    def __init__(self, uri):
        self.took, self.ended = [], threading.Event()
        self.thread = threading.Thread(target=self.write, args=(uri,))
        self.thread.start()

    def write(self, uri):
        with connection(uri) as h:
            while not self.ended.wait(0.01):
                began = time.monotonic()
                h.pwrite(b"p" * 4096, len(self.took) % 1000 * 4096)
                self.took.append(time.monotonic() - began)

    def end(self):
        self.ended.set()
        self.thread.join()
        return self.took


def copy_beside(t, delay):
    """Seconds of a copy, and of each write beside it. `delay` is in milliseconds."""
    server = t.server(f"slow/pool-{delay}", pool="4G", journal=f"{JOURNAL >> 20}M", destage_start=60,
                      args=[f"--longest-delay={delay}"])
    other, busy = server.create("other", 64 * MIB), server.create("busy", 2048 * MIB)
    size = server.pool()["journal"]["size"]

    def whole():
        """The journal has all its files: a writer that has to make one waits for ext4."""
        files = [f for f in server.dir.glob("journal*") if not f.name.endswith(".new")]
        return sum(f.stat().st_size for f in files) >= size
    wait_for("the journal's files", whole, limit=120)
    data = pattern(1, MIB)
    probe = Probe(other)
    try:
        with connection(busy) as h:
            began = time.monotonic()
            for at in range(0, COPY, MIB):
                h.pwrite(data, at)
            h.flush()
            took = time.monotonic() - began
    finally:
        beside = probe.end()
    t.say(f"longest delay {delay} ms: the copy took {took:.1f} s; {len(beside)} writes beside it: median "
          f"{statistics.median(beside) * 1000:.1f} ms, at most {max(beside) * 1000:.0f} ms")
    server.stop()
    return took, beside


@test(limit=300, hindcast_only=True)
def a_copy_on_a_slow_disk_holds_up_no_other_volume(t):
    SlowDisk(t)
    took, beside = copy_beside(t, 1000)
    assert max(beside) <= WORST, f"a write took {max(beside):.2f} s"
    if t.long:
        alone, without = copy_beside(t, 0)
        assert max(without) > WORST, "the disk was not slow: nothing is shown"
        # Without the throttle the copy ends with a full journal, and much is left to carry out.
        assert took <= 2 * alone, f"the copy took {took:.1f} s, and {alone:.1f} s without the throttle"


if __name__ == "__main__":
    main()
