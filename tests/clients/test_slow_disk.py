#!/usr/bin/python3
"""A disk that takes seconds for a sync: pings, aborts, other logical units and reads from memory are answered meanwhile,
over iSCSI and NBD, by a server under load too."""

import statistics
import struct
import time

from iscsi import *
from iscsi_wire import (DATA_IN, FINAL, IMMEDIATE, NO_TAG, NOP_IN, NOP_OUT, READ, RESPONSE, WRITE, Initiator, Pdu, attached,
                        read10, write10)
from slow import SLOW, Slow
from wire import REQUEST, Wire

SESSIONS = 32
# A sync that the disk takes its time for is delayed by strace, which stops the server at every system call: a ping
# takes some milliseconds under it.
PROMPT = 0.25
SYNCHRONIZE_CACHE = bytes([0x35] + [0] * 9)
ABORT_TASK = 1
TASK_MANAGEMENT, TASK_RESPONSE = 0x02, 0x22


def ping(session, limit=PROMPT):
    """Seconds until a NOP-Out is answered; what else comes meanwhile is kept."""
    tag = session.next_tag()
    began = time.monotonic()
    bhs = struct.pack(">BB2x4x8xIIII16x", NOP_OUT | IMMEDIATE, FINAL, tag, NO_TAG, session.cmd_sn, session.exp_stat_sn)
    session.send(Pdu(bhs))
    await_tag(session, tag)
    took = time.monotonic() - began
    assert took <= limit, f"a ping took {took:.2f} s"
    return took


def await_tag(session, tag):
    """The response to a request; responses to others are remembered."""
    kept = session.__dict__.setdefault("kept", {})
    while tag not in kept:
        pdu = session.receive()
        if pdu.opcode == NOP_IN and pdu.word(20) != NO_TAG:
            session.nop_reply(pdu)
        elif pdu.opcode != DATA_IN or pdu.flags & 1:
            kept[pdu.word(16)] = pdu
    return kept.pop(tag)


def durable_write(session, lun=0):
    return session.command(struct.pack(">BBIBHB6x", 0x2A, 8, 0, 0, 8, 0), WRITE, 4096, b"y" * 4096, lun=lun)


def abort(session, tag):
    """ABORT TASK; returns (response, seconds)."""
    own = session.next_tag()
    bhs = struct.pack(">BB2x4x8xIIIII12x", TASK_MANAGEMENT | IMMEDIATE, FINAL | ABORT_TASK, own, tag, session.cmd_sn,
                      session.exp_stat_sn, 0)
    began = time.monotonic()
    session.send(Pdu(bhs))
    answer = await_tag(session, own)
    assert answer.opcode == TASK_RESPONSE
    return answer.bhs[2], time.monotonic() - began


def two_volumes(t, **kwargs):
    """A server with a target of two logical units that have been written to."""
    served = server(t, **kwargs)
    served.create("one", 64 * MIB)
    served.create("two", 64 * MIB)
    served.target("create", "both")
    served.target("add-lun", "both", "--volume", "one")
    served.target("add-lun", "both", "--volume", "two")
    url = served.url("both")
    session = attached(url)
    t.defer(session.close)
    for lun in (0, 1):
        while session.write(0, b"x" * 65536, lun=lun)[0] != 0:
            pass
    assert session.execute(SYNCHRONIZE_CACHE)[0] == 0
    return served, url, session


@test(limit=240, hindcast_only=True)
def pings_and_other_units_are_answered_while_a_flush_waits(t):
    served, url, session = two_volumes(t)
    Slow(t, served)
    for what in ("flush", "durable write"):
        began = time.monotonic()
        write_before = session.command(write10(0, 8), WRITE, 4096, b"z" * 4096)
        await_tag(session, write_before)
        slow = session.command(SYNCHRONIZE_CACHE, 0, 0) if what == "flush" else durable_write(session)
        pings, reads = [], []
        while time.monotonic() < began + SLOW - 2:
            pings.append(ping(session))
            at = time.monotonic()
            other = session.command(read10(0, 8), READ, 4096, lun=1)
            assert await_tag(session, other).bhs[3] == 0
            reads.append(time.monotonic() - at)
            assert reads[-1] <= PROMPT, f"a read of another unit took {reads[-1]:.2f} s"
            time.sleep(0.05)
        assert await_tag(session, slow).bhs[3] == 0
        took = time.monotonic() - began
        assert took >= SLOW * 0.9, f"the {what} took {took:.1f} s: the disk was not slow"
        t.say(f"{what}: {took:.1f} s; {len(pings)} pings, at most {max(pings) * 1000:.0f} ms; reads at most "
              f"{max(reads) * 1000:.0f} ms")


@test(limit=240, hindcast_only=True)
def a_flush_can_be_aborted_and_its_session_left_while_it_waits(t):
    served, url, session = two_volumes(t)
    Slow(t, served)
    session.write(0, b"w" * 4096)
    slow = session.command(SYNCHRONIZE_CACHE, 0, 0)
    time.sleep(0.5)
    response, took = abort(session, slow)
    assert (response, took <= PROMPT) == (0, True), f"response {response} after {took:.2f} s"
    ping(session)
    session.command(SYNCHRONIZE_CACHE, 0, 0)
    time.sleep(0.2)
    tag = session.next_tag()
    began = time.monotonic()
    session.send(Pdu(struct.pack(">BB2x4x8xIHHII16x", 0x06 | IMMEDIATE, FINAL, tag, 0, 0, session.cmd_sn, session.exp_stat_sn)))
    answer = await_tag(session, tag)
    assert (answer.opcode, answer.bhs[2]) == (0x26, 0), "a logout is answered"
    assert time.monotonic() - began <= PROMPT


@test(limit=300, hindcast_only=True)
def many_sessions_flush_at_once_and_all_are_answered(t):
    served, url, first = two_volumes(t)
    sessions = [first]
    for _ in range(SESSIONS - 1):
        sessions.append(attached(url))
        t.defer(sessions[-1].close)
    Slow(t, served, 6)
    for session in sessions:
        session.write(0, b"v" * 4096)
    flushes = [session.command(SYNCHRONIZE_CACHE, 0, 0) for session in sessions]
    time.sleep(0.2)
    took = [ping(session, 1) for _ in range(3) for session in sessions]
    median = statistics.median(took)
    t.say(f"{len(took)} pings: median {median * 1000:.1f} ms, at most {max(took) * 1000:.0f} ms")
    assert median <= PROMPT
    for session, flush in zip(sessions, flushes):
        assert await_tag(session, flush).bhs[3] == 0


@test(limit=300, hindcast_only=True)
def a_full_journal_on_a_slow_disk_stops_no_ping(t):
    served = server(t, journal="64M")
    url = served.create("v", 256 * MIB)
    session = attached(url)
    t.defer(session.close)
    Slow(t, served, 3)
    took, sent, done, full = [], 0, 0, 0
    outstanding = []
    began = time.monotonic()
    # More than the journal holds; the window bounds what is outstanding.
    while time.monotonic() < began + 20:
        while session.room() > 8 and len(outstanding) < 64:
            outstanding.append(session.command(write10(sent * 128 % 500000, 128), WRITE, 65536, b"j" * 65536))
            sent += 1
        took.append(ping(session, 2))
        full += len(outstanding) >= 64
        kept = session.__dict__.setdefault("kept", {})
        for tag in [tag for tag in outstanding if tag in kept]:
            assert kept.pop(tag).bhs[3] in (0, 0x28), "GOOD, or TASK SET FULL"
            outstanding.remove(tag)
            done += 1
    took.sort()
    t.say(f"{sent} writes of 64 KiB sent, {done} done; {len(took)} pings: median {took[len(took) // 2] * 1000:.0f} ms, "
          f"at most {took[-1] * 1000:.0f} ms")
    assert full > len(took) / 2, "the journal was hardly ever full"
    assert took[int(len(took) * 0.95)] <= PROMPT


@test(limit=240, hindcast_only=True)
def a_read_from_memory_overtakes_a_flush_over_nbd(t):
    served = t.server()
    served.create("v", 64 * MIB)
    with Wire(served.socket) as wire:
        wire.go("v")
        wire.request(1, 0, 65536, payload=b"n" * 65536)
        wire.reply()
        slow = Slow(t, served)
        for flags, command in ((0, 3), (1, 1)):  # FLUSH, and WRITE with FUA
            wire.request(1, 65536, 4096, payload=b"m" * 4096)
            wire.reply()
            began = time.monotonic()
            payload = b"p" * 4096 if command == 1 else b""
            wire.send(struct.pack(">IHHQQI", REQUEST, flags, command, 77, 0, len(payload)) + payload)
            reads = []
            while time.monotonic() < began + SLOW - 2:
                at = time.monotonic()
                wire.request(0, 4096, 4096)
                wire.reply(4096)
                reads.append(time.monotonic() - at)
                assert reads[-1] <= PROMPT, f"a read took {reads[-1]:.2f} s"
                time.sleep(0.05)
            wire.reply(cookie=77)
            took = time.monotonic() - began
            assert took >= SLOW * 0.9, f"the disk was not slow: {took:.1f} s"
            t.say(f"{took:.1f} s; {len(reads)} reads, at most {max(reads) * 1000:.0f} ms")
        slow.end()


if __name__ == "__main__":
    main()
