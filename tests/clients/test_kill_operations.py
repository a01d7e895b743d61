#!/usr/bin/python3
"""SIGKILL in the middle of each long operation: moving data off a physical volume, flattening, relocating, deleting, an
import, recovery as a new volume and in place. After each kill everything reads as it did, and in the end the operation has
ended and the offline check finds nothing."""

import random
import subprocess

from harness import *
from libnbd import *

SIZE = 32 * MIB
STEP = 256 * KIB


def fill(server, name, seed, offsets=range(0, SIZE, STEP), length=STEP):
    """Writes a pattern at each offset, durably; returns what was written there, by offset."""
    written = {at: pattern(seed * 1_000_003 + at, length) for at in offsets}
    with connection(server.uri(name)) as h:
        for at, data in written.items():
            h.pwrite(data, at)
        h.flush()
    return written


def apply(content, written):
    for at, data in written.items():
        content[at:at + len(data)] = data
    return content


def assert_reads(server, expected):
    """Each export reads as expected: export -> its whole content."""
    for export, content in expected.items():
        with connection(server.uri(export)) as h:
            for at in range(0, len(content), MIB):
                assert h.pread(MIB, at) == content[at:at + MIB], f"{export} differs within 1 MiB from {at}"


def kills(t, server, has_ended, expected, begin=lambda: None):
    """Kills the server again and again, at random, until the operation has ended; looks at everything after each kill.
    `begin` is called after each start."""
    rng = random.Random(41)
    for turn in range(200):
        begin()
        time.sleep(rng.uniform(0.0, 0.25))
        ended = has_ended()
        server.kill()
        server.start()
        if turn < 5 or ended:
            assert_reads(server, expected)
        if ended:
            assert has_ended(), "what had ended goes on after a kill"
            t.say(f"ended after {turn} kills")
            break
    else:
        raise AssertionError("200 kills, and it has not ended: it makes no progress")
    server.check()
    assert_reads(server, expected)


def with_a_snapshot(t, **options):
    """A server with a volume `v`, half of which was written to after its snapshot `v@s`."""
    server = t.server(pool="512M", journal="32M", **options)
    server.create("v", SIZE)
    old = apply(bytearray(SIZE), fill(server, "v", 1))
    server.cli("snapshot", "create", "v@s")
    new = apply(bytearray(old), fill(server, "v", 2, range(0, SIZE, 64 * KIB), 32 * KIB))
    server.drained()
    return server, bytes(old), bytes(new)


@test(limit=240, hindcast_only=True)
def draining_a_physical_volume(t):
    server, old, new = with_a_snapshot(t)
    server.cli("pool", "add", t.dir / "pv-1", "--size", "256M")
    server.cli("pool", "drain", "pv-0.img")
    kills(t, server, lambda: server.cli("pool", "pvs")[0]["used"] == 0, {"v": new, "v@s": old})
    server.cli("pool", "remove", "pv-0.img")
    assert_reads(server, {"v": new, "v@s": old})


@test(limit=240, hindcast_only=True)
def flattening_a_clone(t):
    server, old, new = with_a_snapshot(t)
    server.cli("clone", "create", "v@s", "copy")
    copy = bytes(apply(bytearray(old), fill(server, "copy", 3, range(STEP, SIZE, 4 * STEP))))
    server.cli("volume", "flatten", "copy", "--rate", "64M")
    flattened = lambda: server.show("copy").get("origin") is None
    kills(t, server, flattened, {"v": new, "v@s": old, "copy": copy})


@test(limit=240, hindcast_only=True)
def relocating_a_volume(t):
    server, old, new = with_a_snapshot(t)
    # It ends with the server, and is begun anew: what is in order already is passed.
    done = lambda: not server.cli("volume", "relocate", "v", "--status")["running"]
    kills(t, server, done, {"v": new, "v@s": old}, begin=lambda: server.cli("volume", "relocate", "v", "--rate", "16M"))


@test(limit=240, hindcast_only=True)
def deleting_snapshots_and_volumes(t):
    server, old, new = with_a_snapshot(t)
    server.create("gone", SIZE)
    for n in range(20):
        fill(server, "gone", 10 + n, range(n * STEP, SIZE, 8 * STEP), 64 * KIB)
        server.cli("snapshot", "create", f"gone@{n}")
    server.cli("clone", "create", "gone@7", "kept")
    with connection(server.uri("gone@7")) as h:
        kept = b"".join(bytes(h.pread(MIB, at)) for at in range(0, SIZE, MIB))
    before = server.pool()["used"]
    server.cli("volume", "delete", "--now", "gone", "--force")
    came_back = lambda: server.pool()["used"] <= before - 4 * MIB
    kills(t, server, came_back, {"v": new, "v@s": old, "kept": kept})


@test(limit=240, hindcast_only=True)
def an_import_is_gone_on_with(t):
    server, old, new = with_a_snapshot(t)
    stream = t.dir / "stream"
    server.cli("export", "v@s", "--file", stream)
    environment = {**os.environ, "HINDCAST_SOCKET": str(server.api)}
    rng, kills_done = random.Random(43), 0
    for turn in range(100):
        with subprocess.Popen(
            [str(binary()), "import", "copy", "--file", str(stream)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:
            try:
                code = process.wait(rng.uniform(0.005, 0.1 + 0.02 * turn))
            except subprocess.TimeoutExpired:
                server.kill()
                kills_done += 1
                code = process.wait(60)
                server.start()
        listed = server.cli("snapshot", "list", "copy", code=(DONE, NOT_FOUND))
        if isinstance(listed, list) and "s" in [s["name"] for s in listed]:
            break
        assert code != DONE, "the client was told that the import is done, and there is no snapshot"
    else:
        raise AssertionError("100 tries, and the import has not ended")
    t.say(f"imported after {kills_done} kills")
    server.check()
    assert_reads(server, {"v": new, "v@s": old, "copy": old, "copy@s": old})


def with_a_history(t):
    server = t.server(pool="512M", journal="32M")
    server.create("v", SIZE, "16K", "--cdp", "parity")
    content = apply(bytearray(SIZE), fill(server, "v", 1))
    server.cli("mark", "v", "good")
    good = bytes(content)
    for n in range(8):
        apply(content, fill(server, "v", 2 + n, range(n * 4 * KIB, SIZE, STEP), 4 * KIB))
    return server, good, bytes(content)


@test(limit=240, hindcast_only=True)
def completing_a_recovered_volume(t):
    server, good, new = with_a_history(t)
    server.cli("recover", "v", "--to", "good", "--as", "then", "--rate", "64M")
    completed = lambda: server.show("then").get("origin") is None
    kills(t, server, completed, {"v": new, "then": good, "v@good": good})


@test(limit=240, hindcast_only=True)
def recovering_in_place(t):
    """It is done at once, wholly or not at all: the client that was told so finds it done."""
    server, good, new = with_a_history(t)
    environment = {**os.environ, "HINDCAST_SOCKET": str(server.api)}
    rng = random.Random(47)
    done = 0
    for turn in range(20 if t.long else 8):
        with subprocess.Popen(
            [str(binary()), "recover", "v", "--to", "good", "--in-place", "--undo-name", f"undo{turn}"],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(rng.uniform(0.0, 0.03))
            server.kill()
            told = process.wait(60) == DONE
        server.start()
        names = [s["name"] for s in server.cli("snapshot", "list", "v")]
        is_done = f"undo{turn}" in names
        assert is_done or not told, "it was told as done, and is not"
        assert_reads(server, {"v": good if is_done else new, "v@good": good})
        if is_done:
            done += 1
            assert_reads(server, {f"v@undo{turn}": new})
            server.cli("snapshot", "rollback", f"v@undo{turn}", "--undo-name", f"redo{turn}")
            assert_reads(server, {"v": new})
    t.say(f"{done} of them were done before the kill")
    server.check()


if __name__ == "__main__":
    main()
