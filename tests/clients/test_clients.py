#!/usr/bin/python3
"""Who uses a volume, over both protocols, and how an operator ends that."""

from iscsi import *
from iscsi_wire import Closed, Initiator
from libnbd import *


def clients(server, *args):
    listed = server.cli("clients", *args)
    assert [c["id"] for c in server.cli("clients", "list", *args)] == [c["id"] for c in listed]
    return listed


@test(hindcast_only=True)
def both_protocols_are_listed_and_can_be_disconnected(t):
    server = IscsiHindcast(t.dir / "data", portals=1)
    t.defer(server.take_down)
    server.start()
    url = server.create("db", 16 * MIB)
    server.create("log", 16 * MIB)
    assert clients(server) == [], "nobody is connected yet"
    with connection(server.uri("db")) as handle:
        handle.pwrite(bytes(8192), 0)
        handle.pread(4096, 0)
        [over_nbd] = clients(server, "db")
        assert over_nbd["protocol"] == "nbd" and over_nbd["exports"] == ["db"], over_nbd
        assert (over_nbd["write_bytes"], over_nbd["read_bytes"]) == (8192, 4096), over_nbd
        assert clients(server, "log") == []
        session = Initiator(url.host, url.port)
        session.login(INITIATOR, url.target)
        session.settle()
        both = clients(server, "db")
        assert [c["protocol"] for c in both] == ["nbd", "iscsi"], both
        assert both[1]["initiator"] == INITIATOR and both[1]["exports"] == ["db"], both
        server.cli("clients", "disconnect", both[0]["id"], both[1]["id"])
        assert clients(server, "db") == [], "both are gone"
        try:
            handle.pread(4096, 0)
        except nbd.Error:
            pass
        else:
            raise AssertionError("the NBD connection goes on")
        try:
            session.write(8, bytes(512))
        except (Closed, OSError):
            pass
        else:
            raise AssertionError("the iSCSI session goes on")
        server.cli("clients", "disconnect", both[0]["id"], code=NOT_FOUND)
    with connection(server.uri("db")) as handle:
        handle.pread(4096, 0)
        [again] = clients(server, "db")
        assert again["id"] != over_nbd["id"], "a client may come back, as another one"


if __name__ == "__main__":
    main()
