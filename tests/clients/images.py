"""Disk images, and what qemu-io writes and reads, for the tests of both protocols."""

import os

from harness import *

SIZE = 256 * MIB
# Writes for qemu-io, and reads that must then find what is written.
WRITES = ["write -P 0x11 0 1M", "write -P 0x22 512k 64k", "write -f -P 0x33 1M 4k", "write -z 256k 128k",
          "write -z -u 2M 1M", "write -P 0x44 3145728 512", "discard 768k 64k", "write -P 0x55 255M 1M", "flush",
          "aio_write -P 0x66 10M 1M", "aio_write -P 0x77 11M 1M", "aio_flush"]
READS = ["read -P 0x11 0 256k", "read -P 0 256k 128k", "read -P 0x11 384k 128k", "read -P 0x22 512k 64k",
         "read -P 0x11 576k 192k", "read -P 0x33 1M 4k", "read -P 0 2M 1M", "read -P 0x44 3145728 512",
         "read -P 0 3146240 512", "read -P 0x55 255M 1M", "read -P 0x66 10M 1M", "read -P 0x77 11M 1M"]


def make_image(t):
    """An ext4 file system with real files in it."""
    need("mkfs.ext4")
    image = t.dir / "image.raw"
    source = next(d for d in ("/usr/share/doc", "/usr/include", "/usr/lib/python3") if os.path.isdir(d))
    tree = t.dir / "tree"
    tree.mkdir()
    # As much of a real tree as fits.
    room = 150 * MIB
    for directory, _, names in os.walk(source):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) < room:
                room -= os.path.getsize(path) + 4 * KIB
                target = tree / os.path.relpath(path, source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        if room < 20 * MIB:
            break
    run("truncate", "-s", SIZE, image)
    run("mkfs.ext4", "-q", "-F", "-d", tree, image)
    shutil.rmtree(tree)
    return image


def script(commands):
    """Arguments of qemu-io."""
    return [part for command in commands for part in ("-c", command)]


def expect_no_mismatch(output):
    assert "verification failed" not in output and "error" not in output.lower(), output
