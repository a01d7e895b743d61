#!/usr/bin/python3
"""ext4 and XFS on an exported volume: a real tree copied in, checked, mounted again, compared; fstrim gives space
back."""

import os

from harness import *
from mounted import Disk

SIZE = "2G"


def copy_tree(t, target):
    """A real tree of many small files, bounded."""
    room = (400 if t.long else 120) * MIB
    target.mkdir()
    for source in ("/usr/share/doc", "/usr/include", "/usr/lib/python3", "/usr/share/perl"):
        for directory, _, names in os.walk(source):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                room -= os.path.getsize(path) + 4 * KIB
                if room < 0:
                    return
                copy = target / path.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def exercise(t, make, check_command, mount_options=()):
    server = t.server()
    server.create("fs", SIZE)
    disk = Disk(t, server, "fs")
    device = disk.attach()
    run(*make, device)
    root = disk.mount(*mount_options)
    copy_tree(t, root / "tree")
    for i in range(200):
        (root / f"renamed{i}").write_bytes(os.urandom(i * 100))
        os.rename(root / f"renamed{i}", root / f"file{i}")
    for i in range(0, 200, 3):
        os.unlink(root / f"file{i}")
    before = tree_checksums(root)
    assert len(before) > 100, "too few files to mean anything"
    disk.unmount()
    run(*check_command, disk.device, timeout=600)
    disk.detach()
    server.drained()
    server.check()
    disk.attach()
    run(*check_command, disk.device, timeout=600)
    disk.mount(*mount_options)
    assert tree_checksums(root) == before, "files differ after a restart"

    full = server.allocated("fs")
    shutil.rmtree(root / "tree")
    run("sync", "-f", root)
    run("fstrim", root)
    run("sync", "-f", root)
    def trimmed():
        server.drained()
        return server.allocated("fs") < full - 60 * MIB
    wait_for(f"fewer allocated bytes than {full} after fstrim", trimmed, limit=30, step=1)
    kept = {path: sum_ for path, sum_ in before.items() if not path.startswith("tree/")}
    assert tree_checksums(root) == kept
    disk.unmount()
    run(*check_command, disk.device, timeout=600)
    disk.detach()
    server.check()


@test(limit=240)
def ext4(t):
    need("mkfs.ext4", "e2fsck", "fstrim")
    exercise(t, ("mkfs.ext4", "-q", "-F", "-E", "nodiscard"), ("e2fsck", "-fn"))


@test(limit=240)
def xfs_with_reflinks(t):
    need("mkfs.xfs", "xfs_repair", "fstrim")
    exercise(t, ("mkfs.xfs", "-q", "-f", "-m", "reflink=1"), ("xfs_repair", "-n"))


@test(limit=240)
def xfs_without_reflinks(t):
    need("mkfs.xfs", "xfs_repair", "fstrim")
    exercise(t, ("mkfs.xfs", "-q", "-f", "-m", "reflink=0"), ("xfs_repair", "-n"))


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
