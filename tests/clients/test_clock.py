#!/usr/bin/python3
"""The server's clock is set, by a year and back, under load: histories, moments, schedules, and what the operator is told."""

import glob
import random
import threading

from harness import *
from libnbd import connection, get, put

YEAR = 365 * 86400


class Faked(Hindcast):
    """A server whose wall clock can be set; its monotonic clock is the machine's."""

    def __init__(self, directory, **kwargs):
        super().__init__(directory, **kwargs)
        libraries = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
        if not libraries:
            raise Skip("faketime is not installed")
        self.file = self.dir.parent / (self.dir.name + ".faketime")
        self.set_clock(0)
        self.env = {
            "LD_PRELOAD": libraries[0], "FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_CACHE_DURATION": "1",
            "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set_clock(self, seconds):
        """The wall clock is ahead of the machine's by so much, within two seconds."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self.file)

    def codes(self):
        return {problem["code"] for problem in self.cli("status")["health"]["problems"]}

    def snapshots(self, prefix):
        return [s["name"] for s in self.cli("snapshot", "list") if s["name"].startswith(prefix)]

    def history_bytes(self):
        return self.cli("history", "db")["status"]["stored"]


def faked(t, *args, **kwargs):
    server = Faked(t.dir / "data", **kwargs)
    t.defer(server.take_down)
    return server.start()


class Ledger(threading.Thread):
    """Writes a number to the first block of a volume, over and over, durably, and notes when it was acknowledged."""

    def __init__(self, server, export):
        super().__init__(daemon=True)
        self.uri, self.done, self.rows, self.error = server.uri(export), threading.Event(), [], None

    def run(self):
        try:
            with connection(self.uri) as h:
                while not self.done.is_set():
                    number = len(self.rows) + 1
                    h.pwrite(number.to_bytes(8, "little") * 512, 0)
                    h.flush()
                    self.rows.append(time.monotonic())
                    time.sleep(0.02)
        except Exception as error:
            self.error = error

    def stop(self):
        self.done.set()
        self.join(30)
        assert self.error is None, self.error

    def between(self, first, last):
        """The numbers that the volume may hold at a time between these two."""
        begun = sum(at < first for at in self.rows)
        return begun, sum(at < last for at in self.rows) + 1


def number_at(server, moment):
    """The number that the volume held at a moment."""
    return int.from_bytes(get(server, f"db@{moment}", 512)[:8], "little")


def check_ago(server, ledger, seconds):
    """`db@-5s` is what the volume was five seconds ago, by time that went by."""
    before = time.monotonic()
    number = number_at(server, f"-{seconds}s")
    low, high = ledger.between(before - seconds - 0.2, time.monotonic() - seconds + 0.2)
    assert low <= number <= high, f"{seconds} s ago the number was {low} to {high}, not {number}"


@test(limit=300, hindcast_only=True)
def a_clock_that_is_a_year_ahead_and_right_again(t):
    server = faked(t)
    server.cli("volume", "create", "db", "--size", "8M", "--cdp", "parity", "--retain", "1h", "--anchor", "2s")
    server.cli("schedule", "create", "auto", "db", "--every", "10s", "--keep-last", "50")
    ledger = Ledger(server, "db")
    ledger.start()
    time.sleep(12)
    first = server.cli("mark", "db", "first")
    check_ago(server, ledger, 5)
    assert not server.codes() & {"clock-jumped", "times-ahead"}

    server.set_clock(YEAR)
    wait_for("the warning", lambda: "clock-jumped" in server.codes(), limit=20)
    taken = len(server.snapshots("auto-"))
    time.sleep(8)
    check_ago(server, ledger, 3)
    number = number_at(server, f"lsn:{first['lsn']}")
    assert number > 0, "the history of before is gone"
    assert number_at(server, "first") == number
    wait_for("a snapshot while the clock is ahead", lambda: len(server.snapshots("auto-")) > taken, limit=20)
    ahead = server.cli("mark", "db", "ahead")

    server.set_clock(0)
    wait_for("the end of the warning", lambda: "clock-jumped" not in server.codes(), limit=20)
    assert "times-ahead" in server.codes()
    taken = len(server.snapshots("auto-"))
    time.sleep(8)
    check_ago(server, ledger, 3)
    check_ago(server, ledger, 7)
    wait_for("a snapshot after it was put back", lambda: len(server.snapshots("auto-")) > taken, limit=25)
    # What was written meanwhile is where the clock said, and so is what was before.
    moment = ahead["time"]
    assert number_at(server, moment) == number_at(server, "ahead")
    assert number_at(server, first["time"]) == number_at(server, "first")
    changes = server.cli("history", "db")["clock"]
    assert len(changes) == 2 and changes[0]["lsn"] < ahead["lsn"] < changes[1]["lsn"], changes
    ledger.stop()
    server.kill()
    server.start()
    check_ago(server, ledger, 9)
    assert len(server.cli("history", "db")["clock"]) == 2
    server.check()


@test(limit=300, hindcast_only=True)
def retention_goes_on_after_the_clock_was_ahead(t):
    server = faked(t, pool="1G", journal="64M")
    server.cli("volume", "create", "db", "--size", "64M", "--cdp", "undo", "--retain", "10s", "--cdp-compression", "none")
    blocks = random.Random(1)

    def load(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with connection(server.uri("db")) as h:
                for _ in range(64):
                    h.pwrite(blocks.randbytes(64 * KIB), blocks.randrange(0, 1024) * 64 * KIB)
            time.sleep(0.5)

    load(25)
    steady = server.history_bytes()
    server.set_clock(3600)
    load(5)
    server.set_clock(0)
    load(40)
    assert server.history_bytes() < 2.5 * steady, f"{steady} bytes before, {server.history_bytes()} after"
    server.check()


@test(limit=300, hindcast_only=True)
def a_clock_that_is_right_at_last_is_confirmed(t):
    server = faked(t)
    server.set_clock(-YEAR)
    server.stop()
    server.start()
    server.cli("volume", "create", "db", "--size", "8M", "--cdp", "parity", "--retain", "5s")
    server.cli("schedule", "create", "auto", "db", "--every", "10s", "--keep-last", "3")
    if "clock-jumped" in server.codes():  # the pool was created before the clock was set
        server.cli("pool", "clock", "--confirm")
    put(server, "db", b"1" * 4096)
    first = server.cli("mark", "db", "first")["lsn"]
    server.set_clock(0)
    wait_for("the warning", lambda: "clock-jumped" in server.codes(), limit=20)
    for n in range(10):
        put(server, "db", bytes([n]) * 4096)
        time.sleep(1)
    assert get(server, f"db@lsn:{first}", 512) == b"1" * 512, "forgotten while the clock is in doubt"
    assert "clock" in server.cli("snapshot", "delete", "db@*", "--older-than", "1s", code=CONFLICT)
    clock = server.cli("pool", "clock", "--confirm")
    assert clock["jumped_seconds"] is None and not clock["suspended"], clock
    assert "clock-jumped" not in server.codes()

    def expired():
        put(server, "db", b"x" * 4096)
        return server.cli("recover", "db", "--to", f"lsn:{first}", "--as", "never", code=None)[0] == NOT_FOUND

    wait_for("the end of what is old", expired, limit=60, step=1)
    wait_for("snapshots by the clock as it is", lambda: len(server.snapshots("auto-")) == 3, limit=60, step=1)
    server.check()
    assert "clock-jumped" not in server.codes()


if __name__ == "__main__":
    main()
