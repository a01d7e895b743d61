#!/usr/bin/python3
"""What initiators meet: how often they are told of changes, the names they have, what discovery tells, and identities."""

import struct

from iscsi import *
from iscsi_wire import FINAL, IMMEDIATE, NO_TAG, READ, WRITE, Initiator, Pdu, attached, sense_of, text

ASYNC_MESSAGE, TEXT_REQUEST = 0x32, 0x04


def session_with(url, luns, name=INITIATOR):
    """A session that has met its unit attentions at all LUNs."""
    session = Initiator(url.host, url.port, timeout=3)
    answer = session.login(name, url.target)
    assert answer.bhs[36] == 0, f"refused: {answer.bhs[36]} {answer.bhs[37]}"
    for lun in luns:
        for _ in range(8):
            if session.execute(bytes(6), lun=lun)[0] == 0:
                break
    return session


def messages(session):
    """Asynchronous Messages that come until three seconds are quiet."""
    count = 0
    try:
        while True:
            pdu = session.receive()
            count += pdu.opcode == ASYNC_MESSAGE
            if pdu.opcode == 0x20 and pdu.word(20) != NO_TAG:
                session.nop_reply(pdu)
    except TimeoutError:
        return count


def inquiry(session, page, lun=0):
    return session.execute(bytes([0x12, 1, page, 1, 0, 0]), READ, 256, lun=lun)[1]


def naa(session, lun=0):
    """The NAA identifier of device identification."""
    page, at = inquiry(session, 0x83, lun), 4
    while page[at + 1] & 0x3F != 3:
        at += 4 + page[at + 3]
    return page[at + 4:at + 12]


def serial(session, lun=0):
    page = inquiry(session, 0x80, lun)
    return page[4:4 + page[3]].decode()


@test(hindcast_only=True)
def one_message_tells_of_many_luns(t):
    """LUNs that are added and removed, one by one: a message until the initiator has looked, not one for each LUN."""
    served = server(t)
    for number in range(41):
        served.create(f"v{number}", 4 * MIB)
    served.target("create", "many")
    for number in range(20):
        served.target("add-lun", "many", "--volume", f"v{number}")
    session = session_with(served.url("many"), range(20))
    served.target("add-lun", "many", "--volume", "v20")
    assert messages(session) == 1
    for number in range(21, 41):
        served.target("add-lun", "many", "--volume", f"v{number}")
    assert messages(session) == 0, "it has not looked yet"
    status, luns = session.execute(bytes([0xA0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]), READ, 1024)
    assert status == 0 and struct.unpack(">I", luns[:4])[0] == 41 * 8
    served.target("allow", "many", "--initiator", INITIATOR, "--lun", "0", "--lun", "1")
    assert messages(session) == 1, "a rule that hides LUNs"
    sensed = []
    for _ in range(4):
        status, data = session.execute(bytes(6), lun=1)
        sensed += [sense_of(data)] if status else []
    assert (6, 0x3F, 0x0E) in sensed, f"each LUN has its unit attention: {sensed}"


@test(hindcast_only=True)
def names_that_can_be_printed(t):
    """QEMU names initiators after virtual machines: with underscores and blanks. What is refused is in the log, once."""
    need("iscsi-inq")
    served = server(t)
    url = served.create("v", 64 * MIB)
    for name in ("iqn.2008-11.org.linux-kvm:web_01", "iqn.2008-11.org.linux-kvm:Win 10",
                 "iqn.1991-05.com.microsoft:fs_01.example"):
        assert "HINDCAST" in run("iscsi-inq", "-i", name, url), name
    served.target("allow", "v", "--initiator", "iqn.2008-11.org.linux-kvm:win 10")
    assert "HINDCAST" in run("iscsi-inq", "-i", "iqn.2008-11.org.linux-kvm:Win 10", url)
    for _ in range(20):
        assert Initiator(url.host, url.port).login("iqn.2008-11.org.linux-kvm:web_02", url.target).bhs[36:38] == b"\2\3"
        assert Initiator(url.host, url.port).login("iqn.no,name", url.target).bhs[36:38] == b"\2\0"
    lines = [line for line in served.log.read_text().splitlines() if "login refused" in line]
    for name in ("web_02", "iqn.no,name"):
        told = [line for line in lines if name in line]
        assert len(told) == 1 and "127.0.0.1" in told[0], told


def told_addresses(port):
    """What SendTargets=All tells of addresses to somebody who comes by 127.0.0.1."""
    session = Initiator("127.0.0.1", port)
    assert session.login(INITIATOR).bhs[36] == 0
    bhs = struct.pack(">BB2x4x8xIIII16x", TEXT_REQUEST | IMMEDIATE, FINAL, 5, NO_TAG, session.cmd_sn, session.exp_stat_sn)
    session.send(Pdu(bhs, text(SendTargets="All")))
    pairs = session.receive().data.decode().split("\0")
    session.close()
    return sorted(pair.split("=", 1)[1] for pair in pairs if pair.startswith("TargetAddress="))


@test(hindcast_only=True)
def discovery_tells_what_is_reached(t):
    """Wildcards of both families, and loopback: each address once, and of the asker's own family."""
    [port, other] = free_ports(2)
    made = IscsiHindcast(t.dir / "data", portals=0,
                         args=[f"--iscsi=0.0.0.0:{port}", f"--iscsi=[::]:{port}", f"--iscsi=[::]:{other}/2"])
    t.defer(made.take_down)
    made.start()
    made.cli("volume", "create", "v", "--size", 64 * MIB)
    made.target("allow", "--all", "--address", "127.0.0.0/8")
    assert told_addresses(port) == [f"127.0.0.1:{port},1"]
    made.stop()
    made.args = [arg for arg in made.args if not str(arg).startswith("--iscsi=")]
    made.args += [f"--iscsi=127.0.0.1:{port}", f"--iscsi=[::1]:{port}/2"]
    made.start()
    assert told_addresses(port) == [f"127.0.0.1:{port},1", f"[::1]:{port},2"]


@test(hindcast_only=True)
def moments_are_disks_of_their_own(t):
    """The live volume and its moments: no two have one identifier, and the volume keeps its own."""
    served = server(t)
    url = served.create("db", 64 * MIB, "16K", "--cdp", "parity")
    live = attached(url)
    before = naa(live), serial(live)
    lsns = []
    for number in range(40):
        assert live.write(number, bytes([number]) * 512)[0] == 0
        lsns.append(served.pool()["journal"]["sequenced_lsn"])
    seen = {before}
    for lsn in sorted(set(lsns)):
        moment = attached(Url(url.port, f"{url.target}:at:lsn:{lsn}", 0))
        seen.add((naa(moment), serial(moment)))
        moment.close()
    for part in (0, 1):
        assert len({identity[part] for identity in seen}) == len(set(lsns)) + 1, "two share an identifier"
    served.kill()
    served.start()
    assert (naa(attached(url)), serial(attached(url))) == before


@test(hindcast_only=True)
def copies_go_from_target_to_target(t):
    """EXTENDED COPY between volumes that are targets of their own, as ESXi and others have them by default."""
    served = server(t)
    a, b = served.create("a", 8 * MIB), served.create("b", 8 * MIB)
    one = attached(a)
    content = os.urandom(64 * KIB)
    assert one.write(0, content)[0] == 0

    def named(identifier):
        return bytes([0xE4, 0, 0, 0, 1, 3, 0, 8]) + identifier.ljust(20, b"\0") + struct.pack(">I", 512)

    def copy(source, destination):
        segment = struct.pack(">BBHHHxxHQQ", 2, 0, 24, 0, 1, 128, 0, 0)
        data = bytes([1, 0]) + struct.pack(">H4xI4x", 64, len(segment)) + named(source) + named(destination) + segment
        status, sense = one.execute(bytes([0x83] + [0] * 9) + struct.pack(">I", len(data)) + b"\0\0", WRITE, len(data), data)
        return sense_of(sense) if status else None

    two = attached(b)
    source, destination = naa(one), naa(two)
    assert copy(source, destination) is None
    assert two.read(0, 128) == (0, content)
    served.target("allow", "b", "--initiator", INITIATOR, "--read-only")
    assert copy(source, destination) == (7, 0x27, 0), "the rules of the other session hold"
    two.close()
    wait_for("the end of the session", lambda: copy(source, destination) == (0x0A, 0x0D, 2), limit=10)


@test(hindcast_only=True)
def files_have_an_end_and_a_serial_number(t):
    """A length that is no multiple of the block size, and a serial number that is the same wherever the file is mapped."""
    need_qemu_iscsi()
    served = server(t)
    image = t.dir / "image.raw"
    content = os.urandom(1_000_000)
    image.write_bytes(content)
    served.target("create", "files")
    said = served.target("add-lun", "files", "--file", image, code=USAGE)
    assert "truncate -s 1000448" in said and "read-only" in said, said
    served.target("add-lun", "files", "--file", image, "--read-only", "--serial", "win_2026")
    url = served.url("files")
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", url, t.dir / "copy.raw")
    assert (t.dir / "copy.raw").read_bytes() == content + bytes(448)
    session = attached(url)
    identity = naa(session), serial(session)
    assert identity[1] == "win_2026"
    session.close()
    served.target("remove-lun", "files", "0", "--force")
    elsewhere = server(t, "elsewhere")
    elsewhere.target("create", "files")
    elsewhere.target("add-lun", "files", "--file", image, "--read-only", "--serial", "win_2026")
    session = attached(elsewhere.url("files"))
    assert (naa(session), serial(session)) == identity


if __name__ == "__main__":
    main()
