#!/usr/bin/python3
"""Initiators that take no answers, send no data, or want everything: the server's memory stays bounded, and a
well-behaved initiator beside them keeps its speed."""

import re
import functools
import struct
import threading

from iscsi import *
from iscsi_wire import BHS, COMMAND, FINAL, NOP_IN, R2T, READ, WRITE, Initiator, Pdu, read10, write10

SIZE = 256 * MIB
# The least that the server accepts. What the crowd asks for is 3 GiB.
IN_FLIGHT = 256 * MIB
CROWD = 24
BLOCKS = 2048  # of one request: 1 MiB


def memory(served):
    """(resident now, peak) of the server in bytes."""
    status = pathlib.Path(f"/proc/{served.process.pid}/status").read_text()
    field = lambda name: int(re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)[1]) * KIB
    return field("VmRSS"), field("VmHWM")


def speed(url, seconds=1):
    """Random reads a second of one initiator."""
    printed = run("iscsi-perf", "-r", "-m", 8, "-t", seconds, url, timeout=60)
    return int(re.search(r".*iops average (\d+)", printed, re.DOTALL)[1])


class Crowd:
    """Connections that nobody reads from unless told."""

    def __init__(self, t, url, count=CROWD):
        self.members = []
        for number in range(count):
            # A small window of TCP: what the server has not sent, it has to keep or not to make.
            member = Initiator(url.host, url.port, timeout=1, receive_buffer=4096)
            t.defer(member.close)
            assert member.login(f"{INITIATOR}:{number}", url.target).bhs[36] == 0
            self.members.append(member)

    def flood(self, cdb, flags, commands, data=b"", ignore_window=False):
        """Each sends so many commands, unless its window is shut or the server takes no more; returns how many."""
        sent = 0
        for member in self.members:
            try:
                for _ in range(commands):
                    if not ignore_window and member.room() <= 0:
                        break
                    member.command(cdb, flags, BLOCKS * 512, data)
                    sent += 1
            except (TimeoutError, ConnectionError):
                pass
        return sent

    def close(self):
        for member in self.members:
            member.close()


def trouble(make_trouble):
    """Registers a test: a crowd makes trouble beside a well-behaved initiator, whose speed is measured before and
    meanwhile, with the server's memory."""
    @test(hindcast_only=True, limit=120)
    @functools.wraps(make_trouble)
    def beside(t):
        need("iscsi-perf")
        served = server(t, args=[f"--iscsi-max-in-flight={IN_FLIGHT}"])
        url = served.create("v", SIZE)
        # Data on the medium, so that reads cost what they cost.
        need_qemu_iscsi()
        parts = [part for at in range(0, 64, 16) for part in ("-c", f"write -P 7 {at}M 16M")]
        run("qemu-io", "-f", "raw", *parts, url)
        alone, (resting, _) = speed(url), memory(served)
        crowd = Crowd(t, url)
        make_trouble(t, crowd)
        attempts = []
        # A shared machine has moods: the best of a few.
        while len(attempts) < 4 and max(attempts, default=0) < alone * 0.5:
            attempts.append(speed(url))
        now, peak = memory(served)
        t.say(f"{alone} reads/s alone, {max(attempts)} beside; memory {resting // MIB} MiB, then {now // MIB}, "
              f"at most {peak // MIB}")
        assert max(attempts) > alone * 0.25, f"{alone} reads/s became {attempts}"
        # What may be in flight, and some for fixed buffers.
        allowed = resting + IN_FLIGHT + 64 * MIB
        assert peak < allowed, f"{peak // MIB} MiB, more than {allowed // MIB} MiB"
        crowd.close()
        # Nothing of them is left, and the server is well.
        wait_for("the end of their sessions", lambda: not served.target("show", "v")["sessions"], limit=30, step=0.3)
        assert speed(url) > 0
        served.stop()
    return beside


@trouble
def who_takes_no_answers(t, crowd):
    """24 connections ask for 1 MiB as often as their windows let them, and read nothing."""
    sent = crowd.flood(read10(0, BLOCKS), READ, 128)
    assert sent >= CROWD * 8, f"only {sent} requests could be sent: no trouble at all"
    t.say(f"{sent} reads of 1 MiB asked for")


@trouble
def who_sends_no_data(t, crowd):
    """24 connections announce writes of 1 MiB as often as their windows let them, and send the first bytes only."""
    sent = crowd.flood(write10(0, BLOCKS), WRITE, 128, data=bytes(8192))
    assert sent >= CROWD, f"only {sent} writes could be announced"
    t.say(f"{sent} writes of 1 MiB announced")


@trouble
def who_stops_within_a_pdu(t, crowd):
    """Half a header, and a header that promises the longest data segment."""
    for number, member in enumerate(crowd.members):
        whole = Pdu(header_of_a_write(member), bytes(65536)).encode()
        member.socket.sendall(whole[:BHS - 1] if number % 2 else whole[:BHS + 1000])


def header_of_a_write(member):
    """The header of a WRITE (10) of 64 KiB with immediate data."""
    return struct.pack(">BB14xIIII16s", COMMAND, FINAL | WRITE | 1, member.next_tag(), 65536, member.cmd_sn,
                       member.exp_stat_sn, write10(0, 128))


@trouble
def who_ignores_the_window(t, crowd):
    """Commands beyond MaxCmdSN: to be ignored (RFC 7143 4.2.2.1), not to be kept."""
    sent = crowd.flood(read10(0, BLOCKS), READ, 2000, ignore_window=True)
    t.say(f"{sent} commands sent, most of them beyond the window")


@trouble
def who_is_slow(t, crowd):
    """Answers taken a few kilobytes at a time: served to the end, at the cost of nobody else."""
    crowd.flood(read10(0, BLOCKS), READ, 8)
    crowd.ending = False
    crowd.taken = 0

    def sip():
        while not crowd.ending:
            for member in crowd.members:
                try:
                    crowd.taken += len(member.socket.recv(2048))
                except OSError:
                    pass
            time.sleep(0.01)
    thread = threading.Thread(target=sip, daemon=True)
    thread.start()
    close = crowd.close

    def end():
        crowd.ending = True
        thread.join(CROWD * 2)
        assert crowd.taken > 0, "the slow ones got nothing"
        close()
    crowd.close = end


@test(hindcast_only=True, limit=120)
def who_never_logs_in(t):
    """Connections that say nothing give way to new ones, and are given up after the time for login."""
    need("iscsi-inq")
    served = server(t, args=["--iscsi-max-connections=16"])
    url = served.create("v", 64 * MIB)
    silent = [Initiator(url.host, url.port) for _ in range(16)]
    t.defer(lambda: [each.close() for each in silent])
    time.sleep(0.5)
    late = Initiator(url.host, url.port, timeout=5)
    t.defer(late.close)
    assert late.login(INITIATOR, url.target).bhs[36:38] == b"\0\0"
    run("iscsi-inq", url)
    for each in silent:
        each.socket.settimeout(60)
        try:
            assert each.socket.recv(1) == b""
        except ConnectionResetError:
            pass
    served.stop()


@test(hindcast_only=True, limit=60)
def the_dead_are_noticed(t):
    """A write whose data never comes doesn't hold back another initiator's reads and writes of the same blocks."""
    served = server(t)
    url = served.create("v", 64 * MIB)
    first = Initiator(url.host, url.port)
    assert first.login(INITIATOR, url.target).bhs[36] == 0
    first.settle()
    first.command(write10(0, BLOCKS), WRITE, BLOCKS * 512)
    while (asked := first.receive()).opcode == NOP_IN:
        pass
    assert asked.opcode == R2T, f"opcode {asked.opcode:#x}, not an R2T"
    other = Initiator(url.host, url.port)
    assert other.login(OTHER_INITIATOR, url.target).bhs[36] == 0
    other.settle()
    for turn in range(50):
        assert other.write(turn, bytes([turn]) * 512)[0] == 0
        assert other.read(turn, 1) == (0, bytes([turn]) * 512)
    first.close()
    other.close()


if __name__ == "__main__":
    main()
