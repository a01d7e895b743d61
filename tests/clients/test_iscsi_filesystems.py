#!/usr/bin/python3
"""File systems on logical units, and SIGKILL of the server under them: qemu-storage-daemon is the initiator and shows the
unit as a disk, and comes back by itself when the server does."""

import random
import threading

from iscsi import *
from load import BLOCK, BLOCKS, ZERO, Load, verify
from mounted import Disk, exercise

SIZE = "2G"


class Gateway(Daemon):
    """qemu-storage-daemon: an initiator that exports its logical unit over NBD."""

    def __init__(self, t, url):
        need("qemu-storage-daemon")
        need_qemu_iscsi()
        super().__init__(t.dir / f"gateway-{url.port}")
        self.socket = self.dir / "nbd.sock"
        self.url = url
        t.defer(self.take_down)

    def start(self):
        self.socket.unlink(missing_ok=True)
        self.spawn(["qemu-storage-daemon", "--blockdev", self.url.blockdev(node_name="unit", discard="unmap"),
                    "--nbd-server", f"addr.type=unix,addr.path={self.socket},max-connections=16",
                    "--export", "nbd,id=out,node-name=unit,name=unit,writable=on"])
        wait_for("qemu-storage-daemon", lambda: self.socket.exists() or self.ended())
        if self.ended():
            raise AssertionError(f"qemu-storage-daemon could not attach the unit\n{self.log_tail()}")
        return self


class UnitDisk(Disk):
    """A logical unit as a block device: qemu-storage-daemon, nbdfuse, loop."""

    def __init__(self, t, served, volume):
        self.volume = volume
        self.gateway = Gateway(t, served.url(volume))
        super().__init__(t, self.gateway, "unit")

    def attach(self):
        if self.gateway.ended():
            self.gateway.start()
        return super().attach()

    def detach(self):
        super().detach()
        self.gateway.stop()

    def tear_down(self):
        self.gateway.take_down()
        super().tear_down()


def on_a_unit(t, *args):
    served = server(t)
    served.create("unit", SIZE)
    exercise(t, served, UnitDisk(t, served, "unit"), *args)


@test(limit=240)
def ext4(t):
    need("mkfs.ext4", "e2fsck", "fstrim")
    on_a_unit(t, ("mkfs.ext4", "-q", "-F", "-E", "nodiscard"), ("e2fsck", "-fn"))


@test(limit=240)
def xfs(t):
    need("mkfs.xfs", "xfs_repair", "fstrim")
    on_a_unit(t, ("mkfs.xfs", "-q", "-f"), ("xfs_repair", "-n"))


class Writer(threading.Thread):
    """Writes files one after another, each synced, and notes what was."""

    def __init__(self, root, turn):
        super().__init__(daemon=True)
        self.root, self.turn = root, turn
        self.synced, self.failed = {}, None
        self.ending = threading.Event()

    def run(self):
        number = 0
        try:
            while not self.ending.is_set():
                data = os.urandom(8000 + number * 37 % 60000)
                path = self.root / f"turn{self.turn}-{number}"
                with open(path, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                self.synced[path.name] = hashlib.sha256(data).hexdigest()
                number += 1
        except OSError as error:
            self.failed = error


@test(limit=240)
def ext4_goes_on_after_kills(t):
    """The server is killed under a mounted file system and started again: writers wait, nothing fails, every file that
    was synced is there, and the file system was never unclean."""
    served = server(t)
    served.create("unit", SIZE)
    disk = UnitDisk(t, served, "unit")
    disk.attach()
    run("mkfs.ext4", "-q", "-F", disk.device)
    root = disk.mount()
    synced = {}
    for turn in range(10 if t.long else 3):
        writer = Writer(root, turn)
        writer.start()
        wait_for("synced files", lambda: len(writer.synced) >= 20, limit=60)
        served.kill()
        before = len(writer.synced)
        time.sleep(0.5)
        served.start()
        # At most the one file whose sync was being answered came through between.
        wait_for("the initiator's return", lambda: len(writer.synced) >= before + 20 or writer.failed, limit=60)
        writer.ending.set()
        writer.join(60)
        assert not writer.failed and not writer.is_alive(), f"kill {turn + 1}: {writer.failed}"
        synced |= writer.synced
        run("sync", "-f", root)
        t.say(f"kill {turn + 1}: {before} files synced before, {len(writer.synced) - before} after it")
    disk.detach()
    served.check()
    disk.attach()
    run("e2fsck", "-fn", disk.device, timeout=600)
    disk.mount()
    for name, expected in synced.items():
        assert (root / name).exists(), f"{name} is gone"
        assert sha256(root / name) == expected, f"{name} differs"
    disk.detach()


@test(limit=240)
def every_acknowledged_write_survives(t):
    """Four connections of load through the initiator, SIGKILL under it, and on with it: what was acknowledged before
    and after is there, what waited is done, nothing was refused."""
    served = server(t, destage_start=25) if not PEER else server(t)
    url = served.create("v", BLOCKS * BLOCK)
    gateway = Gateway(t, url).start()
    through = gateway.uri("unit")
    rng = random.Random(41)
    model, sequence = [ZERO] * BLOCKS, 1
    load = Load(through, rng, model)
    for turn in range(20 if t.long else 4):
        start = sequence
        sequence = load.run(rng.uniform(0.3, 1.5), sequence, served.kill, collect=False)
        waiting = len(load.flying)
        assert waiting > 16, "the server was killed without a load"
        time.sleep(rng.uniform(0.0, 0.5))
        served.start()
        load.drain(60)
        verify(through, model, {})
        if not PEER:
            verify(served.uri("v"), model, {})
        t.say(f"kill {turn + 1}: {sequence - start} requests, {waiting} waited and were answered")
    gateway.take_down()
    served.check()
    if not PEER:
        verify(served.uri("v"), model, {})


if __name__ == "__main__":
    main()
