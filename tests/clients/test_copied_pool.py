#!/usr/bin/python3
"""A pool that was copied, served beside the original: other disks to initiators, the same to everybody else."""

from iscsi import *
from iscsi_wire import READ, WRITE, Initiator

SERIAL, DESIGNATORS = 0x80, 0x83


def attach(url):
    """A session that has met its unit attentions."""
    session = Initiator(url.host, url.port)
    answer = session.login(INITIATOR, url.target)
    assert (answer.bhs[36], answer.bhs[37]) == (0, 0), "the login is refused"
    session.settle()
    return session


def page(session, code):
    """A page of vital product data."""
    status, data = session.execute(bytes([0x12, 1, code, 0, 255, 0]), READ, 255)
    assert status == 0 and data[1] == code
    return data[4:4 + int.from_bytes(data[2:4], "big")]


def identities(url):
    """All that tells an initiator which disk it is: the serial number, and the designators of the logical unit. Those of
    the target and its port are names that people choose."""
    session = attach(url)
    found, rest = {page(session, SERIAL)}, page(session, DESIGNATORS)
    session.close()
    while rest:
        kind, length = rest[1], rest[3]
        if kind & 0x30 == 0:
            found.add((kind, rest[4:4 + length]))
        rest = rest[4 + length:]
    assert len(found) >= 3, "a serial number, an NAA and a T10 identifier"
    return found


def fill(url, byte):
    session = attach(url)
    status, _ = session.write(0, bytes([byte]) * 64 * KIB)
    # SYNCHRONIZE CACHE (10).
    assert status == 0 and session.execute(bytes([0x35]) + bytes(9))[0] == 0
    session.close()


def first(url):
    """What all of the first 64 KiB is."""
    session = attach(url)
    status, data = session.read(0, 128)
    session.close()
    assert status == 0 and len(set(data)) == 1, "not what anybody wrote"
    return data[0]


def reidentify(server, *args, code=DONE):
    return server.cli("pool", "reidentify", "--data", server.dir, *args, code=code)


def copy_of(t, original, name):
    """A copy of the data directory with its physical volume, on ports of its own."""
    shutil.copytree(original.dir, t.dir / name, ignore=shutil.ignore_patterns("*.sock"))
    copy = server(t, name, start=False, pool="64M", journal="16M")
    # It has a pool: it is not to make one.
    copy.answered = True
    return copy


@test(limit=180, hindcast_only=True)
def a_copy_beside_the_original(t):
    """Two servers at once: no disk of the one is taken for one of the other."""
    original = server(t, "original", pool="64M", journal="16M")
    url = original.create("db", 8 * MIB)
    fill(url, 1)
    original.cli("snapshot", "create", "db@before")
    fill(url, 2)
    original.target("create", "cluster")
    original.target("add-lun", "cluster", "--volume", "db")
    original.cli("schedule", "create", "often", "db", "--every", "10s", "--keep-last", 2)
    past = Url(original.ports[0], f"{NAMING_AUTHORITY}:db:snap:before", 0)
    disks = (url, past)
    known = [identities(disk) for disk in disks]
    # With the pool in use, as it may be when a machine is cloned.
    original.kill()
    copy = copy_of(t, original, "copy")
    original.start()

    # Without a new identity they would be one disk.
    copy.start()
    assert identities(copy.url("db")) == known[0], "the test would not notice"
    assert "another process" in reidentify(copy, "--yes", code=CONFLICT)
    copy.stop()

    plan = reidentify(copy)
    assert [volume["new"] for volume in plan["volumes"]] == [None] and plan["schedules"] == ["often"]
    done = reidentify(copy, "--yes")
    assert [volume["name"] for volume in done["now"]["volumes"]] == ["db"]
    names = {f"{NAMING_AUTHORITY}:db", f"{NAMING_AUTHORITY}:cluster"}
    assert set(done["now"]["targets"]) == names, "who has to look after names is told which"
    copy.check_offline()
    copy.start()
    copies = (copy.url("db"), Url(copy.ports[0], past.target, 0), copy.url("cluster"))
    seen = [identities(disk) for disk in copies]
    assert not set.union(*known) & set.union(*seen), "a disk of the copy has an identity of the original's"
    assert seen[0] == seen[2] and not seen[0] & seen[1], "one volume behind two targets is one disk"
    assert [identities(disk) for disk in disks] == known

    assert [first(disk) for disk in copies] == [2, 1, 2]
    fill(copies[0], 3)
    assert [first(disk) for disk in (*copies, *disks)] == [3, 1, 3, 2, 1]
    # Schedules go on with their volumes.
    ours = {s["name"] for s in copy.cli("snapshot", "list", "db")}

    def taken():
        return {s["name"] for s in copy.cli("snapshot", "list", "db")} - ours
    wait_for("a snapshot of the schedule", taken, limit=40)
    copy.check()
    assert identities(copy.url("db")) == seen[0], "another identity after a restart"


@test(limit=120, hindcast_only=True)
def a_reservation_stays_with_the_original(t):
    """Registrations that the original keeps are not the copy's."""
    original = server(t, "original", pool="64M", journal="16M")
    url = original.create("db", 8 * MIB)
    session = attach(url)
    # PERSISTENT RESERVE OUT: REGISTER with APTPL, and a new key.
    parameters = bytes(8) + (0x1234).to_bytes(8, "big") + bytes(4) + bytes([1]) + bytes(3)
    out = bytes([0x5F, 0, 0, 0, 0, 0, 0, 0, len(parameters), 0])
    status, _ = session.execute(out, WRITE, len(parameters), parameters)
    assert status == 0
    session.close()
    assert list(original.dir.glob("lu-*.state")), "nothing is kept"
    original.stop()
    copy = copy_of(t, original, "copy")
    reidentify(copy, "--yes")
    assert not list(copy.dir.glob("lu-*.state"))
    original.start()
    copy.start()

    def keys(url):
        session = attach(url)
        # PERSISTENT RESERVE IN: READ KEYS.
        status, data = session.execute(bytes([0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0]), READ, 64)
        session.close()
        assert status == 0
        return int.from_bytes(data[4:8], "big") // 8
    assert (keys(original.url("db")), keys(copy.url("db"))) == (1, 0)


if __name__ == "__main__":
    main()
