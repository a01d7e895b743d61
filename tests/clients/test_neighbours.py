#!/usr/bin/python3
"""Who does nothing, or as little as possible, and holds what it can: connections, memory, descriptors. A client beside
them keeps its speed, and the server its administration, schedules and memory."""

import random
import resource
import socket
import struct

from iscsi import *
from iscsi_wire import FINAL, READ, WRITE, Closed, Initiator, read10, write10
from wire import Closed as Hungup
from wire import REQUEST, Wire

CROWD_ADDRESS = "127.0.0.2"
BIG = 32 * MIB
# What a moment of the machine, rather than the crowd, may add to the slowest hundredth.
SLACK = 0.05


class Far(Wire):
    """NBD over TCP, from an address of its own."""

    def __init__(self, port, source=CROWD_ADDRESS, receive_buffer=None):
        self.sock = socket.socket()
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(30)
        self.sock.bind((source, 0))
        self.sock.connect(("127.0.0.1", port))
        self.structured = False
        self.size = None
        self.take(18)
        self.send(struct.pack(">I", 3))


class Site:
    """A server that listens everywhere, with 1,024 descriptors, a victim's volume and a crowd's."""

    def __init__(self, t, descriptors=1024):
        self.t = t
        self.nbd, self.http = free_ports(2)
        token = t.dir / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        self.served = server(t, start=False, args=[
            f"--nbd=127.0.0.1:{self.nbd}", f"--api=unix:{t.dir}/data/hindcast.sock", f"--api=127.0.0.1:{self.http}",
            f"--api-token-file={token}"])
        self.served.limits = {resource.RLIMIT_NOFILE: (descriptors, descriptors)}
        self.served.start()
        self.served.create("victim", 256 * MIB, "16K", "--cdp", "undo")
        self.served.create("crowd", 256 * MIB)
        self.url, self.crowd_url = self.served.url("victim"), self.served.url("crowd")
        self.wire = Wire(self.served.socket)
        t.defer(self.wire.sock.close)
        self.wire.use_structured()
        self.wire.go("victim")
        self.initiator = self.initiate("victim", INITIATOR, None)
        for at in range(0, 64, 4):
            self.wire.do(1, at * MIB, 4 * MIB, payload=random.randbytes(4 * MIB))

    def initiate(self, volume, name, source=CROWD_ADDRESS, receive_buffer=None):
        url = self.served.url(volume)
        member = Initiator(url.host, url.port, timeout=30, source=source, receive_buffer=receive_buffer)
        self.t.defer(member.close)
        assert member.login(name, url.target, MaxBurstLength=1048576, FirstBurstLength=262144).bhs[36] == 0
        member.settle()
        return member

    def memory(self):
        status = pathlib.Path(f"/proc/{self.served.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * KIB

    def measure(self):
        """{what: seconds of the slowest hundredth} of a well-behaved client."""
        wire, initiator = self.wire, self.initiator
        small, large = bytes(4096), bytes(MIB)
        at = lambda size: random.randrange(64 * MIB // size) * size
        work = {
            "NBD read 4K": (200, lambda: wire.do(0, at(4096), 4096)),
            "NBD write 4K": (200, lambda: wire.do(1, at(4096), 4096, payload=small)),
            "NBD read 1M": (40, lambda: wire.do(0, at(MIB), MIB)),
            "NBD write 1M": (40, lambda: wire.do(1, at(MIB), MIB, payload=large)),
            "iSCSI read 4K": (200, lambda: initiator.read(at(4096) // 512, 8)),
            "iSCSI write 4K": (200, lambda: initiator.write(at(4096) // 512, small)),
            "iSCSI read 1M": (40, lambda: initiator.read(at(MIB) // 512, 2048)),
            "iSCSI write 256K": (40, lambda: initiator.write(at(MIB) // 512, bytes(256 * KIB))),
            "status": (5, lambda: self.served.cli("status")),
            "snapshot": (3, lambda: self.served.cli("snapshot", "create", "victim")),
        }
        figures = {}
        for what, (count, one) in work.items():
            took = []
            for _ in range(count):
                began = time.monotonic()
                answer = one()
                took.append(time.monotonic() - began)
                assert not isinstance(answer, tuple) or answer[0] == 0, f"{what}: {answer[0]}"
            figures[what] = sorted(took)[min(count - 1, count * 99 // 100)]
        return figures

    @staticmethod
    def slower(alone, beside):
        """{what: (seconds alone, seconds beside)} of what the crowd slowed."""
        return {what: (before, beside[what]) for what, before in alone.items() if beside[what] > 2 * before + SLACK}

    def beside(self, trouble):
        """Measures alone and beside trouble; the crowd's members are given back to be closed."""
        alone, resting = self.measure(), self.memory()
        crowd = trouble(self)
        beside, held = self.measure(), self.memory()
        for what, before in alone.items():
            self.t.say(f"{what}: {before * 1000:.1f} ms alone, {beside[what] * 1000:.1f} beside")
        self.t.say(f"memory {resting // MIB} MiB, then {held // MIB}")
        slow = self.slower(alone, beside)
        if slow:
            # A crowd that slows a client does so each time; a stalled disk or a busy machine does it once.
            again = self.measure()
            self.t.say("measured again: " + ", ".join(f"{what} {again[what] * 1000:.1f} ms" for what in slow))
            slow = self.slower({what: alone[what] for what in slow}, again)
        assert not slow, f"slower than twice, two times: {slow}"
        for member in crowd:
            member.close()
        return held


def dial(port, count, each=lambda s: None):
    """So many connections of the crowd that the server accepted, at least for now."""
    members = []
    for _ in range(count):
        s = socket.socket()
        s.settimeout(5)
        try:
            s.bind((CROWD_ADDRESS, 0))
            s.connect(("127.0.0.1", port))
            each(s)
        except OSError:
            s.close()
            continue
        members.append(s)
    return members


@test(limit=300, hindcast_only=True)
def a_thousand_idle_connections(t):
    def trouble(site):
        members, refused = [], 0
        for _ in range(992):
            try:
                far = Far(site.nbd)
                far.go("crowd")
                members.append(far.sock)
            except (OSError, Hungup, AssertionError):
                refused += 1
        t.say(f"{len(members)} connections of one address, {refused} refused")
        return members
    site = Site(t)
    site.beside(trouble)
    assert not [h for h in site.served.cli("status").get("health", []) if "poison" in str(h)]


@test(limit=300, hindcast_only=True)
def silent_connections_to_the_api(t):
    Site(t).beside(lambda site: dial(site.http, 140))


@test(limit=300, hindcast_only=True)
def answers_of_the_api_that_nobody_takes(t):
    ask = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200

    def flood(s):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(ask)
    Site(t).beside(lambda site: dial(site.http, 140, flood))


@test(limit=300, hindcast_only=True)
def writers_that_trickle(t):
    def trouble(site):
        members = []
        for _ in range(4):
            far = Far(site.nbd)
            far.go("crowd")
            far.send(struct.pack(">IHHQQI", REQUEST, 0, 1, 1, 0, BIG) + bytes(300 * KIB))
            members.append(far.sock)
            initiator = site.initiate("crowd", OTHER_INITIATOR)
            for turn in range(8):
                initiator.command(write10(turn * 8192, 8192), WRITE, 4 * MIB)
            # EXTENDED COPY with the longest list.
            copy = struct.pack(">B9xIxx", 0x83, BIG)
            initiator.command(copy, WRITE, BIG)
            members.append(initiator.socket)
        return members
    Site(t).beside(trouble)


@test(limit=300, hindcast_only=True)
def readers_that_do_not_read(t):
    def trouble(site):
        members = []
        for number in range(10):
            far = Far(site.nbd, receive_buffer=4096)
            far.go("crowd")
            for turn in range(2):
                far.send(struct.pack(">IHHQQI", REQUEST, 0, 0, turn, 0, BIG))
            members.append(far.sock)
            initiator = site.initiate("crowd", f"{OTHER_INITIATOR}:{number}", receive_buffer=4096)
            for turn in range(64):
                initiator.command(read10(0, 2048), READ, MIB)
            members.append(initiator.socket)
        time.sleep(1)
        return members
    site = Site(t)
    held = site.beside(trouble)
    # 256 MiB of NBD, 512 MiB of iSCSI, caches of 128 MiB.
    assert held <= (256 + 512 + 128 + 128) * MIB, f"{held // MIB} MiB"
    wait_for("memory to come back", lambda: site.memory() <= held // 2 + 128 * MIB, limit=30, step=1)


@test(limit=300, hindcast_only=True)
def sessions_of_one_address(t):
    def trouble(site):
        members = []
        for number in range(512):
            url = site.crowd_url
            try:
                member = Initiator(url.host, url.port, timeout=5, source=CROWD_ADDRESS)
                if member.login(f"{OTHER_INITIATOR}:{number % 50}", url.target).bhs[36] != 0:
                    member.close()
                    break
                members.append(member.socket)
            except (OSError, Closed):
                break
        t.say(f"{len(members)} sessions of one address")
        site.initiate("victim", f"{INITIATOR}:late", None)
        return members
    Site(t, descriptors=4096).beside(trouble)


if __name__ == "__main__":
    main()
