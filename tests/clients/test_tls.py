#!/usr/bin/python3
"""NBD_OPT_STARTTLS with X.509 certificates made here: optional, required, with client certificates, and refused."""

import os
import random
import ssl
import struct

from harness import *
from pki import Authority
from wire import *

try:
    import nbd
except ImportError:
    nbd = None

SIZE = 64 * MIB


def tls_server(t, authority, required=False, verify=False):
    if PEER:
        args = [f"--tls={'require' if required else 'on'}", f"--tls-certificates={authority.dir}"]
        args += ["--tls-verify-peer"] if verify else []
    else:
        args = ["--nbd-tls-cert", authority.dir / "server-cert.pem", "--nbd-tls-key", authority.dir / "server-key.pem"]
        args += ["--nbd-tls-ca", authority.dir / "ca-cert.pem"] if verify else []
        args += ["--nbd-tls-required"] if required else []
    server = t.server(args=args)
    server.create("v", SIZE)
    return server


def connect(server, certificates=None, verify=True):
    if nbd is None:
        raise Skip("python3-libnbd is not installed for this Python")
    handle = nbd.NBD()
    if not handle.supports_tls():
        raise Skip("libnbd is built without TLS")
    if certificates is not None:
        handle.set_tls(nbd.TLS_REQUIRE)
        handle.set_tls_certificates(str(certificates))
        handle.set_tls_verify_peer(verify)
    handle.set_export_name("v")
    handle.connect_unix(str(server.socket))
    return handle


def must_fail(what, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except nbd.Error as error:
        return error
    raise AssertionError(f"{what} was let in")


@test()
def data_over_tls(t):
    authority = Authority(t.dir / "pki")
    server = tls_server(t, authority)
    data = random.Random(1).randbytes(8 * MIB)
    h = connect(server, authority.dir)
    assert h.get_tls_negotiated()
    for offset in range(0, len(data), 2 * MIB):
        h.pwrite(data[offset:offset + 2 * MIB], offset)
    h.flush()
    assert h.pread(len(data), 0) == data
    h.zero(MIB, 0)
    h.shutdown()
    h = connect(server)
    assert not h.get_tls_negotiated()
    assert h.pread(MIB, 0) == bytes(MIB) and h.pread(MIB, MIB) == data[MIB:2 * MIB], "TLS and plain see one volume"
    h.shutdown()


@test()
def nbdcopy_over_tls(t):
    need("nbdcopy")
    authority = Authority(t.dir / "pki")
    server = tls_server(t, authority, required=True)
    image, back = t.dir / "image", t.dir / "back"
    image.write_bytes(os.urandom(SIZE))
    uri = f"nbds+unix:///v?socket={server.socket}&tls-certificates={authority.dir}"
    run("nbdcopy", image, uri)
    run("nbdcopy", uri, back)
    assert sha256(image) == sha256(back)


@test()
def required(t):
    """Without TLS nothing but STARTTLS and ABORT gets an answer."""
    authority = Authority(t.dir / "pki")
    server = tls_server(t, authority, required=True)
    must_fail("a plain client", connect, server)
    with Wire(server.socket) as w:
        for option, data in ((OPT_LIST, b""), (OPT_INFO, name_data("v") + b"\0\0"), (OPT_GO, name_data("v") + b"\0\0"),
                             (OPT_STRUCTURED_REPLY, b"")):
            kind, _ = w.ask(option, data)[-1]
            assert kind == ERR_TLS_REQD, f"option {option}: {kind:#x}"
        assert w.ask(OPT_ABORT)[-1][0] == REP_ACK
    with Wire(server.socket) as w:
        w.option(OPT_EXPORT_NAME, b"v")
        assert w.closed_by_server()
    connect(server, authority.dir).shutdown()


@test()
def client_certificates(t):
    authority, stranger = Authority(t.dir / "pki"), Authority(t.dir / "stranger")
    server = tls_server(t, authority, required=True, verify=True)
    connect(server, authority.dir).shutdown()
    for what, certificates in (("a client without certificate", authority.without_client_certificate()),
                               ("a client of another authority", stranger.dir)):
        def use():
            # TLS 1.3 tells a client of its refusal only after its own handshake has ended.
            h = connect(server, certificates, verify=False)
            h.pread(512, 0)
        must_fail(what, use)
    connect(server, authority.dir).shutdown()


@test()
def chain_verifies_by_name(t):
    """Another TLS implementation accepts the server's chain for its authority, and for no other."""
    authority, stranger = Authority(t.dir / "pki"), Authority(t.dir / "stranger")
    server = tls_server(t, authority)
    for pki, welcome in ((authority, True), (stranger, False)):
        context = ssl.create_default_context(cafile=str(pki.dir / "ca-cert.pem"))
        with Wire(server.socket) as w:
            assert w.ask(OPT_STARTTLS)[-1][0] == REP_ACK
            try:
                w.sock = context.wrap_socket(w.sock, server_hostname="localhost")
            except ssl.SSLCertVerificationError:
                assert not welcome
                continue
            assert welcome
            kind, _ = w.ask(OPT_STARTTLS)[-1]
            assert kind == ERR_INVALID, f"STARTTLS inside TLS: {kind:#x}"
            w.use_structured()
            w.go("v")
            assert w.do(CMD_READ, 0, 512) == (0, bytes(512))


@test()
def injected_plain_text_is_dropped(t):
    """What a client (or somebody between) sends in the same packet behind STARTTLS must not be taken as negotiated
    under TLS."""
    authority = Authority(t.dir / "pki")
    server = tls_server(t, authority)
    with Wire(server.socket) as w:
        go = name_data("v") + b"\0\0"
        w.send(IHAVEOPT + struct.pack(">II", OPT_STARTTLS, 0) + IHAVEOPT + struct.pack(">II", OPT_GO, len(go)) + go)
        assert w.option_reply(OPT_STARTTLS)[0] == REP_ACK
        w.sock.settimeout(20)
        try:
            rest = w.sock.recv(4096)
        except (ConnectionResetError, TimeoutError):
            rest = b""
        assert struct.pack(">Q", OPTION_REPLY) not in rest, "plain text after STARTTLS was answered"
    connect(server, authority.dir).shutdown()


@test()
def starttls_without_certificates(t):
    server = t.server()
    server.create("v", SIZE)
    with Wire(server.socket) as w:
        kind, _ = w.ask(OPT_STARTTLS)[-1]
        assert kind in (ERR_UNSUP, ERR_POLICY), f"a server without certificates: {kind:#x}"
        w.go("v")
        assert w.do(CMD_READ, 0, 512) == (0, bytes(512)), "negotiation goes on"


if __name__ == "__main__":
    main()
