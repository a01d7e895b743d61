#!/usr/bin/python3
"""Sums of data in place: a bit that flips on the disk is repaired, or is reported with its place, by NBD, by iSCSI and by
the scrub. It is never served."""

import errno

from iscsi import *
from iscsi_wire import attached, sense_of
from libnbd import *

SIZE = 8 * MIB
BLOCK = 4 * KIB
CHECK_CONDITION = 2
MEDIUM_ERROR, UNRECOVERED_READ_ERROR = 3, 0x11


def flip(server, content):
    """Flips a bit of `content` in the physical volume, which is sparse. The server is stopped."""
    with open(server.dir / "pv-0.img", "r+b") as file:
        end, place = 0, -1
        while place < 0:
            start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            file.seek(start)
            found = file.read(end - start).find(content)
            place = start + found + 100 if found >= 0 else -1
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 16]))
    os.sync()


def forget_journal(server):
    """Overwrites the records of the journal, which would repair the block. All of them are in place."""
    for path in server.dir.glob("journal-[0-9]*"):
        with open(path, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(BLOCK)
            file.write(bytes(size - BLOCK))


def spoilt(t, *, history=False, journal=False):
    """A server whose volume has a block with a flipped bit; returns the server, the content, and the block's offset. With
    `history` the volume has one that leads to the block, and with `journal` the journal still has the block."""
    target = server(t)
    target.create("db", SIZE, "16K", *(["--cdp", "parity"] if history else []))
    data = pattern(1, SIZE)
    put(target, "db", data)
    target.drained()
    target.stop()
    bad = 777 * BLOCK
    flip(target, data[bad:bad + BLOCK])
    if not journal:
        forget_journal(target)
    target.start()
    return target, data, bad


def damaged_ranges(target, export):
    """The ranges of the meta context hindcast:damaged."""
    handle = nbd.NBD()
    handle.add_meta_context("hindcast:damaged")
    handle.connect_uri(target.uri(export))
    found = []

    def extent(context, offset, entries, _error):
        for length, flags in zip(entries[::2], entries[1::2]):
            if flags:
                found.append((offset, length))
            offset += length
    handle.block_status(SIZE, 0, extent)
    handle.shutdown()
    return found


@test(hindcast_only=True)
def a_flipped_bit_is_reported_and_never_served(t):
    """NBD, iSCSI and the command line name the block; a write heals it."""
    target, data, bad = spoilt(t)
    with connection(target.uri("db")) as h:
        assert bytes(h.pread(bad, 0)) == data[:bad]
        refused(errno.EIO, h.pread, MIB, bad - 64 * KIB)
        assert bytes(h.pread(BLOCK, bad + BLOCK)) == data[bad + BLOCK:bad + 2 * BLOCK]
    assert damaged_ranges(target, "db") == [(bad, BLOCK)]
    assert target.show("db")["damaged"] == [{"offset": bad, "length": BLOCK}]
    problems = target.cli("status")["health"]["problems"]
    assert any(p["code"] == "data-damaged" for p in problems), problems

    session = attached(target.url("db"))
    for lba in (bad // 512, bad // 512 - 50):
        status, sense = session.read(lba, 100)
        assert status == CHECK_CONDITION and sense_of(sense) == (MEDIUM_ERROR, UNRECOVERED_READ_ERROR, 0), sense.hex()
        # After the length of the sense data: VALID, and INFORMATION.
        assert sense[2] == 0xF0 and int.from_bytes(sense[5:9], "big") == bad // 512, sense.hex()
    status, got = session.read(bad // 512 - 8, 8)
    assert status == 0 and got == data[bad - BLOCK:bad]
    session.close()

    put(target, "db", data[bad:bad + BLOCK], bad)
    assert get(target, "db", SIZE) == data
    target.drained()
    assert get(target, "db", SIZE) == data
    assert damaged_ranges(target, "db") == []
    assert "damaged" not in target.show("db")


def repaired(t, source):
    """A flipped bit of which clients see nothing. The content comes from `source`."""
    target, data, bad = spoilt(t, **{source: True})
    session = attached(target.url("db"))
    status, got = session.read(bad // 512, 8)
    assert status == 0 and got == data[bad:bad + BLOCK]
    session.close()
    assert get(target, "db", SIZE) == data
    assert damaged_ranges(target, "db") == []
    target.cli("pool", "scrub", "--wait")
    api = Api(target.api)
    assert api.metric(f'hindcast_repaired_bytes_total{{from="{source}"}}') == BLOCK
    assert api.metric("hindcast_bad_bytes") == 16 * KIB
    api.close()
    target.stop()
    run(binary(), "check", "--data", target.dir, "--verify-data")
    target.start()
    assert get(target, "db", SIZE) == data


@test(hindcast_only=True)
def the_journal_repairs_a_flipped_bit(t):
    """The journal still has what was written lately."""
    repaired(t, "journal")


@test(hindcast_only=True)
def a_history_repairs_a_flipped_bit(t):
    """The records of a history lead to the content."""
    repaired(t, "history")


@test(hindcast_only=True)
def a_scrub_finds_it_without_a_reader(t):
    """`hindcast pool scrub`: exit code, progress, owners; what it does in a pool without sums."""
    target, data, bad = spoilt(t)
    target.cli("snapshot", "create", "db@s")
    target.stop()
    done = run(binary(), "check", "--data", target.dir, "--verify-data", "-o", "json", check=False)
    report = json.loads(done.stdout)
    assert done.returncode == FAILED and report["data"]["damaged"] == BLOCK, done.stdout
    found = [(f["code"], f["object"]) for f in report["findings"]]
    assert found == [("data", "volume db"), ("data", "snapshot db@s")], found
    target.start()
    put(target, "db", pattern(2, MIB))
    target.drained()
    said = target.cli("pool", "scrub", "--wait", code=FAILED)
    assert "4 KiB of data are damaged" in said, said
    status = target.cli("pool", "scrub", "status")
    scrub = status["scrub"]
    assert not scrub["running"] and scrub["damaged"] == BLOCK and scrub["passes"] >= 1, scrub
    assert scrub["verified"] == SIZE + MIB - BLOCK and scrub["unknown"] == 0, scrub
    owners = [(d["volume"], d.get("snapshot"), d["ranges"]) for d in status["damage"]]
    ranges = [{"offset": bad, "length": BLOCK}]
    assert owners == [("db", None, ranges), ("db", "s", ranges)], owners
    put(target, "db", data[bad:bad + BLOCK], bad)
    target.drained()
    target.cli("snapshot", "delete", "db@s")
    wait_for("the slots of the snapshot", lambda: target.cli("pool", "scrub", "status")["damage"] == [])

    # A slow scrub pauses, goes on after a kill, and stops.
    target.cli("pool", "scrub", "--rate", "1M")
    assert target.cli("pool", "scrub", "status")["scrub"]["running"]
    target.cli("pool", "scrub", "pause")
    put(target, "db", pattern(3, BLOCK))
    target.drained()
    target.kill()
    target.start()
    scrub = target.cli("pool", "scrub", "status")["scrub"]
    assert scrub["running"] and scrub["paused"] and scrub["rate"] == MIB, scrub
    target.cli("pool", "scrub", "resume")
    target.cli("pool", "scrub", "stop")
    target.cli("pool", "scrub", "stop", code=NOT_FOUND)
    target.cli("pool", "scrub", "--wait")


@test(hindcast_only=True)
def old_data_gets_sums_by_adoption(t):
    target = server(t, args=["--pool-features=none"])
    target.create("db", SIZE)
    put(target, "db", pattern(1, SIZE))
    target.drained()
    said = target.cli("pool", "scrub", code=FAILED)
    assert "enable the feature sums first" in said, said
    target.cli("pool", "upgrade", "--enable", "sums")
    target.cli("pool", "scrub", "--wait")
    assert target.cli("pool", "scrub", "status")["scrub"]["unknown"] == SIZE
    adopted = target.cli("pool", "scrub", "--adopt", "--wait")
    assert (adopted["adopted"], adopted["unknown"]) == (SIZE, 0), adopted
    assert target.cli("pool", "scrub", "--wait")["verified"] == SIZE
    target.check()


if __name__ == "__main__":
    main()
