#!/usr/bin/python3
"""Volumes over images outside of the pool: served at once, written to, made independent."""

from harness import *
from libnbd import connection, get, put
import os


def whole(server, length):
    """Reads all of the volume."""
    with connection(server.uri("vm")) as h:
        return b"".join(h.pread(min(MIB, length - at), at) for at in range(0, length, MIB))


def overwrite(server, expected, *places):
    """Writes anything to these places (offset, length) of the volume."""
    with connection(server.uri("vm")) as h:
        for at, length in places:
            data = os.urandom(length)
            h.pwrite(data, at)
            expected[at:at + length] = data
        h.flush()


def flatten(server):
    done = server.cli("volume", "flatten", "vm", "--wait")
    assert done == {"origin": None, "running": None}, done


@test(hindcast_only=True)
def an_image_is_served_written_to_and_let_go(t):
    """A raw image made by qemu-img is served over NBD at once; after flattening it can be removed."""
    need("qemu-img", "qemu-io")
    server = t.server()
    image = os.path.join(str(server.dir), "disk.raw")
    run("qemu-img", "create", "-f", "raw", image, str(24 * MIB))
    run("qemu-io", "-f", "raw", "-c", f"write -P 0x5a 0 {4 * MIB}", "-c", f"write -P 0x33 {20 * MIB} 70000", image)
    with open(image, "ab") as file:
        file.write(b"tail")
    with open(image, "rb") as file:
        expected = bytearray(file.read())
    expected += bytes(-len(expected) % 512)
    before = sha256(image)

    server.cli("volume", "create", "vm", "--origin", image + ".none", code=NOT_FOUND)
    # Chunks of any size.
    server.cli("volume", "create", "large", "--origin", image, "--chunk", "1M")
    first = expected[:4 * MIB]
    put(server, "large", b"!" * 512, MIB + 512)
    first[MIB + 512:MIB + 1024] = b"!" * 512
    assert get(server, "large", 4 * MIB) == first
    server.cli("volume", "delete", "--now", "large")
    made = server.cli("volume", "create", "vm", "--origin", image)
    assert made["size"] == len(expected) and made["allocated"] == 0 and made["origin"] == image, made

    assert whole(server, len(expected)) == expected
    overwrite(server, expected, (512, 512), (2 * MIB + 1024, 40960), (20 * MIB - 512, 1024), (10 * MIB, 4096))
    assert whole(server, len(expected)) == expected
    server.cli("snapshot", "create", "vm@monday")
    assert sha256(image) == before, "an image is never changed"

    status = server.cli("volume", "flatten", "vm", "--status")
    assert status["origin"]["kind"] == "image" and status["origin"]["path"] == image and not status["running"], status
    os.rename(image, image + ".away")
    server.kill()
    server.start()
    assert server.cli("volume", "flatten", "vm", "--status")["origin"]["unavailable"]
    os.rename(image + ".away", image)

    flatten(server)
    os.remove(image)
    server.stop()
    server.start()
    assert whole(server, len(expected)) == expected
    server.cli("volume", "flatten", "vm", code=CONFLICT)
    server.cli("volume", "flatten", "vm", "--stop", code=NOT_FOUND)
    server.check()


@test(hindcast_only=True)
def a_block_device_is_an_image_too(t):
    """A volume over a block device of the machine: served, written to, made independent; the device stays as it is."""
    need_root()
    need("losetup")
    server = t.server()
    backing = os.path.join(str(server.dir), "backing")
    expected = bytearray(os.urandom(3 * MIB) + bytes(4 * MIB) + os.urandom(MIB))
    with open(backing, "wb") as file:
        file.write(expected)
    before = sha256(backing)
    device = run("losetup", "--find", "--show", "--read-only", backing).strip()
    try:
        made = server.cli("volume", "create", "vm", "--origin", device)
        assert made["size"] == 8 * MIB and made["origin"] == device and made["allocated"] == 0, made
        assert whole(server, 8 * MIB) == expected
        overwrite(server, expected, (512, 512), (2 * MIB + 1024, 40960), (5 * MIB, 4096))
        server.kill()
        server.start()
        assert whole(server, 8 * MIB) == expected
        flatten(server)
    finally:
        run("losetup", "-d", device)
    assert sha256(backing) == before, "the device stays as it is"
    server.stop()
    server.start()
    assert whole(server, 8 * MIB) == expected
    server.check()


if __name__ == "__main__":
    main()
