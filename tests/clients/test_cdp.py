#!/usr/bin/python3
"""Continuous data protection as users meet it: settings, moments as exports and targets, marks, history, recovery; and a
file system that a program like ransomware rewrites, found by bisection."""

import datetime

from iscsi import *
from libnbd import connection, get, pattern, put, refused
from mounted import *
import errno


def now():
    """This instant, as a moment; nothing happens in the next millisecond."""
    text = datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
    time.sleep(0.001)
    return text


def unused(server, name):
    """Waits until the server has seen the last connection's end."""
    wait_for(f"the end of connections to {name}", lambda: server.show(name)["handles"] == 0)


@test(hindcast_only=True)
def settings_and_exit_codes(t):
    server = t.server()
    server.cli("volume", "create", "db", "--size", "64M", "--cdp", "parity", "--retain", "7d", "--anchor", "1000",
               "--cdp-compression", "lz4", "--retain-size", "1G", "--anchor-max", "5000")
    cdp = server.show("db")["cdp"]
    assert cdp == {"encoding": "parity", "compression": "lz4", "anchors": {"policy": "writes", "count": 1000},
                   "max_distance": 5000, "retain_seconds": 604800, "retain_bytes": 1 << 30}, cdp
    server.cli("volume", "set", "db", "--cdp", "undo", "--anchor", "10m", "--retain", "all", "--anchor-max", "0")
    cdp = server.show("db")["cdp"]
    assert (cdp["encoding"], cdp["compression"]) == ("undo", "lz4"), "what is not said stays"
    assert cdp["anchors"] == {"policy": "time", "seconds": 600}, cdp
    assert cdp["retain_seconds"] is None and cdp["max_distance"] is None and cdp["retain_bytes"] == 1 << 30
    server.cli("volume", "set", "db", "--anchor", "model")
    server.stop()
    server.start()
    assert server.show("db")["cdp"]["anchors"] == {"policy": "model"}, "kept over a restart"
    server.cli("volume", "set", "db", "--cdp", "off")
    assert server.show("db")["cdp"] is None
    server.cli("volume", "set", "db", "--retain", "1d", code=CONFLICT)
    server.create("plain", "1M")
    server.cli("mark", "plain", "x", code=CONFLICT)
    server.cli("recover", "plain", "--to", "-1s", "--as", "y", code=NOT_FOUND)
    for bad in ("--cdp x", "--anchor 0", "--anchor 5x", "--retain 0s", "--retain-size 0", "--cdp-compression zip"):
        server.cli("volume", "set", "plain", *bad.split(), code=USAGE)
    server.check()


@test(hindcast_only=True)
def any_moment_is_an_export(t):
    """By time, by how long ago, by LSN, by mark and by snapshot; over NBD and over iSCSI."""
    server = t.server(args=["--iscsi=127.0.0.1:0"])
    server.cli("volume", "create", "db", "--size", "16M", "--cdp", "parity")
    moments = []
    for n in range(20):
        data = pattern(n, 64 * KIB)
        put(server, "db", data, 32 * KIB * (n % 4))
        moments.append((now(), get(server, "db", 256 * KIB)))
    mark = server.cli("mark", "db", "here")
    server.cli("snapshot", "create", "db@there")
    put(server, "db", bytes(256 * KIB))
    for at, content in moments:
        assert get(server, f"db@{at}", 256 * KIB) == content, at
        lsn = server.cli("history", "db", "--range", "0+1M", "--to", at, "--limit", "1000")[-1]["lsn"]
        assert get(server, f"db@lsn:{lsn}", 256 * KIB) == content, lsn
    newest = moments[-1][1]
    assert get(server, "db@here", 256 * KIB) == newest and get(server, "db@there", 256 * KIB) == newest
    assert get(server, "db@-0.001s", 256 * KIB) == bytes(256 * KIB)
    ago = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(moments[9][0].replace("Z", "+00:00"))
    # A view that is open stays what it is, and is read-only.
    with connection(server.uri(f"db@lsn:{mark['lsn']}")) as view:
        assert view.is_read_only()
        refused(errno.EPERM, view.pwrite, bytes(512), 0)
        put(server, "db", pattern(99, 256 * KIB))
        assert bytes(view.pread(256 * KIB, 0)) == newest
    assert ago.total_seconds() > 0
    portal = server.cli("status")["listeners"]["iscsi"][0]
    for name in ("here", "there", f"lsn:{mark['lsn']}", moments[-1][0].lower()):
        url = f"iscsi://{portal}/iqn.2026-11.io.hindcast:db:at:{name}/0"
        image = t.dir / "moment.img"
        run("qemu-img", "convert", "-f", "raw", "-O", "raw", url, image)
        assert image.read_bytes()[:256 * KIB] == newest, name
    for bad in ("db@2099-01-01T00:00:00Z", "db@nothing", "db@-x", "db@lsn:99999999", "none@-1s"):
        try:
            get(server, bad, 512)
        except Exception:
            continue
        raise AssertionError(f"{bad} was opened")
    server.check()


@test(hindcast_only=True)
def history_tells_what_changed_when(t):
    server = t.server()
    server.cli("volume", "create", "db", "--size", "16M", "--cdp", "undo", "--anchor", "never")
    put(server, "db", b"a" * 4096, 0)
    put(server, "db", b"b" * 4096, 8192)
    first = server.cli("mark", "db", "first")
    put(server, "db", b"c" * 512, 512)
    server.cli("mark", "db", "first", code=CONFLICT)
    server.cli("snapshot", "create", "db@snap")
    server.cli("mark", "db", "snap", code=CONFLICT)
    server.cli("snapshot", "create", "db@first", code=CONFLICT)
    server.cli("snapshot", "rename", "db@snap", "first", code=CONFLICT)
    history = server.cli("history", "db", "--buckets", "10")
    assert [m["name"] for m in history["marks"]] == ["first"]
    assert sum(b["written"] for b in history["buckets"]) == 4096 + 4096 + 512
    assert any(a["snapshot"] == "snap" for a in history["anchors"]), history["anchors"]
    assert history["spans"][-1]["to"] is None
    assert len(history["flushes"]) >= 3
    changes = server.cli("history", "db", "--range", "0+4K")
    assert [(c["offset"], c["length"]) for c in changes] == [(0, 4096), (512, 512)], changes
    # Changes are carried out before they are listed, so the log has them by now.
    assert server.cli("history", "db")["status"]["records"] == 3
    later = server.cli("history", "db", "--range", "0+16M", "--from", f"lsn:{first['lsn'] + 1}")
    assert [(c["offset"], c["length"]) for c in later] == [(512, 512)], later
    server.cli("mark", "db", "first", "--delete")
    server.cli("recover", "db", "--to", "first", "--as", "x", code=NOT_FOUND)
    server.cli("history", "none", code=NOT_FOUND)
    text = run(binary(), "history", "db", env={**os.environ, "HINDCAST_SOCKET": str(server.api)})
    assert "keeps" in text and "█" in text, text
    server.check()


@test(hindcast_only=True)
def recovery_to_new_volumes_and_in_place(t):
    server = t.server()
    for name in ("db", "log"):
        server.cli("volume", "create", name, "--size", "16M", "--cdp", "parity", "--anchor", "5")
    for n in range(40):
        put(server, "db", pattern(n, 8 * KIB), 4 * KIB * n)
        put(server, "log", pattern(100 + n, 8 * KIB), 4 * KIB * n)
    then, db, log = now(), get(server, "db", MIB), get(server, "log", MIB)
    for n in range(40):
        put(server, "db", pattern(200 + n, 8 * KIB), 4 * KIB * n)
        put(server, "log", pattern(300 + n, 8 * KIB), 4 * KIB * n)
    latest = get(server, "db", MIB)
    made = server.cli("recover", "db", "log", "--to", then, "--as", "db-then", "--as", "log-then")
    assert [v["name"] for v in made] == ["db-then", "log-then"]
    assert get(server, "db-then", MIB) == db and get(server, "log-then", MIB) == log
    put(server, "db-then", b"!" * 512)
    assert get(server, "db", MIB) == latest, "writing to it does not touch the other"
    server.cli("recover", "db", "--to", then, "--as", "db-then", code=CONFLICT)
    # It becomes independent in the background, and is the same afterwards.
    wait_for("completion", lambda: not server.cli("volume", "flatten", "log-then", "--status")["running"])
    assert get(server, "log-then", MIB) == log
    server.drained()
    assert server.cli("history", "db")["status"]["records"] >= 64
    plan = server.cli("cdp", "plan", "db")
    assert plan["inputs"]["record_size"]["source"] == "measured", plan["inputs"]
    assert plan["inputs"]["block_size"] == {"value": 16384.0, "source": "measured"}, plan["inputs"]
    server.cli("recover", "db", "log", "--to", then, "--as", "one", code=USAGE)
    server.cli("recover", "db", "--to", then, code=USAGE)

    with connection(server.uri("db")):
        server.cli("recover", "db", "--to", then, "--in-place", code=CONFLICT)
    unused(server, "db")
    back, = server.cli("recover", "db", "--to", then, "--in-place", "--undo-name", "undo")
    assert back["undo"]["name"] == "undo" and get(server, "db", MIB) == db
    unused(server, "db")
    server.cli("snapshot", "rollback", "db@undo")
    assert get(server, "db", MIB) == latest, "undone"
    # The past before both rollbacks is there still.
    assert get(server, f"db@{then}", MIB) == db
    # Both at once, and that undone.
    log_latest = get(server, "log", MIB)
    unused(server, "db")
    unused(server, "log")
    back = server.cli("recover", "db", "log", "--to", then, "--in-place", "--undo-name", "both")
    assert [b["undo"]["name"] for b in back] == ["both", "both"], back
    assert get(server, "db", MIB) == db and get(server, "log", MIB) == log
    for name, content in ("db", latest), ("log", log_latest):
        unused(server, name)
        server.cli("snapshot", "rollback", f"{name}@both")
        assert get(server, name, MIB) == content, name
    server.stop()
    server.start()
    assert get(server, f"db@{then}", MIB) == db and get(server, "log-then", MIB) == log
    server.check()


@test(hindcast_only=True)
def recovery_to_the_last_flush(t):
    server = t.server()
    server.cli("volume", "create", "db", "--size", "16M", "--cdp", "parity")
    moments = []
    for n in range(3):
        put(server, "db", pattern(n, 64 * KIB))
        moments.append((now(), pattern(n, 64 * KIB)))
    with connection(server.uri("db")) as h:
        h.pwrite(pattern(9, 64 * KIB), 0)
        later = now()
        mark = server.cli("mark", "db", "unflushed")
        assert get(server, f"db@{later}", 64 * KIB) == pattern(9, 64 * KIB)
        flushed = pattern(2, 64 * KIB)
        moments += [(later, flushed), ("unflushed", flushed), (f"lsn:{mark['lsn']}", flushed)]
        for n, (to, content) in enumerate(moments):
            server.cli("recover", "db", "--to", to, "--last-flush", "--as", f"then-{n}")
            assert get(server, f"then-{n}", 64 * KIB) == content, to
    server.cli("recover", "db", "--to", "2099-01-01T00:00:00Z", "--last-flush", "--as", "x", code=USAGE)
    unused(server, "db")
    server.cli("recover", "db", "--to", later, "--last-flush", "--in-place")
    assert get(server, "db", 64 * KIB) == flushed
    server.stop()
    server.start()
    for n, (to, content) in enumerate(moments):
        server.cli("recover", "db", "--to", to, "--last-flush", "--as", f"again-{n}")
        assert get(server, f"again-{n}", 64 * KIB) == content, f"{to}, after a restart"
    server.cli("recover", "db", "--to", "-1d", "--last-flush", "--as", "x", code=NOT_FOUND)
    server.check()


@test(hindcast_only=True)
def a_snapshot_is_a_moment_of_all_volumes(t):
    """Recovery of a group, history and bisection take a snapshot's name for the moment at which it was taken."""
    server = t.server()
    for name in ("db", "log"):
        server.cli("volume", "create", name, "--size", "16M", "--cdp", "parity")
    for n in range(10):
        put(server, "db", pattern(n, 8 * KIB), 4 * KIB * n)
        put(server, "log", pattern(100 + n, 8 * KIB), 4 * KIB * n)
    db, log = get(server, "db", 64 * KIB), get(server, "log", 64 * KIB)
    server.cli("snapshot", "create", "db@here")
    for n in range(3):
        put(server, "db", b"x" * 512, 512 * n)
        put(server, "log", b"y" * 512, 512 * n)
    server.cli("recover", "db", "log", "--to", "here", "--as", "db-then", "--as", "log-then")
    assert get(server, "db-then", 64 * KIB) == db and get(server, "log-then", 64 * KIB) == log
    changes = server.cli("history", "db", "--range", "0+16M", "--from", "here")
    assert [c["offset"] for c in changes] == [0, 512, 1024], changes
    before = server.cli("history", "db", "--range", "0+16M", "--to", "here", "--limit", "1000")
    assert len(before) >= 10 and before[-1]["lsn"] < changes[0]["lsn"], before
    check = 'test "$(nbdcopy "$HINDCAST_URI" - | head -c 1024 | tail -c 1)" != x'
    found = server.cli("recover", "bisect", "db", "--from", "here", "--to", f"lsn:{changes[2]['lsn']}", "--check", check)
    assert found["bad"]["lsn"] == changes[1]["lsn"] and found["good"]["lsn"] == changes[0]["lsn"], found
    server.cli("volume", "create", "plain", "--size", "16M")
    server.cli("snapshot", "create", "plain@here")
    said = server.cli("history", "plain", "--range", "0+16M", "--from", "here", code=NOT_FOUND)
    assert "plain@here" in said, said
    server.check()


# Reads every file and writes it again, as gibberish.
REWRITE = """
import os, sys
for directory, _, names in sorted(os.walk(sys.argv[1])):
    for name in sorted(names):
        path = os.path.join(directory, name)
        with open(path, "rb+") as file:
            data = file.read()
            file.seek(0)
            file.write(bytes(b ^ 0xa5 for b in data))
        os.rename(path, path + ".locked")
os.sync()
"""


@test(hindcast_only=True)
def a_window_that_is_too_short_is_an_alarm(t):
    server = t.server()
    server.cli("volume", "create", "db", "--size", "16M", "--cdp", "undo", "--cdp-compression", "none", "--anchor", "200",
               "--retain", "1h", "--retain-size", "20M")
    assert server.cli("status")["health"]["state"] == "healthy"
    for n in range(8):
        put(server, "db", pattern(n, 8 << 20), (n % 2) * (8 << 20))
    wait_for("the oldest part to go", lambda: server.cli("history", "db")["status"]["short"])
    status = server.cli("history", "db")["status"]
    assert status["stored"] < 64 << 20 and status["window_seconds"] < 3600, status
    health = server.cli("status")["health"]
    assert health["state"] == "warning" and len(health["problems"]) == 1, health
    assert health["problems"][0]["code"] == "history-short", health
    text = run(binary(), "history", "db", env={**os.environ, "HINDCAST_SOCKET": str(server.api)})
    assert "--retain-size is too small" in text, text
    server.cli("volume", "set", "db", "--retain", "all")
    assert server.cli("status")["health"]["state"] == "healthy"
    server.check()


@test(limit=600, hindcast_only=True)
def a_rewritten_file_system_is_found_by_bisection(t):
    server = t.server()
    server.cli("volume", "create", "files", "--size", "1G", "--cdp", "parity", "--anchor", "2000")
    disk = Disk(t, server, "files")
    disk.attach()
    run("mkfs.ext4", "-q", "-F", disk.device)
    root = disk.mount()
    tree = root / "tree"
    tree.mkdir()
    for n in range(300):
        (tree / f"file{n:03}").write_bytes(pattern(n, 3000 + 97 * n))
    os.sync()
    before = tree_checksums(root)
    good = now()
    # Honest work goes on, and then the other begins.
    for n in range(20):
        (root / "log").write_bytes(pattern(n, 5000))
        os.sync()
    run("python3", "-c", REWRITE, tree, timeout=300)
    time.sleep(0.1)
    bad = now()
    disk.detach()

    found = server.cli("recover", "bisect", "files", "--from", good, "--to", bad, "--mount",
                       "--check", 'test -z "$(find $HINDCAST_MOUNT/tree -name "*.locked" -print -quit)" && '
                                  'cmp -s $HINDCAST_MOUNT/tree/file000 ' + str(t.dir / "file000"), code=None)
    assert found[0] == FAILED and "already bad at --from" in found[2], found
    (t.dir / "file000").write_bytes(pattern(0, 3000))
    found = server.cli("recover", "bisect", "files", "--from", good, "--to", bad, "--mount",
                       "--check", 'test -z "$(find $HINDCAST_MOUNT/tree -name "*.locked" -print -quit)" && '
                                  'cmp -s $HINDCAST_MOUNT/tree/file000 ' + str(t.dir / "file000"))
    t.say(f"{found['checks']} checks; last good {found['good']['time']}")
    assert found["good"]["lsn"] < found["bad"]["lsn"] and good <= found["good"]["time"] <= bad, found
    assert [v["name"] for v in server.cli("volume", "list")] == ["files"], "nothing is left behind"

    server.cli("recover", "files", "--to", f"lsn:{found['good']['lsn']}", "--as", "saved")
    saved = Disk(t, server, "saved")
    saved.attach()
    saved.mount_checked()
    after = tree_checksums(saved.mount_dir)
    # The first file is whole by the check's word; one bad write is at most one file that was being rewritten.
    lost = [name for name, sum in before.items() if after.get(name) != sum]
    assert len(lost) <= 1, lost
    saved.detach()
    # At the moment before everything is as it was.
    server.cli("recover", "files", "--to", good, "--as", "whole")
    whole = Disk(t, server, "whole")
    whole.attach()
    whole.mount_checked()
    assert tree_checksums(whole.mount_dir) == before
    whole.detach()
    server.check()


if __name__ == "__main__":
    main()
