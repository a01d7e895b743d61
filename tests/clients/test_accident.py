#!/usr/bin/python3
"""An accident, and the ways back: the commands that a person types at 3 a.m., with real writes over NBD between them."""

import datetime
import time

from harness import *
from libnbd import *

SIZE = 16 * MIB


def content(server, export, length=MIB):
    with connection(server.uri(export)) as handle:
        return handle.pread(length, 0)


def put(server, volume, data):
    with connection(server.uri(volume)) as handle:
        handle.pwrite(data, 0)
        handle.flush()


def start(t):
    server = t.server()
    server.create("db", SIZE)
    server.cli("volume", "set", "db", "--cdp", "parity", "--retain", "7d")
    return server


@test(hindcast_only=True)
def every_address_is_a_moment(t):
    """Each command that takes VOLUME@… takes any moment: a snapshot, a mark, a time, a time before now."""
    server = start(t)
    good, bad = pattern(1, MIB), pattern(2, MIB)
    put(server, "db", good)
    server.cli("mark", "db", "m1")
    time.sleep(2)
    wall = datetime.datetime.now().strftime("%H:%M:%S")
    time.sleep(1.5)
    put(server, "db", bad)
    server.cli("clone", "create", "db@m1", "c1")
    server.cli("recover", "db", "--to", wall, "--as", "y")
    server.cli("snapshot", "create", "db@before", "--at", wall)
    server.cli("snapshot", "create", "db@marked", "--at", "m1")
    server.cli("export", "db@m1", "--file", t.dir / "m1.hcs")
    server.cli("export", f"db@{wall}", "--from", "db@m1", "--file", t.dir / "since.hcs")
    for export in ("c1", "y", "db@before", "db@marked", "db@m1"):
        assert content(server, export) == good, export
    assert content(server, "db") == bad
    server.cli("import", "copy", "--file", t.dir / "m1.hcs")
    assert content(server, "copy") == good and content(server, "copy@m1") == good
    server.cli("import", "copy", "--file", t.dir / "since.hcs")

    rolled = server.cli("rollback", "db@m1")
    assert content(server, "db") == good
    server.cli("rollback", f"db@{rolled[0]['undo']['name']}")
    assert content(server, "db") == bad, "and the rollback is undone"
    # What was kept stays when the history is gone.
    server.cli("volume", "set", "db", "--cdp", "off")
    server.drained()
    assert content(server, "db@before") == good
    server.check()
    assert content(server, "db@before") == good


@test(hindcast_only=True)
def the_wrong_volume_is_deleted(t):
    """With its snapshots, its history and its clients. All but the clients come back."""
    server = start(t)
    data = pattern(3, MIB)
    put(server, "db", data)
    server.cli("snapshot", "create", "db@monday")
    server.cli("mark", "db", "m1")
    put(server, "db", pattern(4, MIB))
    with connection(server.uri("db")) as handle:
        assert server.cli("clients", "list", "db")[0]["protocol"] == "nbd"
        server.cli("volume", "delete", "db", code=CONFLICT)
        server.cli("volume", "delete", "db", "--force")
        try:
            handle.pwrite(bytes(512), 0)
        except nbd.Error:
            pass
        else:
            raise AssertionError("a client writes to a volume in the trash")
    server.cli("volume", "show", "db", code=NOT_FOUND)
    assert [v["name"] for v in server.cli("trash", "list")] == ["db"]
    server.stop()
    server.start()
    server.cli("trash", "restore", "db")
    assert content(server, "db") == pattern(4, MIB)
    assert content(server, "db@monday") == data and content(server, "db@m1") == data
    server.check()


@test(hindcast_only=True)
def a_group_goes_back_together(t):
    server = start(t)
    server.create("log", SIZE)
    server.cli("volume", "set", "log", "--cdp", "undo")
    server.cli("group", "create", "shop", "db", "log")
    for volume in ("db", "log"):
        put(server, volume, pattern(5, MIB))
    server.cli("mark", "shop", "deployed")
    for volume in ("db", "log"):
        put(server, volume, pattern(6, MIB))
    server.cli("recover", "shop", "--to", "deployed", "--suffix", "-then")
    server.cli("rollback", "shop@deployed")
    for volume in ("db", "log", "db-then", "log-then"):
        assert content(server, volume) == pattern(5, MIB), volume
    server.check()


if __name__ == "__main__":
    main()
