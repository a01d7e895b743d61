#!/usr/bin/python3
"""Access rules for NBD, on an address that other machines reach: by address, by certificate, and for clients that are
connected already."""

import ipaddress

from harness import *
from libnbd import *
from pki import Authority

SIZE = 16 * MIB


def own_address():
    """An address of this machine that is not a loopback address."""
    need("hostname")
    found = [ipaddress.ip_address(text) for text in run("hostname", "-I").split()]
    usable = [a for a in found if not a.is_loopback and not a.is_link_local]
    if not usable:
        raise Skip("this machine has only loopback addresses (hostname -I)")
    return min(usable, key=lambda a: a.version)


def host(address):
    return f"[{address}]" if address.version == 6 else str(address)


def start(t, *args, name="data"):
    """A server that listens on a reachable address, on 127.0.0.1 and on a Unix socket. Returns it with the two
    addresses as `HOST:PORT`."""
    address = own_address()
    listen = [f"--nbd={host(address)}:0", "--nbd=127.0.0.1:0"]
    server = Hindcast(t.dir / name, args=[*listen, *map(str, args)])
    t.defer(server.take_down)
    server.start()
    tcp = [a for a in server.cli("status")["listeners"]["nbd"] if not a.startswith("unix:")]
    far, near = sorted(tcp, key=lambda a: a.startswith("127."))
    return server, far, near


def names(place):
    """The exports that a client is told of."""
    listed = json.loads(run("nbdinfo", "--list", "--json", f"nbd://{place}"))
    return sorted(export["export-name"] for export in listed["exports"])


def opened(place, export="db"):
    """The client is let in, and reads."""
    with connection(f"nbd://{place}/{export}") as handle:
        assert handle.pread(512, 0) == bytes(512)
        return handle.is_read_only()


def shut(place, export="db"):
    """The client is refused by NBD_OPT_GO and by NBD_OPT_EXPORT_NAME."""
    for settings in {}, {"set_handshake_flags": 0}, {"set_opt_mode": True}:
        try:
            with connection(f"nbd://{place}/{export}", **settings) as handle:
                handle.opt_info()
        except nbd.Error as error:
            assert settings or "policy" in str(error), error
        else:
            raise AssertionError(f"{export} was opened at {place}")


def ended(handle):
    """The server has ended the connection."""
    try:
        handle.pread(512, 0)
    except nbd.Error:
        return
    raise AssertionError("the connection goes on")


@test(hindcast_only=True)
def nobody_without_a_rule(t):
    need("nbdinfo")
    server, far, near = start(t)
    server.create("db", SIZE)
    server.create("log", SIZE)
    server.cli("snapshot", "create", "db@s")
    begin = server.log.read_text().split("ready")[0]
    assert far in begin and near not in begin, "the log names the listener"
    assert names(near) == ["db", "db@s", "log"] and names(far) == []
    for export in "db", "db@s", "db@-1s", "log":
        shut(far, export)
    opened(near)
    assert "no access rule allows an NBD client" in server.log.read_text()
    # A rule of one volume opens that volume, with its past.
    server.cli("access", "allow", "db", "--nbd", "--address", own_address())
    assert names(far) == ["db", "db@s"]
    opened(far), opened(far, "db@s"), opened(far, "")
    shut(far, "log")
    # It holds on loopback, too, but not on the Unix socket.
    assert names(near) == ["log"]
    shut(near)
    with connection(server.uri("db")) as handle:
        handle.pread(512, 0)
    # A writable snapshot needs the rules of its clone, which begin as the volume's.
    server.cli("snapshot", "set", "db@s", "--writable")
    assert not opened(far, "db@s")
    server.cli("access", "deny", "db.s", "--nbd", "--at", 1)
    shut(far, "db@s"), opened(far)
    server.stop()
    server.start()
    assert [rule["access"] for rule in server.cli("access", "list", "db")["rules"]] == ["read_write"], "kept"


@test(hindcast_only=True)
def rules_end_connections(t):
    server, far, near = start(t)
    server.create("db", SIZE)
    server.create("log", SIZE)
    server.cli("access", "allow", "--all", "--nbd", "--address", own_address())
    with connection(f"nbd://{far}/db") as first, connection(f"nbd://{far}/log") as second:
        first.pwrite(bytes(512), 0)
        server.cli("access", "deny", "db", "--nbd", "--address", own_address())
        ended(first)
        second.pread(512, 0)
        server.cli("volume", "rename", "log", "log2")
        second.pread(512, 0)
        assert [c["exports"] for c in server.cli("clients", "list")] == [["log2"]]
        server.cli("access", "allow", "log2", "--nbd", "--read-only")
        ended(second)
    assert opened(far, "log2"), "read-only"
    with connection(f"nbd://{far}/log2") as third, connection(server.uri("db")) as unix:
        server.cli("access", "remove", "--all", "--nbd", "--rule", 1)
        third.pread(512, 0)
        server.cli("access", "remove", "log2", "--nbd", "--rule", 1)
        ended(third)
        unix.pread(512, 0)
    server.cli("access", "remove", "log2", "--nbd", "--rule", 1, code=NOT_FOUND)


@test(hindcast_only=True)
def nbd_open_is_as_it_was(t):
    server, far, near = start(t, "--nbd-open")
    server.create("db", SIZE)
    server.create("log", SIZE)
    opened(far), opened(near)
    assert "--nbd-open" in server.log.read_text()
    assert server.cli("access", "list")[0]["unmatched"] == "open"
    server.cli("access", "allow", "db", "--nbd", "--address", "192.0.2.99")
    shut(far), shut(near), opened(far, "log")


@test(hindcast_only=True)
def certificates(t):
    authority = Authority(t.dir / "pki")
    server, far, near = start(t, "--nbd-tls-cert", authority.dir / "server-cert.pem", "--nbd-tls-key",
                              authority.dir / "server-key.pem", "--nbd-tls-ca", authority.dir / "ca-cert.pem")
    server.create("db", SIZE)

    def over_tls(place):
        """Returns whether the client with the certificate CN=client is let in."""
        handle = nbd.NBD()
        if not handle.supports_tls():
            raise Skip("libnbd is built without TLS")
        handle.set_tls(nbd.TLS_REQUIRE)
        handle.set_tls_certificates(str(authority.dir))
        handle.set_tls_verify_peer(False)
        try:
            handle.set_export_name("db")
            handle.connect_tcp(*place.strip("[").replace("]", "").rsplit(":", 1))
        except nbd.Error as error:
            assert "policy" in str(error), error
            return None
        assert handle.pread(512, 0) == bytes(512)
        return handle

    assert over_tls(far) is None, "a certificate alone is not enough"
    server.cli("access", "allow", "db", "--nbd", "--certificate", "CN=other")
    assert over_tls(far) is None and over_tls(near) is None
    server.cli("access", "allow", "db", "--nbd", "--address", own_address(), "--certificate", "CN=client")
    handle = over_tls(far)
    assert handle is not None and over_tls(near) is None
    server.cli("access", "deny", "db", "--nbd", "--certificate", "CN=client", "--at", 1)
    ended(handle)
    assert over_tls(far) is None
    for bad in "client", "O=acme", "CN=client,O=acme", "CN=":
        assert "CN=NAME" in server.cli("access", "allow", "db", "--nbd", "--certificate", bad, code=USAGE)


if __name__ == "__main__":
    main()
