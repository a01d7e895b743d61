#!/usr/bin/python3
"""ext4 and XFS on an exported volume: a real tree copied in, checked, mounted again, compared; fstrim gives space
back."""

from harness import *
from mounted import Disk, exercise

SIZE = "2G"


def on_a_volume(t, *args):
    server = t.server()
    server.create("fs", SIZE)
    exercise(t, server, Disk(t, server, "fs"), *args)


@test(limit=240)
def ext4(t):
    need("mkfs.ext4", "e2fsck", "fstrim")
    on_a_volume(t, ("mkfs.ext4", "-q", "-F", "-E", "nodiscard"), ("e2fsck", "-fn"))


@test(limit=240)
def xfs_with_reflinks(t):
    need("mkfs.xfs", "xfs_repair", "fstrim")
    on_a_volume(t, ("mkfs.xfs", "-q", "-f", "-m", "reflink=1"), ("xfs_repair", "-n"))


@test(limit=240)
def xfs_without_reflinks(t):
    need("mkfs.xfs", "xfs_repair", "fstrim")
    on_a_volume(t, ("mkfs.xfs", "-q", "-f", "-m", "reflink=0"), ("xfs_repair", "-n"))


@test(limit=300)
def ext4_survives_kills(t):
    """Files that were synced before SIGKILL are there after it, and the file system checks clean once its own journal
    was replayed."""
    server = t.server()
    server.create("fs", SIZE)
    disk = Disk(t, server, "fs")
    disk.attach()
    run("mkfs.ext4", "-q", "-F", disk.device)
    root = disk.mount()
    synced = {}
    for turn in range(10 if t.long else 3):
        for i in range(100):
            path = root / f"turn{turn}-{i}"
            path.write_bytes(os.urandom(20000 + i))
            if i < 60:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                synced[path.name] = sha256(path)
        server.kill()
        disk.tear_down()
        server.start()
        disk.attach()
        disk.mount_checked()
        for name, expected in synced.items():
            assert (root / name).exists(), f"kill {turn + 1}: {name} is gone"
            assert sha256(root / name) == expected, f"kill {turn + 1}: {name} differs"
        t.say(f"kill {turn + 1}: {len(synced)} synced files are there")
    disk.detach()
    server.check()


if __name__ == "__main__":
    main()
