#!/usr/bin/python3
"""Physical volumes: block devices, several of them, and the ones that must be refused."""

import os

from harness import *
from libnbd import *

SIZE = 128 * MIB


class Loop:
    """A block device made of a file."""

    def __init__(self, t, name, size=256 * MIB):
        need_root()
        need("losetup")
        self.file = t.dir / name
        run("truncate", "-s", size, self.file)
        self.device = None
        self.attach()
        t.defer(self.detach)

    def attach(self):
        self.device = run("losetup", "--find", "--show", self.file).strip()

    def detach(self):
        if self.device:
            run("losetup", "-d", self.device)
            wait_for("the loop device's end", lambda: not run("losetup", "-j", self.file).strip())
            self.device = None


def write_all(uri, size=SIZE):
    with connection(uri) as h:
        for offset in range(0, size, MIB):
            h.pwrite(pattern(offset, MIB), offset)
        h.flush()


def read_all(uri, size=SIZE):
    with connection(uri) as h:
        for offset in range(0, size, MIB):
            assert h.pread(MIB, offset) == pattern(offset, MIB), f"{offset} differs"


def pvs(server):
    """The pool's physical volumes."""
    return server.cli("pool", "pvs")


def pv_of(server, path):
    found = [pv for pv in pvs(server) if pv["path"] == str(path)]
    assert len(found) == 1, f"{path} is not exactly once among {pvs(server)}"
    return found[0]


def on_a_device(t):
    """A server with a block device in its pool, and a volume with content: (server, device, URI)."""
    loop = Loop(t, "disk")
    server = t.server(pool="64M")
    server.cli("pool", "add", loop.device)
    uri = server.create("v", SIZE)
    write_all(uri)
    return server, loop, uri


def is_moved_away(server, path):
    wait_for("an empty physical volume", lambda: pv_of(server, path)["used"] == 0, limit=120, step=0.3)


@test(hindcast_only=True)
def block_device_in_the_pool(t):
    server, loop, uri = on_a_device(t)
    server.drained()
    assert pv_of(server, loop.device)["used"] >= SIZE // 2, "nothing went to the block device"
    read_all(uri)
    server.check()
    read_all(uri)
    server.kill()
    server.start()
    read_all(uri)


@test(limit=240, hindcast_only=True)
def moved_away_and_removed(t):
    server, loop, uri = on_a_device(t)
    server.drained()
    server.cli("pool", "remove", loop.device, code=CONFLICT)
    server.cli("pool", "add", t.dir / "other.pv", "--size", "256M")
    server.cli("pool", "drain", loop.device)
    is_moved_away(server, loop.device)
    read_all(uri)
    server.cli("pool", "remove", loop.device)
    assert all(pv["path"] != loop.device for pv in pvs(server))
    # The server must let go of the device, so that somebody can take it away.
    loop.detach()
    server.check()
    read_all(uri)


@test(hindcast_only=True)
def killed_while_moving(t):
    server = t.server(pool="256M")
    uri = server.create("v", SIZE)
    write_all(uri)
    server.drained()
    first = pvs(server)[0]["path"]
    server.cli("pool", "add", t.dir / "other.pv", "--size", "256M")
    server.cli("pool", "drain", first)
    for _ in range(10 if t.long else 3):
        time.sleep(0.1)
        server.kill()
        server.start()
        read_all(uri)
    is_moved_away(server, first)
    server.check()
    read_all(uri)


@test(hindcast_only=True)
def the_same_twice(t):
    server = t.server()
    server.cli("pool", "add", t.dir / "one.pv", "--size", "128M")
    message = server.cli("pool", "add", t.dir / "one.pv", code=CONFLICT)
    assert "one.pv" in message, message
    # A copy has the same identity.
    shutil.copyfile(t.dir / "one.pv", t.dir / "copy.pv")
    message = server.cli("pool", "add", t.dir / "copy.pv", code=CONFLICT)
    assert "copy.pv" in message, message
    os.symlink(t.dir / "one.pv", t.dir / "link.pv")
    server.cli("pool", "add", t.dir / "link.pv", code=CONFLICT)


@test(hindcast_only=True)
def of_another_pool(t):
    loop = Loop(t, "disk")
    other = t.server("other")
    other.cli("pool", "add", loop.device)
    server = t.server("mine")
    message = server.cli("pool", "add", loop.device, code=CONFLICT)
    assert loop.device in message, message
    other.stop()
    message = server.cli("pool", "add", loop.device, code=CONFLICT)
    assert loop.device in message, message
    other.start()
    other.stop()
    server.cli("pool", "add", loop.device, "--force")
    server.check()
    message = other.refuses_to_start()
    assert loop.device in message, message


@test(hindcast_only=True)
def missing_at_start(t):
    server, loop, uri = on_a_device(t)
    device = loop.device
    server.stop()
    loop.detach()
    message = server.refuses_to_start()
    assert device in message, f"the message does not name {device}: {message}"
    loop.attach()
    if loop.device != device:
        raise Skip(f"the device came back as {loop.device} instead of {device}: something else took it")
    server.start()
    read_all(uri)


@test(hindcast_only=True)
def replaced_by_another(t):
    """The right name with a wrong label, no label, or a damaged label."""
    server = t.server(pool="64M")
    path = t.dir / "more.pv"
    server.cli("pool", "add", path, "--size", "256M")
    uri = server.create("v", SIZE)
    write_all(uri)
    server.stop()
    keep = t.dir / "keep"
    shutil.copyfile(path, keep)
    stranger = t.server("stranger")
    stranger.cli("pool", "add", t.dir / "strange.pv", "--size", "256M")
    stranger.stop()
    for what, make in (
        ("another pool's", lambda: shutil.copyfile(t.dir / "strange.pv", path)),
        ("an empty one", lambda: path.write_bytes(b"") or run("truncate", "-s", "256M", path)),
        ("a damaged one", lambda: damage(keep, path)),
        ("a cut one", lambda: shutil.copyfile(keep, path) and run("truncate", "-s", "8M", path)),
    ):
        make()
        message = server.refuses_to_start()
        assert "more.pv" in message, f"{what}: {message}"
    shutil.copyfile(keep, path)
    server.start()
    read_all(uri)
    server.check()


def damage(source, path):
    """Flips a bit in the first bytes that are not zero, wherever the label is, in each of its first 64 KiB blocks."""
    shutil.copyfile(source, path)
    with open(path, "r+b") as file:
        head = bytearray(file.read(64 * KIB))
        for block in range(0, len(head), 4096):
            for i in range(block, block + 4096):
                if head[i]:
                    head[i + 9] ^= 0x10
                    break
        file.seek(0)
        file.write(head)


@test(hindcast_only=True)
def too_small(t):
    server = t.server()
    run("truncate", "-s", "4096", t.dir / "tiny.pv")
    message = server.cli("pool", "add", t.dir / "tiny.pv", code=(FAILED, USAGE))
    assert "tiny.pv" in message, message
    server.cli("pool", "add", t.dir / "absent.pv", code=NOT_FOUND)
    server.cli("pool", "add", t.dir, code=(FAILED, USAGE, CONFLICT))
    server.check()


@test(hindcast_only=True)
def one_process_at_a_time(t):
    server = t.server()
    second = type(server)(server.dir)
    second.socket = t.dir / "second.sock"
    second.log = t.dir / "second.log"
    second.refuses_to_start()
    code, _, message = check_command(server)
    assert code in (FAILED, CONFLICT) and message.strip(), f"check beside a running server: {code} {message}"
    assert server.is_up()


def check_command(server):
    done = run(binary(), "check", "--data", server.dir, "-o", "json", check=False)
    return done.returncode, done.stdout, done.stderr


@test(hindcast_only=True)
def check_names_damage(t):
    """Bytes changed behind the pool's back in a label: `check` says which physical volume, with exit code 1."""
    server = t.server(pool="64M")
    path = t.dir / "more.pv"
    server.cli("pool", "add", path, "--size", "256M")
    write_all(server.create("v", SIZE))
    server.drained()
    server.stop()
    server.check_offline()
    keep = t.dir / "keep"
    shutil.copyfile(path, keep)
    damage(keep, path)
    code, output, message = check_command(server)
    assert code == FAILED, f"exit code {code}"
    assert "more.pv" in output + message, output + message


@test(limit=240, hindcast_only=True)
def a_copied_data_directory(t):
    """The physical volume lies elsewhere; of the directory there are copies, of several times."""
    server = t.server(pool="64M")
    first = pvs(server)[0]["path"]
    outside = t.dir / "outside.pv"
    server.cli("pool", "add", outside, "--size", "256M")
    server.cli("pool", "drain", first)
    server.cli("pool", "remove", first)
    server.create("v", 16 * MIB)
    put(server, "v", pattern(1, MIB))
    server.drained()
    # A file in the making has another name a moment later.
    passing = shutil.ignore_patterns("*.sock", "*.new")
    shutil.copytree(server.dir, t.dir / "old", ignore=passing)

    def copy_of(name):
        copy = t.server(name, start=False, pool="64M")
        # It has a pool: it is not to make one.
        copy.answered = True
        return copy

    # Both at once.
    assert "another process" in copy_of("old").refuses_to_start()
    put(server, "v", pattern(2, MIB))
    server.stop()
    # One that was copied while the pool was in use.
    assert "older than its physical volumes" in copy_of("old").refuses_to_start()
    shutil.copytree(server.dir, t.dir / "new", ignore=passing)
    copy = copy_of("new").start()
    assert get(copy, "v", MIB) == pattern(2, MIB)
    copy.stop()
    # The copy went on: now the original is the older one. Nothing was written by those who were
    # refused.
    assert "older than its physical volumes" in server.refuses_to_start()
    copy.start()
    assert get(copy, "v", MIB) == pattern(2, MIB)
    copy.check()


if __name__ == "__main__":
    main()
