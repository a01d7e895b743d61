#!/usr/bin/python3
"""Files of a moment: what the kernel wrote into a mounted file system comes back byte for byte, while it stays mounted
and goes on changing."""

from harness import *
from mounted import Disk

SIZE = "256M"


def tree(root):
    """The files below a directory, with their sums."""
    return {str(path.relative_to(root)): sha256(path) for path in root.rglob("*") if path.is_file()}


def grow(root, turn):
    """Writes files of many sizes, removes and renames some of the turn before."""
    for i in range(60):
        path = root / f"d{i % 7}" / f"turn{turn}-{i}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(1 + i * i * 37))
        old = root / f"d{i % 7}" / f"turn{turn - 1}-{i}"
        if old.exists() and i % 3 == 0:
            old.unlink()
        elif old.exists() and i % 3 == 1:
            old.rename(root / f"moved{turn}-{i}")


def moments(t, *mkfs):
    need_root()
    need(mkfs[0])
    server = t.server()
    server.create("fs", SIZE, "16K", "--cdp", "parity")
    disk = Disk(t, server, "fs")
    disk.attach()
    run(*mkfs, disk.device)
    root = disk.mount()
    seen = {}
    for turn in range(3):
        grow(root, turn)
        run("sync", "-f", root)
        server.cli("mark", "fs", f"turn{turn}")
        seen[turn] = tree(root)
    for turn, expected in seen.items():
        out = t.dir / f"out{turn}"
        server.cli("files", "cp", "-r", f"fs@turn{turn}:/", out)
        found = tree(out)
        assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())[:10]
        wrong = [name for name in expected if found[name] != expected[name]]
        assert not wrong, f"{len(wrong)} files differ, such as {wrong[0]}"
        t.say(f"turn {turn}: {len(expected)} files are the same")
    differ = server.cli("files", "diff", "fs@turn1", "fs@turn2")
    changes = {entry["path"]: entry["change"] for entry in differ}
    expected = {name: "added" for name in seen[2].keys() - seen[1].keys()}
    expected |= {name: "removed" for name in seen[1].keys() - seen[2].keys()}
    assert changes == expected, changes.items() ^ expected.items()
    disk.detach()
    server.check()


@test(limit=240)
def ext4_mounted(t):
    moments(t, "mkfs.ext4", "-q", "-F")


@test(limit=240)
def ext4_mounted_with_small_blocks(t):
    moments(t, "mkfs.ext4", "-q", "-F", "-b", "1024")


@test(limit=240)
def ext3_mounted(t):
    moments(t, "mkfs.ext3", "-q", "-F")


@test(limit=240)
def fat_mounted(t):
    known = pathlib.Path("/proc/filesystems").read_text().split()
    if "vfat" not in known:
        raise Skip("the kernel has no vfat")
    moments(t, "mkfs.vfat", "-F", "32")


@test(limit=120)
def xfs_is_named_and_not_read(t):
    need_root()
    need("mkfs.xfs")
    server = t.server()
    server.create("fs", "512M")
    disk = Disk(t, server, "fs")
    disk.attach()
    run("mkfs.xfs", "-q", "-f", disk.device)
    disk.detach()
    server.cli("snapshot", "create", "fs@then")
    [partition] = server.cli("files", "partitions", "fs@then")
    assert (partition["content"], partition["readable"]) == ("xfs", False), partition
    refused = server.cli("files", "ls", "fs@then", code=FAILED)
    assert "hindcast view create" in refused, refused


if __name__ == "__main__":
    main()
