#!/usr/bin/python3
"""Writable snapshots: a clone behind an address, over NBD and iSCSI, with what the snapshot froze still there."""

from iscsi import *
from iscsi_wire import attached, sense_of
from libnbd import connection, get, put, refused
import errno

CHECK_CONDITION, DATA_PROTECT = 2, 7
OLD, NEW, OURS = b"A" * 4096, b"B" * 4096, b"C" * 4096


def of(server, address):
    return server.cli("snapshot", "show", address).get("writable")


@test(hindcast_only=True)
def a_clone_behind_an_address(t):
    """Written under the snapshot's own name, while rollback, differences and clones are of what it froze."""
    server = t.server()
    server.create("db", 8 * MIB)
    put(server, "db", OLD)
    server.cli("snapshot", "create", "db@v1", "--label", "why=test")
    put(server, "db", NEW)
    with connection(server.uri("db@v1"), strict=False) as h:
        refused(errno.EPERM, h.pwrite, OURS, 0)

    made = server.cli("snapshot", "set", "db@v1", "--writable")
    assert (made["writable"], made["clones"], made["labels"]) == ("db.v1", ["db.v1"], {"why": "test"}), made
    assert server.cli("snapshot", "set", "db@v1", "--writable")["writable"] == "db.v1", "again: nothing to do"
    server.cli("snapshot", "set", "db@v1", "--writable", "--clone", "other", code=CONFLICT)
    put(server, "db@v1", OURS, 8192)
    assert [get(server, e, 12288) for e in ("db@v1", "db.v1")] == [OLD + bytes(4096) + OURS] * 2
    assert get(server, "db", 4096) == NEW
    with connection(server.uri("db@v1"), add_meta_context="hindcast:changed-since:v1") as h:
        runs = []
        h.block_status(64 << 10, 0, lambda name, _, entries, __: runs.append((name, entries)))
    changed, at = [], 0
    entries = dict(runs)["hindcast:changed-since:v1"]
    for length, flags in zip(entries[::2], entries[1::2]):
        changed += [(at, at + length)] if flags else []
        at += length
    # Exactly that, or once it is in its place all of the chunk.
    assert changed in ([(8192, 12288)], [(0, 16384)]) and at >= 16384, entries

    # What it froze: by a clone, a rollback, and a difference.
    server.cli("clone", "create", "db@v1", "frozen")
    assert get(server, "frozen", 12288) == OLD + bytes(8192)
    server.cli("snapshot", "rollback", "db@v1", "--undo-name", "undo")
    assert get(server, "db", 12288) == OLD + bytes(8192)

    # Over a kill, and whatever is renamed.
    server.kill()
    server.start()
    server.cli("snapshot", "rename", "db@v1", "v2")
    server.cli("volume", "rename", "db", "data")
    server.cli("volume", "rename", "db.v1", "trial")
    assert of(server, "data@v2") == "trial" and get(server, "data@v2", 4096, 8192) == OURS
    server.cli("snapshot", "label", "data@v2", "hindcast.clone=x", code=USAGE)
    server.cli("snapshot", "create", "data", "--label", "hindcast.clone=x", code=USAGE)
    assert server.cli("snapshot", "show", "data@v2")["labels"] == {"why": "test"}

    # Back, and with the same clone once more.
    with connection(server.uri("data@v2")) as h:
        server.cli("snapshot", "set", "data@v2", "--read-only", code=CONFLICT)
        server.cli("snapshot", "set", "data@v2", "--read-only", "--force")
        refused((errno.ENOTCONN, errno.ESHUTDOWN, errno.EINVAL, errno.EIO), h.pread, 4096, 0)
    assert of(server, "data@v2") is None and get(server, "data@v2", 12288) == OLD + bytes(8192)
    with connection(server.uri("data@v2")):
        server.cli("snapshot", "set", "data@v2", "--writable", "--clone", "trial", code=CONFLICT)
    server.cli("snapshot", "set", "data@v2", "--writable", "--clone", "data", code=CONFLICT)
    wait_for("the connection's end", lambda: server.cli("snapshot", "show", "data@v2")["handles"] == 0)
    server.cli("snapshot", "set", "data@v2", "--writable", "--clone", "trial")
    assert get(server, "data@v2", 4096, 8192) == OURS

    # Without its clone it is what it was; without the snapshot the clone is.
    server.cli("snapshot", "set", "data@v2", "--read-only", "--force")
    server.cli("volume", "rename", "trial", "data.v2")
    server.cli("snapshot", "set", "data@v2", "--writable", code=CONFLICT)
    server.cli("snapshot", "set", "data@v2", "--writable", "--clone", "data.v2")
    with connection(server.uri("data@v2")) as h:
        server.cli("volume", "delete", "--now", "data.v2", "--force")
        refused((errno.ENOTCONN, errno.ESHUTDOWN, errno.EINVAL, errno.EIO), h.pread, 4096, 0)
    assert of(server, "data@v2") is None and get(server, "data@v2", 12288) == OLD + bytes(8192)
    server.cli("snapshot", "set", "data@v2", "--writable", "--clone", "next")
    put(server, "data@v2", OURS)
    server.cli("snapshot", "delete", "data@v2")
    assert get(server, "next", 8192) == OURS + bytes(4096)
    server.check()


@test(hindcast_only=True)
def a_clone_behind_a_target(t):
    """The same over iSCSI: nothing changes under an initiator, not even by force."""
    served = server(t)
    url = served.create("db", 8 * MIB)
    session = attached(url)
    assert session.write(0, OLD)[0] == 0
    served.cli("snapshot", "create", "db@v1")
    reader = attached(served.url("db:snap:v1"))
    for how in ([], ["--force"]):
        served.cli("snapshot", "set", "db@v1", "--writable", *how, code=CONFLICT)
    assert not of(served, "db@v1") and not served.cli("clone", "list")
    status, sense = reader.write(0, OURS)
    assert status == CHECK_CONDITION and sense_of(sense)[0] == DATA_PROTECT
    reader.close()
    wait_for("the session's end", lambda: served.cli("snapshot", "show", "db@v1")["handles"] == 0)
    served.cli("snapshot", "set", "db@v1", "--writable")
    writer = attached(served.url("db:snap:v1"))
    assert writer.read(0, 8) == (0, OLD) and writer.write(0, OURS)[0] == 0
    for how in ([], ["--force"]):
        served.cli("snapshot", "set", "db@v1", "--read-only", *how, code=CONFLICT)
    served.cli("volume", "delete", "--now", "db.v1", code=CONFLICT)
    own = attached(served.url("db.v1"))
    assert own.read(0, 8) == (0, OURS), "the clone's own target"
    own.close()
    served.target("create", "shelf")
    served.target("add-lun", "shelf", "db@v1")
    assert [lun["source"] for lun in served.target("show", "shelf")["luns"]] == ["db.v1"]
    writer.close()
    assert session.read(0, 8) == (0, OLD)
    session.close()
    served.stop()
    served.start()
    writer = attached(served.url("db:snap:v1"))
    assert writer.read(0, 8) == (0, OURS), "over a restart"
    # With the clone its sessions end, and the address shows the snapshot.
    served.cli("volume", "delete", "--now", "db.v1", "--force")
    reader = attached(served.url("db:snap:v1"))
    assert reader.read(0, 8) == (0, OLD) and reader.write(0, OURS)[0] == CHECK_CONDITION
    reader.close()
    writer.close()
    served.check()


if __name__ == "__main__":
    main()
