#!/usr/bin/python3
"""Mirrors and RAID-5, of which a disk fails while clients write: nbdkit gives the errors, nbdfuse makes a file of it."""

from postgres import *
from libnbd import *


class FailingDisk:
    """A file that is a disk. While `fail(True)`, it takes no writes, and nothing can be read."""

    def __init__(self, t, name, size):
        need_root()
        need("nbdkit", "nbdfuse", "fusermount3")
        self.flag, socket, self.dir = t.dir / f"{name}.fails", t.dir / f"{name}.sock", t.dir / name
        raw = t.dir / f"{name}.raw"
        run("truncate", "-s", size, raw)
        self.dir.mkdir()
        log = open(t.dir / f"{name}.log", "ab")
        quiet = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        options = ["--filter=error", "error-pwrite-rate=100%", "error-zero-rate=100%", "error-pread-rate=100%",
                   f"error-file={self.flag}"]
        nbdkit = subprocess.Popen(
            ["nbdkit", "-f", "-U", str(socket), options[0], "file", str(raw), *options[1:]], **quiet
        )
        t.defer(nbdkit.kill)
        wait_for("nbdkit", socket.exists)
        self.path = self.dir / "disk"
        subprocess.Popen(["nbdfuse", str(self.path), f"nbd+unix:///?socket={socket}"], **quiet)
        t.defer(self.unmount)
        wait_for("nbdfuse", lambda: self.path.exists())

    def unmount(self):
        # The server, which ends after this, may have it open.
        run("fusermount3", "-u", "-z", self.dir, check=False)

    def fail(self, on):
        self.flag.touch() if on else self.flag.unlink()


def states(server):
    return {m["path"]: m["state"] for m in server.cli("pool", "layouts")[0]["layout"]["members"]}


def codes(server):
    return {p["code"] for p in server.cli("status")["health"].get("problems", [])}


def move_to(layout, t, server, size=2 * 1024 * MIB):
    """Moves the data to a layout of a disk that can fail and of files: (the disk, the path of one of the files)."""
    disk, others = FailingDisk(t, "member", size), [t.dir / f"other{n}.img" for n in range(1 if layout == "mirror" else 3)]
    first = server.cli("pool", "pvs")[0]["path"]
    server.cli("pool", "add", "--layout", layout, "--name", "m1", disk.path, *others, "--size", size)
    server.cli("pool", "drain", first, "--wait")
    server.cli("pool", "remove", first)
    return disk, others[-1]


def lose(server, path):
    """The server is killed, and the disk is gone when it starts again."""
    server.kill()
    path.rename(path.with_suffix(".gone"))
    server.start()


@test(limit=420, hindcast_only=True)
def postgres_notices_nothing_on_a_mirror(t):
    postgres_notices_nothing(t, "mirror")


@test(limit=420, hindcast_only=True)
def postgres_notices_nothing_on_raid5(t):
    postgres_notices_nothing(t, "raid5")


def postgres_notices_nothing(t, layout):
    """A disk fails under PostgreSQL and comes back, fails again, and another disk takes its place."""
    server, volume, postgres = prepare(t)
    disk, other = move_to(layout, t, server)
    new = t.dir / "new.img"
    begun = time.time()
    bench = Bench(t, postgres, 0, 50)
    time.sleep(5)
    failed = time.time()
    for path, command in ((disk.path, ["online", disk.path]), (new, ["replace", disk.path, new, "--size", 2 * 1024 * MIB])):
        disk.fail(True)
        wait_for("the failure", lambda: states(server)[str(disk.path)] == "out")
        assert "layout-degraded" in codes(server), codes(server)
        time.sleep(4)
        disk.fail(False)
        server.cli("pool", *command)
        wait_for("the rebuild", lambda: states(server).get(str(path)) == "in")
    assert bench.process.poll() is None, "pgbench ended before the rebuilds did"
    recorded = {0: bench.committed()}
    assert bench.process.returncode == 0, (bench.logs / "output").read_text()
    before, after = bench.longest(begun, failed), bench.longest(failed)
    t.say(f"the longest transaction took {before:.2f} s before the first failure, and {after:.2f} s after it")
    # On a machine that does other things, too, transactions are longer from the beginning.
    assert after <= max(1, 2 * before), f"a pause of {after} s, and {before} s at the longest before"
    # What was rebuilt is needed from here on.
    server.kill()
    postgres.stop_at_once()
    volume.tear_down()
    other.rename(other.with_suffix(".gone"))
    server.start()
    assert states(server)[str(other)] == "out"
    volume.attach()
    volume.mount_checked()
    postgres.start()
    t.say(f"{verify(t, postgres, recorded)} transactions are there, with the rebuilt disk")
    postgres.stop()
    volume.detach()
    server.check()


@test(limit=240, hindcast_only=True)
def each_member_of_a_mirror_has_everything(t):
    each_member_is_needed_and_there(t, "mirror")


@test(limit=240, hindcast_only=True)
def each_member_of_raid5_is_rebuilt(t):
    each_member_is_needed_and_there(t, "raid5")


def each_member_is_needed_and_there(t, layout):
    server = t.server(pool="64M")
    disk, other = move_to(layout, t, server, 256 * MIB)
    v = server.create("v", 64 * MIB, "16K", "--cdp", "parity")
    with connection(v) as h:
        for n in range(32):
            h.pwrite(pattern(n, MIB), n * 2 * MIB)
        h.flush()
    server.cli("snapshot", "create", "v@s")
    server.drained()
    disk.fail(True)
    with connection(v) as h:
        h.pwrite(pattern(99, MIB), 0)
        h.flush()
    server.drained()
    assert states(server)[str(disk.path)] == "out" and states(server)[str(other)] == "in"
    server.cli("pool", "offline", other, code=CONFLICT)
    disk.fail(False)
    replacement = t.dir / "replacement.img"
    server.cli("pool", "replace", disk.path, replacement, "--size", 256 * MIB)
    wait_for("the rebuild", lambda: states(server).get(str(replacement)) == "in")
    lose(server, other)
    with connection(v) as h:
        assert h.pread(MIB, 0) == pattern(99, MIB)
        for n in range(1, 32):
            assert h.pread(MIB, n * 2 * MIB) == pattern(n, MIB), n
    with connection(server.uri("v@s")) as h:
        assert h.pread(MIB, 0) == pattern(0, MIB)
    # Without a second one the server does not start, and changes nothing.
    server.kill()
    replacement.rename(replacement.with_suffix(".away"))
    server.refuses_to_start()
    replacement.with_suffix(".away").rename(replacement)
    server.start()
    with connection(v) as h:
        assert h.pread(MIB, 0) == pattern(99, MIB)
    server.check()


@test(limit=240, hindcast_only=True)
def a_mirror_grows_while_clients_write(t):
    grows_while_clients_write(t, "mirror", 2)


@test(limit=240, hindcast_only=True)
def a_raid5_grows_while_clients_write(t):
    grows_while_clients_write(t, "raid5", 3)


def grows_while_clients_write(t, layout, disks):
    server = t.server(pool="64M")
    members, new = [t.dir / f"disk{n}.img" for n in range(disks)], t.dir / "new.img"
    # It was in use before.
    new.write_bytes(b"\xee" * (256 * MIB))
    first = server.cli("pool", "pvs")[0]["path"]
    server.cli("pool", "add", "--layout", layout, "--name", "m1", *members, "--size", 256 * MIB)
    server.cli("pool", "drain", first, "--wait")
    server.cli("pool", "remove", first)
    size = 240 * MIB if layout == "mirror" else 480 * MIB
    v = server.create("v", size, "16K")
    content = {n: n for n in range(0, size // MIB, 2)}
    with connection(v) as h:
        for n in content:
            h.pwrite(pattern(n, MIB), n * MIB)
        h.flush()
    server.drained()
    before = server.cli("pool", "pvs")[0]["size"]
    growth = server.cli("pool", "grow", "m1", new, "--force", "--rate", "40M")["layout"]["growth"]
    assert growth["moves"] > 50 * MIB, growth
    killed, written = False, 0
    while server.cli("pool", "layouts")[0]["layout"].get("growth"):
        with connection(v) as h:
            for n in random.sample(range(0, size // MIB, 2), 8):
                written += 1
                content[n] = 1000 + written
                h.pwrite(pattern(content[n], MIB), n * MIB)
            h.flush()
        if not killed:
            server.kill()
            server.start()
            killed = True
    assert killed and server.cli("pool", "pvs")[0]["size"] == growth["size"] > before
    t.say(f"{written} MiB were written while it grew")
    server.drained()
    lose(server, members[0])
    with connection(v) as h:
        for n, salt in content.items():
            assert h.pread(MIB, n * MIB) == pattern(salt, MIB), n
    server.cli("pool", "replace", members[0], members[0].with_suffix(".again"), "--size", 256 * MIB)
    wait_for("the rebuild", lambda: "out" not in states(server).values() and "rebuilding" not in states(server).values())
    lose(server, new)
    with connection(v) as h:
        for n, salt in content.items():
            assert h.pread(MIB, n * MIB) == pattern(salt, MIB), n


@test(hindcast_only=True)
def disks_of_different_sizes_are_used(t):
    server = t.server(pool="64M")
    members = [t.dir / f"disk{n}.img" for n in (1, 2, 3)]
    for number, path in enumerate(members, 1):
        run("truncate", "-s", f"{number}000G", path)
    pv = server.cli("pool", "add", "--layout", "mirror", "--name", "m1", *members)
    # With two copies, three disks of 1, 2 and 3 TB are used whole.
    assert 0.999 < pv["size"] / (3000 << 30) <= 1, pv
    server.create("v", 64 * MIB, "16K")
    server.check()


@test(hindcast_only=True)
def a_check_finds_a_wrong_copy_on_a_mirror(t):
    a_check_finds_a_wrong_copy(t, "mirror", 2)


@test(hindcast_only=True)
def a_check_finds_a_wrong_block_on_raid5(t):
    a_check_finds_a_wrong_copy(t, "raid5", 3)


def a_check_finds_a_wrong_copy(t, layout, disks):
    server = t.server(pool="64M")
    members = [t.dir / f"disk{n}.img" for n in range(disks)]
    first = server.cli("pool", "pvs")[0]["path"]
    server.cli("pool", "add", "--layout", layout, "--name", "m1", *members, "--size", 64 * MIB)
    server.cli("pool", "drain", first, "--wait")
    server.cli("pool", "remove", first)
    v = server.create("v", 16 * MIB, "16K")
    data = pattern(7, 4 * MIB)
    with connection(v) as h:
        h.pwrite(data, 0)
        h.flush()
    server.drained()
    server.stop()
    wanted = data[MIB:MIB + 4 * KIB]
    path, at = next((path, at) for path in members if (at := path.read_bytes().find(wanted)) >= 0)
    with open(path, "r+b") as file:
        file.seek(at + 100)
        file.write(bytes([wanted[100] ^ 1]))

    def checked(code):
        done = run(binary(), "check", "--data", server.dir, "--verify-data", "-o", "json", check=False)
        assert done.returncode == code, done.stdout
        return json.loads(done.stdout)

    report = checked(FAILED)
    assert report["data"]["wrong_copies"] >= 4 * KIB and report["data"]["damaged"] == 0, report
    assert [f["code"] for f in report["findings"]] == ["data"], report
    server.start()
    server.cli("pool", "scrub", "--wait")
    with connection(v) as h:
        assert h.pread(4 * MIB, 0) == data
    server.stop()
    assert checked(0)["data"]["wrong_copies"] == 0


if __name__ == "__main__":
    main()
