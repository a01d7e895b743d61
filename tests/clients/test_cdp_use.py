#!/usr/bin/python3
"""Histories in daily use: what is refused, what is told, and what is left behind when a search is interrupted."""

import signal

from iscsi import *
from libnbd import changed_since, connection, get, pattern, put
from mounted import *
from wire import *


def people(server, *args, code=DONE):
    """What people see: (standard output, standard error)."""
    done = run(binary(), *args, check=False, env={**os.environ, "HINDCAST_SOCKET": str(server.api)})
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def keeping(t, *options, size="16M", **kwargs):
    """A server with a volume `db` that keeps its history."""
    server = t.server(**kwargs)
    server.cli("volume", "create", "db", "--size", size, "--cdp", "parity", *options)
    return server


@test(hindcast_only=True)
def what_would_be_dropped_silently_is_refused(t):
    server = keeping(t)
    for bad in ("--retain 7d", "--anchor 10", "--cdp off --retain-size 1G"):
        server.cli("volume", "create", "new", "--size", "1M", *bad.split(), code=USAGE)
    server.cli("volume", "set", "db", "--cdp", "off", "--retain", "7d", code=USAGE)
    assert server.show("db")["cdp"]["retain_seconds"] is None and len(server.cli("volume", "list")) == 1
    server.cli("volume", "set", "db", "--retain", "7d")


@test(hindcast_only=True)
def a_history_is_not_deleted_by_a_slip(t):
    server = keeping(t)
    server.cli("volume", "delete", "--now", "db")  # of which there is nothing yet
    server.cli("volume", "create", "db", "--size", "16M", "--cdp", "parity")
    server.cli("mark", "db", "empty")
    assert "1 marks" in server.cli("volume", "delete", "--now", "db", code=CONFLICT)
    server.cli("mark", "db", "empty", "--delete")
    put(server, "db", pattern(1, 64 * KIB))
    assert "a history of 4 records" in server.cli("volume", "delete", "--now", "db", code=CONFLICT)
    server.cli("volume", "set", "db", "--cdp", "off")
    server.cli("volume", "delete", "--now", "db", code=CONFLICT)
    server.cli("volume", "delete", "--now", "db", "--force")
    server.create("plain", "1M")
    put(server, "plain", pattern(1, 64 * KIB))
    server.cli("volume", "delete", "--now", "plain")
    server.check()


@test(hindcast_only=True)
def changes_that_are_left_out_are_told(t):
    server = keeping(t)
    put(server, "db", pattern(1, 64 * KIB), 8 * KIB)  # in five chunks
    for n in range(9):
        put(server, "db", pattern(n, 512), n * 512)
    out, err = people(server, "history", "db", "--range", "0+16M")
    rows = [line.split()[-2:] for line in out.splitlines()[1:]]
    assert len(rows) == 10 and rows[0] == [str(8 * KIB), str(64 * KIB)] and not err, (out, err)
    out, err = people(server, "history", "db", "--range", "0+16M", "--limit", "6")
    assert len(out.splitlines()) == 3 and "only the oldest" in err, (out, err)
    oldest = server.cli("history", "db", "--range", "0+16M", "--limit", "6")
    assert len(oldest) == 6 and f"--from lsn:{oldest[-1]['lsn']}," in err, (oldest, err)
    rest = server.cli("history", "db", "--range", "0+16M", "--from", f"lsn:{oldest[-1]['lsn'] + 1}")
    assert len(rest) == 8, rest
    assert not people(server, "history", "db", "--range", "0+16M", "--limit", "14")[1]


@test(hindcast_only=True)
def a_recovered_volume_tells_what_it_rests_on(t):
    server = keeping(t)
    put(server, "db", pattern(1, MIB))
    lsn = server.cli("history", "db", "--range", "0+16M")[-1]["lsn"]
    put(server, "db", pattern(2, MIB))
    made, = server.cli("recover", "db", "--to", f"lsn:{lsn}", "--as", "rests", "--no-complete")
    assert made["name"] == "rests" and made["moment"]["lsn"] == lsn, made
    assert made["origin"] == server.show("rests")["origin"] == f"db@lsn:{lsn}", made
    state = server.cli("volume", "flatten", "rests", "--status")
    origin = {"kind": "moment", "volume": "db", "lsn": lsn, "time": made["moment"]["time"]}
    assert state == {"origin": origin, "running": None}, state
    assert f"db@lsn:{lsn}" in people(server, "volume", "flatten", "rests", "--status")[0]
    # By time the moment is the last write by then, which people want to know.
    out, _ = people(server, "recover", "db", "--to", made["moment"]["time"], "--as", "then", "--rate", "0")
    assert f"(lsn:{lsn})" in out and "to begin a history of it: hindcast volume set then --cdp" in out, out
    wait_for("completion", lambda: not server.cli("volume", "flatten", "then", "--status")["running"])
    assert server.cli("volume", "flatten", "then", "--status") == {"origin": None, "running": None}
    assert server.show("then")["origin"] is None and server.show("then")["cdp"] is None
    # After a restart, and without the volume, too.
    server.stop()
    server.start()
    assert server.cli("volume", "flatten", "rests", "--status")["origin"] == origin
    server.cli("snapshot", "create", "db@snap")
    made, = server.cli("recover", "db", "--to", "snap", "--as", "clone", "--no-complete")
    assert made["moment"] is None and made["origin"] == "db@snap", made
    back, = server.cli("recover", "db", "--to", f"lsn:{lsn}", "--in-place")
    assert back["volume"]["origin"] == f"db@lsn:{lsn}", back
    server.cli("volume", "delete", "--now", "clone", "--force")
    server.cli("volume", "delete", "--now", "db", "--force")
    assert server.cli("volume", "flatten", "rests", "--status")["origin"] == {**origin, "volume": ""}
    assert get(server, "rests", MIB) == pattern(1, MIB)
    server.cli("volume", "flatten", "rests", "--wait")
    assert server.show("rests")["origin"] is None and get(server, "rests", MIB) == pattern(1, MIB)
    server.check()


@test(hindcast_only=True)
def a_completion_goes_on_after_a_kill(t):
    server = keeping(t, "--anchor", "never", size="64M")
    good = pattern(1, 32 * MIB)
    put(server, "db", good)
    server.cli("mark", "db", "good")
    put(server, "db", pattern(2, 32 * MIB))
    # So slow that it is not at its end when the server dies.
    server.cli("recover", "db", "--to", "good", "--as", "then", "--rate", "4M")
    wait_for("a part of it", lambda: server.cli("volume", "flatten", "then", "--status")["running"]["copied"] > 0)
    server.kill()
    server.start()
    status = server.cli("volume", "flatten", "then", "--status")
    assert status["running"] and status["origin"]["kind"] == "moment", status
    assert get(server, "then", 32 * MIB) == good
    server.cli("volume", "flatten", "then", "--wait")
    server.cli("volume", "delete", "--now", "db", "--force")
    assert server.show("then")["origin"] is None and get(server, "then", 32 * MIB) == good
    server.check()


@test(hindcast_only=True)
def long_chunks_are_recovered_too(t):
    """Longer than a record of the journal: they are copied by the first write to them."""
    server = keeping(t, "--chunk", "1M")
    good = bytearray(pattern(1, 4 * MIB))
    put(server, "db", bytes(good))
    server.cli("mark", "db", "good")
    put(server, "db", pattern(2, 2 * MIB), 300 * KIB)
    server.cli("recover", "db", "--to", "good", "--as", "then", "--no-complete")
    changed = good.copy()
    # Parts of two chunks, all of one, and one that was never written to.
    for seed, (at, length) in enumerate([(MIB + 8 * KIB, 4 * KIB), (2 * MIB, MIB), (4 * MIB - 512, 512)]):
        put(server, "then", pattern(seed, length), at)
        changed[at:at + length] = pattern(seed, length)
    put(server, "then", pattern(9, 4 * KIB), 10 * MIB)
    assert get(server, "then", 4 * MIB) == changed
    server.kill()
    server.start()
    assert get(server, "then", 4 * MIB) == changed and get(server, "then", 4 * KIB, 10 * MIB) == pattern(9, 4 * KIB)
    server.cli("volume", "flatten", "then", "--wait")
    server.cli("recover", "db", "--to", "good", "--in-place")
    put(server, "db", pattern(7, 4 * KIB), 64 * KIB)
    good[64 * KIB:68 * KIB] = pattern(7, 4 * KIB)
    assert get(server, "db", 4 * MIB) == good and get(server, "then", 4 * MIB) == changed
    server.check()


@test(hindcast_only=True)
def the_plan_is_what_the_server_does(t):
    server = keeping(t, "--anchor-max", "77", args=["--cdp-beta=5000", "--cdp-gamma=0.25"])
    for n in range(100):
        put(server, "db", pattern(n, 4 * KIB), n % 10 * 64 * KIB)
    server.drained()
    reads = server.show("db")["stats"]["reads"]
    plan = server.cli("cdp", "plan", "db")
    assert plan["inputs"]["price_per_hour"] == {"value": 5000, "source": "configured"}, plan["inputs"]
    assert plan["inputs"]["price_per_gigabyte"] == {"value": 0.25, "source": "configured"}, plan["inputs"]
    assert plan["interval"]["m_max"] == 77 and plan["interval"]["m"] <= 77, plan["interval"]
    said = server.cli("cdp", "plan", "db", "--beta", "7", "--m-max", "9")
    assert said["inputs"]["price_per_hour"] == {"value": 7, "source": "given"} and said["interval"]["m"] <= 9
    assert server.show("db")["stats"]["reads"] == reads, "to measure is on nobody's account"


@test(hindcast_only=True)
def what_changed_since_a_moment(t):
    """`hindcast diff` and NBD's hindcast:changed-since between marks, times, snapshots and now."""
    server = keeping(t)
    put(server, "db", pattern(1, 4 * MIB))
    before = server.cli("mark", "db", "a")
    put(server, "db", pattern(2, 1024), MIB + 512)
    between = server.cli("mark", "db", "b")
    put(server, "db", pattern(3, 64 * KIB), 2 * MIB)
    server.cli("snapshot", "create", "db@s")

    def diff(*states, code=DONE):
        found = server.cli("diff", *states, code=code)
        return found if code else [(r["offset"], r["length"]) for r in found["ranges"]]

    first, second = (MIB + 512, 1024), (2 * MIB, 64 * KIB)
    for settled in (False, True):
        if settled:
            server.drained()
        assert diff("db@a", "db@b") == [first] == diff("db@b", "db@a")
        assert diff("db@a") == [first, second] == diff("db@a", "db@s")
        assert diff("db@b", "db@s") == [second] == diff(f"db@lsn:{between['lsn']}")
    told = server.cli("diff", "db@-0s")
    assert told["ranges"] == [] and told["from"].startswith("lsn:") and told["to"] is None, told
    out = people(server, "diff", "db@a")[0]
    assert out.rstrip().endswith("65 KiB of 16 MiB may differ"), out
    diff("db@none", code=NOT_FOUND)
    diff("db@2001-01-01T00:00:00Z", code=NOT_FOUND)
    diff("db@", code=USAGE)

    def changed(export, since):
        return changed_since(server.uri(export), since)[0]

    assert changed("db@b", "a") == [first] and changed("db@s", "b") == [second]
    assert changed("db", "a") == [first, second] == changed("db", f"db@lsn:{before['lsn']}")
    assert changed("db@-0s", "a") is None, "a time before now means another moment at each use"
    assert changed("db", "none") is None
    # A name that means another state when the export is opened than when it was compared.
    for meanwhile in (False, True):
        with Wire(server.socket) as w:
            w.use_structured()
            query = meta_data("db@b", "hindcast:changed-since:a")
            assert w.ask(OPT_SET_META_CONTEXT, query)[0][0] == REP_META_CONTEXT
            if meanwhile:
                server.cli("mark", "db", "b", "--delete")
                server.cli("mark", "db", "b")
            w.go("db@b")
            assert w.do(CMD_BLOCK_STATUS, 0, 16 * MIB)[0] == (EINVAL if meanwhile else 0), meanwhile
    server.cli("volume", "set", "db", "--cdp", "off")
    put(server, "db", pattern(4, 512))
    server.drained()
    diff("db@a", code=FAILED)
    assert diff("db@s") == [(0, 16 * KIB)]
    server.check()


@test(hindcast_only=True)
def an_idle_history_is_no_alarm(t):
    server = keeping(t, "--anchor", "5", "--retain", "2s")
    begun = None
    for n in range(30):
        put(server, "db", pattern(n, 4 * KIB))
        begun = begun or server.cli("history", "db")["status"]["from"]
    wait_for("the oldest part to go", lambda: server.cli("history", "db")["status"]["from"] != begun)
    status = server.cli("history", "db")["status"]
    assert not status["short"] and status["window_seconds"] >= 2, status
    assert server.cli("status")["health"] == {"state": "healthy", "problems": []}


def bisecting(server, *args, **kwargs):
    command = [binary(), "recover", "bisect", "db", *map(str, args)]
    return subprocess.Popen(command, env={**os.environ, "HINDCAST_SOCKET": str(server.api)}, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs)


@test(limit=300, hindcast_only=True)
def an_interrupted_search_leaves_nothing_behind(t):
    server = keeping(t, size="256M")
    disk = Disk(t, server, "db")
    disk.attach()
    run("mkfs.ext4", "-q", "-F", disk.device)
    root = disk.mount()
    for n in range(5):
        (root / f"file{n}").write_bytes(pattern(n, 100_000))
        os.sync()
    disk.detach()
    changes = server.cli("history", "db", "--range", "0+256M", "--limit", "90000")
    bounds = ["--from", f"lsn:{changes[-2]['lsn']}", "--to", f"lsn:{changes[-1]['lsn']}"]
    # Ctrl-C reaches everybody in the foreground; a signal from afar only the program itself.
    for everybody, number in ((True, signal.SIGINT), (False, signal.SIGTERM)):
        seen = t.dir / "seen"
        check = f"ls $HINDCAST_MOUNT > {seen}.new; mv {seen}.new {seen}; exec sleep 100"
        search = bisecting(server, *bounds, "--mount", "--check", check, start_new_session=True)
        t.defer(search.kill)
        wait_for("the command", seen.exists)
        assert "file0" in seen.read_text()
        assert len(server.cli("volume", "list")) == 2
        (os.killpg if everybody else os.kill)(search.pid, number)
        _, err = search.communicate(timeout=60)
        assert search.returncode == FAILED and ("interrupted" in err or "signal" in err), (search.returncode, err)
        assert [v["name"] for v in server.cli("volume", "list")] == ["db"], "the copy is deleted"
        mounts = pathlib.Path("/proc/self/mounts").read_text()
        assert "hindcast-bisect" not in mounts, mounts
        # Other scripts run beside this one, and have loop devices of their own.
        loops = run("losetup", "--list", "--noheadings", "--output", "BACK-FILE")
        assert "hindcast-bisect" not in str(loops), loops
        seen.unlink()
    server.check()


@test(hindcast_only=True)
def what_a_search_could_not_search_is_told(t):
    server = keeping(t)
    for n in range(6):
        put(server, "db", bytes([n]) * 512)
    lsns = [c["lsn"] for c in server.cli("history", "db", "--range", "0+512")]
    good, bad = f"lsn:{lsns[0]}", f"lsn:{lsns[-1]}"
    is_small = 'test $(nbdcopy "$HINDCAST_URI" - | head -c 1 | od -An -tu1) -lt 3'
    need("nbdcopy")
    found = server.cli("recover", "bisect", "db", "--from", good, "--to", bad, "--check", is_small, "--flushes")
    assert found["not_searched_until"] is None and lsns[2] <= found["good"]["lsn"] < lsns[3] <= found["bad"]["lsn"], found
    server.stop()
    server.start()
    again = server.cli("recover", "bisect", "db", "--from", good, "--to", bad, "--check", is_small, "--flushes")
    assert again == found, "flushes outlive a restart"
    # What was written before the first flush can only be searched write by write.
    server.cli("volume", "create", "raw", "--size", "16M", "--cdp", "parity")
    with connection(server.uri("raw")) as h:
        for n in range(5):
            h.pwrite(bytes([n]) * 512, 0)
        h.flush()
    raw = [c["lsn"] for c in server.cli("history", "raw", "--range", "0+512")]
    ends = ["raw", "--from", f"lsn:{raw[0]}", "--to", f"lsn:{raw[-1]}"]
    found = server.cli("recover", "bisect", *ends, "--check", is_small, "--flushes")
    assert found["not_searched_until"]["lsn"] == raw[-1], found
    out, _ = people(server, "recover", "bisect", *ends, "--check", is_small, "--flushes")
    assert "not searched" in out, out
    found = server.cli("recover", "bisect", "db", "--from", good, "--to", bad, "--check", is_small)
    assert (found["good"]["lsn"], found["bad"]["lsn"]) == (lsns[2], lsns[3]) and not found["not_searched_until"], found
    put(server, "db", bytes(512))
    time.sleep(0.5)
    idle = server.cli("recover", "bisect", "db", "--from", "-0.2s", "--to", "-0.1s", "--check", "true", code=FAILED)
    assert "nothing was written to db between" in idle, idle
    server.cli("recover", "bisect", "db", "--from", bad, "--to", good, "--check", "true", code=USAGE)


@test(hindcast_only=True)
def what_rests_on_a_moment_is_thin(t):
    """qemu-img map, diff, export and import of a thin volume that was taken back see its 1 MiB."""
    server = keeping(t, size="64T")
    put(server, "db", pattern(1, MIB), 5 * MIB)
    server.cli("snapshot", "create", "db@good")
    server.cli("mark", "db", "m")
    put(server, "db", pattern(2, MIB), 9 * MIB)

    def mapped(export):
        found = run("qemu-img", "map", "--output=json", "-f", "raw", server.uri(export))
        return [(e["start"], e["length"]) for e in json.loads(found) if e["data"]]

    begun, only = time.monotonic(), [(5 * MIB, MIB)]
    assert mapped("db@m") == only
    server.cli("recover", "db", "--to", "m", "--as", "rests", "--no-complete")
    server.cli("recover", "db", "--to", "m", "--in-place", "--undo-name", "undo")
    assert mapped("rests") == only == mapped("db")
    assert server.cli("diff", "db@good")["ranges"] == []
    assert [(r["offset"], r["length"]) for r in server.cli("diff", "db@undo")["ranges"]] == [(9 * MIB, MIB)]
    server.cli("snapshot", "create", "db@t")
    whole, since = server.dir / "whole.hcs", server.dir / "since.hcs"
    server.cli("export", "db@t", "--file", whole)
    server.cli("export", "db@t", "--from", "db@good", "--file", since)
    assert MIB < whole.stat().st_size < MIB + 256 * KIB and since.stat().st_size < 4 * KIB, whole.stat()
    # It fits where there is little room, and is what it was.
    other = t.server("other", pool="16M")
    other.cli("import", "back", "--file", whole)
    other.drained()
    assert other.allocated("back") == MIB and get(other, "back", 3 * MIB, 4 * MIB) == (
        bytes(MIB) + pattern(1, MIB) + bytes(MIB))
    assert time.monotonic() - begun < 120, "64 TiB were looked through"
    server.cli("volume", "flatten", "rests", "--wait")
    assert mapped("rests") == only
    server.check()
    other.check()


if __name__ == "__main__":
    main()
