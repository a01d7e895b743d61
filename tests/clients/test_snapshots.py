#!/usr/bin/python3
"""Snapshots as users meet them: commands and exit codes, exports, clones, rollback under connections, groups, hooks,
schedules."""

import re

from iscsi import *
from iscsi_wire import READ as DATA_IN, Initiator, attached, sense_of
from libnbd import changed_since, connection, get, nbd, pattern, put, refused
import errno
import struct


CHECK_CONDITION = 2
UNIT_ATTENTION, DATA_PROTECT = 6, 7


def names(server, volume="db"):
    return [s["name"] for s in server.cli("snapshot", "list", volume)]


@test(hindcast_only=True)
def commands_and_exit_codes(t):
    """Everything that the command line does with snapshots, and what it refuses."""
    server = t.server()
    server.create("db", 64 * MIB)
    server.create("log", 64 * MIB)
    group = server.cli("snapshot", "create", "db@one", "log@one")
    assert [f"{s['volume']}@{s['name']}" for s in group] == ["db@one", "log@one"]
    assert group[0]["created"] == group[1]["created"], "one instant"
    unnamed, = server.cli("snapshot", "create", "db")
    assert re.fullmatch(r"\d{8}T\d{6}Z", unnamed["name"]), unnamed
    again, = server.cli("snapshot", "create", "db")
    assert again["name"] != unnamed["name"], "two in one second"
    assert again["parent"] == f"db@{unnamed['name']}" and unnamed["parent"] == "db@one"

    server.cli("snapshot", "create", "db@one", code=CONFLICT)
    server.cli("snapshot", "create", "none@x", code=NOT_FOUND)
    server.cli("snapshot", "create", "db@a b", code=USAGE)
    server.cli("snapshot", "create", "db@x", "db@y", code=USAGE)
    server.cli("snapshot", "create", "db@x", "none", code=NOT_FOUND)
    assert "x" not in names(server), "a group is taken as a whole or not at all"
    server.cli("snapshot", "show", "db@none", code=NOT_FOUND)
    server.cli("snapshot", "rename", "db@one", again["name"], code=CONFLICT)
    assert server.cli("snapshot", "rename", "db@one", "first")["name"] == "first"
    assert server.cli("snapshot", "show", "db@first")["uuid"] == group[0]["uuid"]

    clone = server.cli("clone", "create", "db@first", "copy")
    assert clone["origin"] == "db@first" and clone["size"] == 64 * MIB and clone["allocated"] == 0
    server.cli("clone", "create", "db@first", "log", code=CONFLICT)
    server.cli("clone", "create", "db@none", "x", code=NOT_FOUND)
    assert [c["name"] for c in server.cli("clone", "list")] == ["copy"]
    assert [c["name"] for c in server.cli("clone", "list", "log")] == []
    assert server.cli("snapshot", "show", "db@first")["clones"] == ["copy"]

    assert server.show("db")["method"] == "row"
    assert server.cli("volume", "set", "db", "--method", "cow")["method"] == "cow"
    assert server.cli("volume", "set", "db", "--order", "independent")["order"] == "independent"
    server.cli("volume", "set", "db", "--order", "none", code=USAGE)
    assert server.cli("volume", "set", "db", "--order", "dependent")["order"] == "dependent"
    server.create("other", MIB, "4K", "--method", "cow")
    assert server.show("other")["method"] == "cow"

    server.cli("volume", "delete", "--now", "log", code=CONFLICT)
    server.cli("volume", "delete", "--now", "log", "--force")
    server.cli("snapshot", "list", "log", code=NOT_FOUND)
    server.check()
    assert names(server) == ["first", unnamed["name"], again["name"]]
    assert server.show("copy")["origin"] == "db@first"

    labelled = server.cli("snapshot", "label", "db@first", "why=a test", "gone=x")
    assert labelled["labels"] == {"why": "a test", "gone": "x"}
    assert server.cli("snapshot", "label", "db@first", "gone=")["labels"] == {"why": "a test"}
    server.cli("snapshot", "protect", "db@first")
    server.cli("snapshot", "delete", "db@first", code=CONFLICT)
    assert [s["name"] for s in server.cli("snapshot", "delete", "db@*", "--dry-run")] == names(server)[1:]
    server.cli("volume", "delete", "--now", "db", "--force", code=CONFLICT)
    server.check()
    assert server.cli("snapshot", "show", "db@first")["protected"]
    server.cli("snapshot", "unprotect", "db@first")
    made, = server.cli("snapshot", "create", "db@noted", "--label", "by=me")
    assert made["labels"] == {"by": "me"}
    server.cli("snapshot", "delete", "db@noted")

    server.cli("snapshot", "delete", "db@none", code=NOT_FOUND)
    assert server.cli("snapshot", "delete", "db@*", "--older-than", "1d") == []
    assert len(server.cli("snapshot", "delete", "db@2*", "--dry-run")) == 2 and len(names(server)) == 3
    server.cli("snapshot", "delete", "db@2*", "db@first")
    assert names(server) == []
    assert server.show("copy")["origin"] is None, "gone from sight, and kept for the clone"
    server.check()


@test(hindcast_only=True)
def orders_of_preservation(t):
    """Each snapshot keeps what it showed, whether it shares what is preserved or has a copy of its own."""
    server = t.server()
    for method, order in [(m, o) for m in ("row", "cow") for o in ("dependent", "independent")]:
        name = f"{method}-{order}"
        server.create(name, 4 * MIB)
        server.cli("volume", "set", name, "--method", method, "--order", order)
        shown = []
        for n in range(4):
            put(server, name, pattern(n, MIB), offset=n * 256 * 1024)
            server.cli("snapshot", "create", f"{name}@s{n}")
            shown.append(get(server, name, 4 * MIB))
        put(server, name, pattern(99, 2 * MIB))
        server.drained()
        cost = server.cli("volume", "stats", name)["preservation"]
        # Every write has found chunks that a snapshot saw: three overlap the one before, the last all that was there.
        chunks = (3 * 768 * 1024 + 7 * 256 * 1024) // (16 * 1024)
        if order == "dependent":
            copies, redirects = (0, chunks) if method == "row" else (chunks, 0)
            assert (cost["copies"], cost["redirects"], cost["space_efficiency"]) == (copies, redirects, 1), cost
        else:
            assert cost["copies"] + cost["redirects"] > chunks and cost["space_efficiency"] < 1, cost
        for n, data in enumerate(shown):
            assert get(server, f"{name}@s{n}", 4 * MIB) == data, f"{name}@s{n}"
        server.cli("snapshot", "delete", f"{name}@s1", f"{name}@s2")
        for n in (0, 3):
            assert get(server, f"{name}@s{n}", 4 * MIB) == shown[n], f"{name}@s{n}, others deleted"
    server.check()


@test(hindcast_only=True)
def thousands_at_once(t):
    """Deletion in batches, each of them one operation; the newest content is what it was."""
    server = t.server()
    server.create("db", 16 * MIB)
    count = 2000 if t.long else 300
    with connection(server.uri("db")) as h:
        for i in range(count):
            h.pwrite(struct.pack("<Q", i) * 512, i % 100 * 4096)
            if i % 10 == 0:
                server.cli("snapshot", "create", f"db@s{i}")
    listed = server.cli("snapshot", "list", "db")
    assert len(listed) == count / 10
    for i in (0, 10, count - 10):
        expected = struct.pack("<Q", i) * 512
        assert get(server, f"db@s{i}", 4096, i % 100 * 4096) == expected, i
    server.drained()
    listed = server.cli("snapshot", "list", "db")
    kept = server.show("db")["snapshot_space"]
    assert sum(s["unique"] for s in listed) <= kept and kept > 0, (kept, listed[:2])
    assert listed[-1]["unique"] + listed[-1]["shared"] >= 100 * 16 * KIB // 4, listed[-1]
    server.cli("snapshot", "delete", "db@*")
    assert names(server) == []
    server.drained()
    wait_for("the space of the snapshots", lambda: server.show("db")["snapshot_space"] == 0, limit=60)
    assert get(server, "db", 4096, (count - 1) % 100 * 4096) == struct.pack("<Q", count - 1) * 512
    server.check()


@test(hindcast_only=True)
def exports_over_nbd(t):
    """`vol@snap` is listed, read-only, and stays what it was; deletion waits for who reads it."""
    need("nbdinfo", "qemu-img", "qemu-io")
    server = t.server()
    server.create("db", 8 * MIB)
    old, new = pattern(1, MIB), pattern(2, MIB)
    put(server, "db", old)
    server.cli("snapshot", "create", "db@old")
    put(server, "db", new)
    server.cli("clone", "create", "db@old", "copy")
    listed = json.loads(run("nbdinfo", "--list", "--json", f"nbd+unix:///?socket={server.socket}"))
    assert [e["export-name"] for e in listed["exports"]] == ["copy", "db", "db@old"]
    assert [e["is_read_only"] for e in listed["exports"]] == [False, False, True]

    for export, expected in (("db", new), ("db@old", old), ("copy", old)):
        assert get(server, export, MIB) == expected, export
    with connection(server.uri("db@old"), strict=False) as h:
        assert h.is_read_only()
        refused((errno.EPERM, errno.EROFS), h.pwrite, bytes(512), 0)
        refused((errno.EPERM, errno.EROFS), h.trim, 4096, 0)
        # Pinned while it is open: gone from sight, and read on.
        assert server.cli("snapshot", "show", "db@old")["handles"] == 1
        server.cli("snapshot", "delete", "db@old")
        server.cli("snapshot", "show", "db@old", code=NOT_FOUND)
        put(server, "db", pattern(3, MIB))
        server.drained()
        assert bytes(h.pread(MIB, 0)) == old
    refused(errno.ENOENT, get, server, "db@old", 512)

    put(server, "copy", new, 4 * MIB)
    assert get(server, "copy", MIB) == old and get(server, "copy", MIB, 4 * MIB) == new
    assert get(server, "db", MIB, 4 * MIB) == bytes(MIB), "a clone's writes are its own"
    server.cli("snapshot", "create", "db@img")
    image = t.dir / "img.qcow2"
    run("qemu-img", "convert", "-O", "qcow2", server.uri("db@img"), image)
    assert "identical" in run("qemu-img", "compare", server.uri("db@img"), image)
    server.check()
    assert get(server, "copy", MIB) == old


@test(hindcast_only=True)
def what_changed_since(t):
    """The meta context hindcast:changed-since: everything that was written, and nothing that was not touched."""
    server = t.server()
    server.create("db", 4 * MIB, "64K")
    put(server, "db", pattern(1, 4 * MIB))
    server.cli("snapshot", "create", "db@a")
    put(server, "db", pattern(2, 65536), 65536)
    server.cli("snapshot", "create", "db@b")
    put(server, "db", pattern(3, 4096), 3 * MIB)
    server.cli("clone", "create", "db@a", "copy")
    put(server, "copy", pattern(4, 65536), 0)

    def changed(export, *since):
        """For each state the set of 64-KiB chunks that may have changed."""
        found = changed_since(server.uri(export), *since)
        return [{chunk for at, length in ranges for chunk in range(at >> 16, (at + length + 65535) >> 16)}
                for ranges in found]

    for settled in (False, True):
        if settled:
            server.drained()
        assert changed("db", "a", "b") == [{1, 48}, {48}]
        assert changed("db@b", "a") == [{1}]
        assert changed("copy", "db@a") == [{0}]
    assert changed_since(server.uri("db"), "none") == [None]
    listed = run("nbdinfo", "--json", server.uri("db"))
    assert "hindcast:changed-since:a" in listed


@test(hindcast_only=True)
def relocation(t):
    """What redirects have scattered is brought into order, under reads, and stays what it is."""
    server = t.server()
    server.create("db", 16 * MIB, "4K")
    data = bytearray(pattern(1, 16 * MIB))
    put(server, "db", bytes(data))
    server.drained()
    server.cli("snapshot", "create", "db@a")
    old = bytes(data)
    with connection(server.uri("db")) as h:
        for i in range(0, 4096, 5):
            data[i * 4096:(i + 1) * 4096] = bytes([i % 251]) * 4096
            h.pwrite(bytes(data[i * 4096:(i + 1) * 4096]), i * 4096)
        h.flush()
    server.drained()
    before = server.cli("volume", "relocate", "db", "--status")
    assert before["chunks"] == 4096 and before["runs"] > 500 and before["running"] is None, before
    server.cli("volume", "relocate", "db", "--stop", code=NOT_FOUND)
    server.cli("volume", "relocate", "none", code=NOT_FOUND)
    after = server.cli("volume", "relocate", "db", "--wait")
    assert after["runs"] < before["runs"] / 4, (before, after)
    assert get(server, "db", 16 * MIB) == bytes(data) and get(server, "db@a", 16 * MIB) == old
    server.check()
    assert get(server, "db", 16 * MIB) == bytes(data) and get(server, "db@a", 16 * MIB) == old


@test(hindcast_only=True)
def an_export_that_was_cut_short_goes_on(t):
    """`export --file` leaves FILE.part behind, whatever ended it, and the same command makes the very file of it."""
    server = t.server()
    server.create("db", 192 * MIB)
    for at in range(0, 192, 16):
        put(server, "db", os.urandom(MIB) * 16, at * MIB)
    server.cli("snapshot", "create", "db@a")
    put(server, "db", os.urandom(MIB))
    server.cli("snapshot", "create", "db@b")
    whole, again = t.dir / "whole.hcs", t.dir / "again.hcs"
    part = t.dir / "again.hcs.part"
    server.cli("export", "db@a", "--file", whole)
    assert not (t.dir / "whole.hcs.part").exists()
    server.cli("export", "db@a", "--file", whole, code=CONFLICT)
    # Not even the trailer of a whole one is touched in vain.
    whole.rename(part)
    before = sha256(part)
    server.cli("export", "db@b", "--file", again, code=CONFLICT)
    assert sha256(part) == before
    server.cli("export", "db@a", "--file", again)
    assert sha256(again) == before and not part.exists()
    again.rename(whole)
    again.symlink_to(t.dir / "nowhere")
    server.cli("export", "db@a", "--file", again, code=CONFLICT)
    again.unlink()

    def begin():
        environment = {**os.environ, "HINDCAST_SOCKET": str(server.api)}
        command = [str(binary()), "export", "db@a", "--file", str(again)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        before = part.stat().st_size if part.exists() else 0
        wait_for("the export", lambda: again.exists() or part.exists() and part.stat().st_size > before + 4 * MIB, step=0.001)
        return process

    # The client is killed, then the server.
    client = begin()
    client.kill()
    client.wait()
    assert part.exists() and not again.exists(), "too fast for this test"
    client = begin()
    server.kill()
    said = client.communicate(timeout=30)[1]
    assert client.returncode in (FAILED, UNREACHABLE) and "the same command continues" in said, (client.returncode, said)
    assert part.exists() and not again.exists(), "too fast for this test"
    server.start()
    # What a power cut may leave behind it.
    with open(part, "ab") as file:
        file.write(bytes(9000))
    kept = part.stat().st_size
    said = server.cli("export", "db@b", "--file", again, code=CONFLICT)
    assert "a part of another" in said and part.stat().st_size == kept, said
    said = server.cli("export", "db@b", "--from", "db@a", "--file", again, code=CONFLICT)
    assert "a part of another" in said and part.stat().st_size == kept, said
    server.cli("export", "db@a", "--file", again)
    assert sha256(again) == sha256(whole) and not part.exists()
    # Nobody's notes are overwritten.
    again.rename(t.dir / "kept.hcs")
    part.write_text("notes of a meeting")
    server.cli("export", "db@a", "--file", again, code=CONFLICT)
    assert part.read_text() == "notes of a meeting" and not again.exists()


@test(hindcast_only=True)
def streams_and_differences(t):
    """`diff`, `export` and `import`: whole, incremental, cut short and gone on with, damaged."""
    here, there = t.server("here"), t.server("there")
    here.create("db", 8 * MIB)
    put(here, "db", pattern(1, 4 * MIB))
    here.cli("snapshot", "create", "db@a")
    put(here, "db", pattern(2, 65536), MIB)
    here.cli("snapshot", "create", "db@b")
    put(here, "db", pattern(3, 4096), 7 * MIB)
    ranges = [{"offset": MIB, "length": 65536}]
    assert here.cli("diff", "db@a", "db@b") == {"from": "a", "to": "b", "size": 8 * MIB, "ranges": ranges}
    now = here.cli("diff", "db@a")["ranges"]
    assert now[0] == {"offset": MIB, "length": 65536} and now[1]["offset"] <= 7 * MIB, now
    here.cli("diff", "db@a", "db@none", code=NOT_FOUND)
    here.cli("diff", "db@a", "other@b", code=USAGE)

    whole, part = t.dir / "a.hcs", t.dir / "b.hcs"
    here.cli("export", "db@a", "--file", whole)
    here.cli("export", "db@b", "--from", "db@a", "--file", part)
    here.cli("export", "db@none", "--file", t.dir / "none", code=NOT_FOUND)
    assert not (t.dir / "none").exists(), "no file that looks like a stream"
    assert 4 * MIB < whole.stat().st_size < 5 * MIB and part.stat().st_size < 128 * KIB

    there.cli("import", "--file", part, code=NOT_FOUND)
    damaged = t.dir / "damaged"
    data = bytearray(whole.read_bytes())
    data[3 * MIB] ^= 1
    damaged.write_bytes(data)
    there.cli("import", "bad", "--file", damaged, code=FAILED)
    there.cli("import", "bad", "--cancel")
    there.cli("volume", "delete", "--now", "bad")

    cut = t.dir / "cut"
    cut.write_bytes(whole.read_bytes()[:3 * MIB])
    said = there.cli("import", "copy", "--file", cut, code=FAILED)
    assert "interrupted" in said, said
    status = there.cli("import", "copy", "--status")
    assert MIB <= status["position"] <= 3 * MIB, status
    there.stop()
    there.start()
    assert there.cli("import", "copy", "--status") == status, "kept over a restart"
    with connection(there.uri("copy")) as h:
        refused((errno.EPERM, errno.EROFS, errno.EIO), h.pwrite, bytes(512), 0)
    rest = t.dir / "rest"
    here.cli("export", "db@a", "--start", status["position"], "--file", rest)
    assert rest.stat().st_size < whole.stat().st_size
    assert there.cli("import", "copy", "--file", rest)["name"] == "a"
    assert there.cli("import", "copy", "--status") is None
    there.cli("import", "copy", "--file", whole, code=CONFLICT)
    assert there.cli("import", "copy", "--file", part)["name"] == "b"
    for name in "ab":
        assert get(there, f"copy@{name}", 8 * MIB) == get(here, f"db@{name}", 8 * MIB), name
    put(there, "copy", bytes(512))
    there.check()
    # By a pipe.
    environment = {**os.environ, "HINDCAST_SOCKET": str(here.api)}
    with subprocess.Popen([str(binary()), "export", "db@b"], env=environment, stdout=subprocess.PIPE) as sender:
        run(binary(), "import", "piped", env={**os.environ, "HINDCAST_SOCKET": str(there.api)}, stdin=sender.stdout)
        assert sender.wait() == 0
    assert get(there, "piped@b", 8 * MIB) == get(here, "db@b", 8 * MIB)


@test(hindcast_only=True)
def rollback_and_its_undoing(t):
    """Back, and forth again, while newer snapshots stay; clients are told, or are in the way."""
    server = t.server()
    server.create("db", 8 * MIB)
    contents = {name: pattern(name, MIB) for name in ("one", "two", "three")}
    for name, data in contents.items():
        put(server, "db", data)
        server.cli("snapshot", "create", f"db@{name}")
    with connection(server.uri("db")) as h:
        said = server.cli("snapshot", "rollback", "db@one", code=CONFLICT)
        assert "force" in said, said
        assert bytes(h.pread(MIB, 0)) == contents["three"], "nothing happened"
        rolled = server.cli("snapshot", "rollback", "db@one", "--force", "--undo-name", "undo")
        assert rolled["undo"]["name"] == "undo" and rolled["volume"]["origin"] == "db@one"
        try:
            found = bytes(h.pread(MIB, 0))
        except nbd.Error:
            found = None
        assert found is None, "a client goes on without having been told"
    assert get(server, "db", MIB) == contents["one"]
    assert names(server) == ["one", "two", "three", "undo"]
    for name, data in (*contents.items(), ("undo", contents["three"])):
        assert get(server, f"db@{name}", MIB) == data, name
    put(server, "db", pattern(9, MIB))
    server.check()
    assert get(server, "db", MIB) == pattern(9, MIB)
    # A connection's end is noticed a moment after the client has gone.
    unused = lambda: server.show("db")["handles"] == 0
    wait_for("the connection's end", unused)
    server.cli("snapshot", "rollback", "db@undo")
    assert get(server, "db", MIB) == contents["three"]
    assert len(names(server)) == 5, "each rollback keeps what was"
    server.cli("snapshot", "rollback", "db@none", code=NOT_FOUND)
    server.cli("snapshot", "rollback", "db@one", "--undo-name", "two", code=CONFLICT)
    # The size is a part of the state.
    server.cli("volume", "resize", "db", "--size", "16M")
    wait_for("the connection's end", unused)
    server.cli("snapshot", "rollback", "db@one")
    assert server.show("db")["size"] == 8 * MIB
    server.check()


@test(hindcast_only=True)
def what_a_rollback_kept_goes_by_itself(t):
    server = t.server()
    server.create("db", MIB)
    server.cli("snapshot", "create", "db@clean")
    server.cli("snapshot", "rollback", "db@clean", "--undo-keep", "0s", code=USAGE)
    for night in range(3):
        put(server, "db", pattern(night, MIB))
        undo = f"night{night}"
        wait_for("the connection's end", lambda: server.show("db")["handles"] == 0)
        rolled = server.cli("snapshot", "rollback", "db@clean", "--undo-name", undo, "--undo-keep", "3s")
        assert rolled["undo"]["expires"] > rolled["undo"]["created"]
    # Labels that people give change nothing; protection does.
    server.cli("snapshot", "label", "db@night1", "of=tests")
    server.cli("snapshot", "protect", "db@night2")
    server.kill()
    server.start()
    assert "expires" in server.cli("snapshot", "show", "db@night1")
    wait_for("their deletion", lambda: names(server) == ["clean", "night2"])
    server.cli("snapshot", "unprotect", "db@night2")
    wait_for("its deletion", lambda: names(server) == ["clean"])
    server.check()


def attentions(session, lun=0):
    """Unit attentions, (ASC, ASCQ), up to the first command that is good."""
    found = []
    for _ in range(10):
        status, sense = session.execute(bytes(6), lun=lun)
        if status == 0:
            return found
        assert sense_of(sense)[0] == UNIT_ATTENTION, sense_of(sense)
        found.append(sense_of(sense)[1:])
    raise AssertionError(f"no end of it: {found}")


@test(hindcast_only=True)
def snapshots_as_luns(t):
    """On demand as targets of their own, and as LUNs of others: read-only, told apart, pinned while in use."""
    served = server(t)
    url = served.create("db", 8 * MIB)
    session = attached(url)
    assert session.write(0, b"A" * 4096)[0] == 0
    served.cli("snapshot", "create", "db@old", "--label", "why=test")
    assert session.write(0, b"B" * 4096)[0] == 0

    by_name = attached(served.url("db:snap:old"))
    assert by_name.read(0, 8) == (0, b"A" * 4096)
    status, sense = by_name.write(0, bytes(512))
    assert status == CHECK_CONDITION and sense_of(sense)[0] == DATA_PROTECT
    assert served.cli("target", "show", "db@old")["luns"][0]["source"] == "db@old"
    listed = [target["name"] for target in served.target("list")]
    assert f"{NAMING_AUTHORITY}:db:snap:old" in listed, "told while it is in use"

    served.target("create", "past")
    served.target("add-lun", "past", "db@old")
    served.target("add-lun", "past", "--lun", "7", "--volume", "db")
    served.target("add-lun", "past", "db@none", code=NOT_FOUND)
    luns = {lun["lun"]: lun for lun in served.target("show", "past")["luns"]}
    assert luns[0]["backing"] == "snapshot" and luns[0]["read_only"] and luns[7]["backing"] == "volume"
    both = attached(served.url("past"))
    both.execute(bytes(6), lun=7)
    attentions(both, 7)
    assert both.read(0, 8) == (0, b"A" * 4096) and both.read(0, 8, lun=7) == (0, b"B" * 4096)

    served.cli("snapshot", "delete", "db@old", code=CONFLICT)
    served.stop()
    served.start()
    both = attached(served.url("past"))
    assert both.read(0, 8) == (0, b"A" * 4096), "mapped over a restart"
    served.cli("snapshot", "delete", "db@old", "--force")
    assert [lun["lun"] for lun in served.target("show", "past")["luns"]] == [7]

    # A name that iSCSI can't say: its identity does.
    made, = served.cli("snapshot", "create", "db@UPPER_case")
    identity = made["uuid"].replace("-", "")
    session = attached(served.url(f"snap:{identity}"))
    assert session.read(0, 8) == (0, b"B" * 4096)
    served.cli("snapshot", "delete", "db@UPPER_case")
    assert session.read(0, 8) == (0, b"B" * 4096), "deleted from sight, read on"
    session.close()
    time.sleep(0.1)
    missing = Initiator(url.host, url.port)
    answer = missing.login(INITIATOR, f"{NAMING_AUTHORITY}:db:snap:old")
    assert (answer.bhs[36], answer.bhs[37]) == (2, 3), "not found"
    missing.close()
    both.close()
    served.check()


@test(hindcast_only=True)
def rollback_under_initiators(t):
    """Refused; forced, initiators get unit attentions before anything else, and reservations stay."""
    served = server(t)
    url = served.create("db", 8 * MIB)
    one, two = attached(url), attached(url)
    assert one.write(0, b"A" * 4096)[0] == 0
    served.cli("snapshot", "create", "db@old")
    assert one.write(0, b"B" * 4096)[0] == 0
    # PERSISTENT RESERVE OUT: REGISTER, then WRITE EXCLUSIVE.
    key = struct.pack(">QQ8x", 0, 0xABC)
    assert one.execute(struct.pack(">BB3xI1x", 0x5F, 0, 24), 0x20, 24, key)[0] == 0
    held = struct.pack(">QQ8x", 0xABC, 0)
    assert one.execute(struct.pack(">BBB2xI1x", 0x5F, 1, 1, 24), 0x20, 24, held)[0] == 0
    assert two.write(0, bytes(512))[0] == 0x18, "RESERVATION CONFLICT"

    served.cli("snapshot", "rollback", "db@old", code=CONFLICT)
    assert one.read(0, 8) == (0, b"B" * 4096)
    served.cli("volume", "resize", "db", "--size", "16M")
    attentions(one), attentions(two)
    served.cli("snapshot", "rollback", "db@old", "--force")
    for session in (one, two):
        status, sense = session.read(0, 8)
        assert status == CHECK_CONDITION and sense_of(sense)[0] == UNIT_ATTENTION, "the first that it hears"
        told = {sense_of(sense)[1:], *attentions(session)}
        assert (0x29, 0) in told and (0x3F, 3) in told and (0x2A, 9) in told, told
        assert session.read(0, 8) == (0, b"A" * 4096)
    assert two.write(0, bytes(512))[0] == 0x18, "fencing does not end with a rollback"
    assert one.write(0, b"C" * 4096)[0] == 0
    one.close(), two.close()
    served.check()


@test(hindcast_only=True)
def rollback_under_load(t):
    """Writes in flight at a forced rollback are before it or refused: the volume is exactly the snapshot afterwards."""
    if nbd is None:
        raise Skip("python3-libnbd is not installed for this Python")
    server = t.server()
    server.create("db", 16 * MIB)
    put(server, "db", b"\xAA" * 16 * MIB)
    server.cli("snapshot", "create", "db@clean")
    for n in range(20 if t.long else 5):
        handle = nbd.NBD()
        handle.connect_uri(server.uri("db"))
        data = nbd.Buffer.from_bytearray(bytearray(bytes([n + 1]) * 4096))
        rollback = None
        try:
            for i in range(200_000):
                while handle.aio_in_flight() < 32:
                    handle.aio_pwrite(data, i * 7919 % 4096 * 4096)
                handle.poll(10)
                if i == 500:
                    rollback = subprocess.Popen(
                        [str(binary()), "snapshot", "rollback", "db@clean", "--force", "--undo-name", f"undo{n}"],
                        env={**os.environ, "HINDCAST_SOCKET": str(server.api)}, stdout=subprocess.DEVNULL)
        except nbd.Error:
            pass
        assert rollback is not None and rollback.wait(60) == 0
        assert get(server, "db", 16 * MIB) == b"\xAA" * 16 * MIB
        assert bytes([n + 1]) * 4096 in get(server, f"db@undo{n}", 16 * MIB), "the load wrote nothing"
    server.check()


class Chains:
    """Writers that each write stamp n to one volume and, once that is acknowledged, to the other, then n + 1; the last
    64 stamps of each are kept in a ring. Whatever is frozen at one instant has a prefix of every chain."""

    RING, BLOCK, COUNT = 64, 4096, 8

    def __init__(self, server, volumes):
        self.handles = []
        for volume in volumes:
            for _ in range(self.COUNT):
                handle = nbd.NBD()
                handle.connect_uri(server.uri(volume))
                self.handles.append(handle)
        # Of each chain: the stamp, the volume that it is being written to, the request.
        self.state = [[0, 1, None] for _ in range(self.COUNT)]
        self.acknowledged = [[0, 0] for _ in range(self.COUNT)]

    def turn(self):
        """Sends what is due, takes what is answered."""
        for chain, state in enumerate(self.state):
            if state[2] is not None:
                handle = self.handles[state[1] * self.COUNT + chain]
                handle.poll(0)
                if not handle.aio_command_completed(state[2]):
                    continue
                self.acknowledged[chain][state[1]] = state[0]
            state[1] ^= 1
            state[0] += state[1] == 0
            data = struct.pack("<QQ", chain, state[0]) * (self.BLOCK // 16)
            handle = self.handles[state[1] * self.COUNT + chain]
            state[2] = handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), self.place(chain, state[0]))

    def place(self, chain, stamp):
        return (chain * self.RING + stamp % self.RING) * self.BLOCK

    def newest(self, data, chain):
        """The newest stamp in what was read of a volume; all others of its ring must be the ones right before it."""
        ring = data[chain * self.RING * self.BLOCK:(chain + 1) * self.RING * self.BLOCK]
        stamps = []
        for slot in range(self.RING):
            block = ring[slot * self.BLOCK:(slot + 1) * self.BLOCK]
            assert block == block[:16] * (self.BLOCK // 16), f"a torn block in chain {chain}"
            owner, stamp = struct.unpack("<QQ", block[:16])
            assert stamp == 0 or (owner == chain and stamp % self.RING == slot)
            stamps.append(stamp)
        newest = max(stamps)
        expected = sorted(max(n, 0) for n in range(newest - self.RING + 1, newest + 1))
        assert sorted(stamps) == expected, f"chain {chain} is no prefix: {sorted(stamps)}"
        return newest


@test(limit=300, hindcast_only=True)
def groups_are_one_instant(t):
    """Snapshots of two volumes under writers that go from one to the other: a prefix of all of them, every time."""
    if nbd is None:
        raise Skip("python3-libnbd is not installed for this Python")
    server = t.server(destage_start=25)
    server.create("a", 64 * MIB, "4K")
    server.create("b", 64 * MIB, "16K", "--method", "cow")
    chains = Chains(server, ("a", "b"))
    rounds = 1000 if t.long else 40
    size = chains.COUNT * chains.RING * chains.BLOCK
    moved = 0
    for n in range(rounds):
        for _ in range(200):
            chains.turn()
        before = [list(pair) for pair in chains.acknowledged]
        command = subprocess.Popen([str(binary()), "snapshot", "create", f"a@g{n}", f"b@g{n}"],
                                   env={**os.environ, "HINDCAST_SOCKET": str(server.api)}, stdout=subprocess.DEVNULL)
        while command.poll() is None:
            chains.turn()
        assert command.returncode == 0
        issued = [(s[0], s[0] if s[1] == 1 else s[0] - 1) for s in chains.state]
        a, b = (get(server, f"{volume}@g{n}", size) for volume in "ab")
        for chain in range(chains.COUNT):
            first, second = chains.newest(a, chain), chains.newest(b, chain)
            assert first - 1 <= second <= first, f"round {n}, chain {chain}: a has {first}, b has {second}"
            for found, low, high in zip((first, second), before[chain], issued[chain]):
                assert low <= found <= high, f"round {n}, chain {chain}: {found} is not in {low}..{high}"
            moved += issued[chain][0] - before[chain][0]
        if n % 10 == 9:
            server.cli("snapshot", "delete", "a@*", "b@*")
    assert moved > rounds, "nothing was written while snapshots were taken"
    t.say(f"{rounds} snapshots of two volumes, {moved} stamps written while they were taken")
    for handle in chains.handles:
        while handle.aio_in_flight():
            handle.poll(1000)
        handle.shutdown()
    server.check()


@test(hindcast_only=True)
def hooks_thaw_whatever_happens(t):
    """--before and --after of the command, and those of the server's configuration."""
    server = t.server()
    server.create("db", MIB)
    log = t.dir / "hooks"

    def said():
        text = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return text

    note = lambda what: f"echo {what} >>{log}"
    server.cli("snapshot", "create", "db@a", "--before", note("before"), "--after", note("after"))
    assert said() == ["before", "after"] and names(server) == ["a"]
    server.cli("snapshot", "create", "db@b", "--before", "exit 3", "--after", note("after"), code=FAILED)
    assert said() == ["after"] and names(server) == ["a"]
    start = time.monotonic()
    server.cli("snapshot", "create", "db@b", "--before", "sleep 60", "--after", note("after"), "--freeze-timeout", "1",
               code=FAILED)
    assert said() == ["after"] and names(server) == ["a"] and time.monotonic() - start < 30
    server.cli("snapshot", "create", "db@a", "--before", note("before"), "--after", note("after"), code=CONFLICT)
    assert said() == ["before", "after"]

    # Killed in the middle: thawed all the same.
    frozen = t.dir / "frozen"
    command = subprocess.Popen(
        [str(binary()), "snapshot", "create", "db@b", "--before", f"touch {frozen}; sleep 60", "--after", note("after")],
        env={**os.environ, "HINDCAST_SOCKET": str(server.api)}, stderr=subprocess.DEVNULL)
    wait_for("the freeze", frozen.exists)
    command.kill()
    command.wait()
    wait_for("the thaw", log.exists)
    time.sleep(0.1)
    assert said() == ["after"] and names(server) == ["a"]

    config = t.dir / "hindcast.toml"
    config.write_text(f"[hooks.db]\nbefore = '{note('freeze')}'\nafter = '{note('thaw')}'\ntimeout = 5\n"
                      f"[hooks.log]\nbefore = '{note('freeze-log')}'\nafter = '{note('thaw-log')}'\n")
    server.stop()
    server.args.append(f"--config={config}")
    server.start()
    server.create("log", MIB)
    server.cli("snapshot", "create", "db@c", "log@c")
    assert said() == ["freeze", "freeze-log", "thaw-log", "thaw"]
    server.cli("snapshot", "create", "db@d", "--no-hooks")
    assert said() == [] and names(server) == ["a", "c", "d"]


@test(hindcast_only=True)
def schedules_run(t):
    """Snapshots by time: taken of all volumes at one instant, pruned, kept over restarts, paused and resumed."""
    server = t.server()
    server.create("db", MIB)
    server.create("log", MIB)
    server.create("other", MIB)
    server.cli("schedule", "create", "fast", "db", "log", "--every", "10s", "--keep-last", "1")
    server.cli("schedule", "create", "slow", "db", "--every", "1d", "--keep-daily", "7")
    server.cli("schedule", "create", "fast", "db", "--every", "1h", code=CONFLICT)
    server.cli("schedule", "create", "x", "none", "--every", "1h", code=NOT_FOUND)
    server.cli("schedule", "create", "x", "db", "--every", "1s", code=USAGE)
    server.cli("schedule", "create", "x", "db", "--every", "1h", "--prefix", "a b", code=USAGE)
    said = server.cli("schedule", "create", "x", "db", "--every", "1h", "--prefix", "fast", code=CONFLICT)
    assert "another prefix" in said, said
    server.cli("schedule", "create", "night", "other", "--every", "10s", "--prefix", "nightly", "--keep-last", "1")
    shown = server.cli("schedule", "show", "slow")
    assert shown["next"].endswith("T00:00:00Z") and shown["every"] == 86400 and not shown["paused"]
    first = wait_for("the first snapshot", lambda: names(server), limit=30)
    assert re.fullmatch(r"fast-\d{8}T\d{5}0Z", first[0]), first
    assert names(server, "log") == first
    wait_for("the second to take its place", lambda: names(server) not in (first, []) and len(names(server)) == 1,
             limit=30)
    nightly = wait_for("its first", lambda: names(server, "other"), limit=30)
    assert re.fullmatch(r"nightly-\d{8}T\d{5}0Z", nightly[0]), nightly
    assert server.cli("schedule", "show", "night")["prefix"] == "nightly"
    assert server.cli("schedule", "pause", "fast")["paused"]
    server.stop()
    server.start()
    listed = {s["name"]: s for s in server.cli("schedule", "list")}
    assert listed["fast"]["paused"] and listed["fast"]["next"] is None and listed["slow"]["keep"]["daily"] == 7
    kept = names(server)
    time.sleep(11)
    assert names(server) == kept, "it is paused"
    wait_for("another in its place, by the prefix that was kept",
             lambda: names(server, "other") != nightly and len(names(server, "other")) == 1, limit=30)
    server.cli("volume", "rename", "db", "data")
    changed = server.cli("schedule", "set", "fast", "--keep-last", "2")
    assert changed["volumes"] == ["data", "log"] and changed["keep"]["last"] == 2
    server.cli("schedule", "resume", "fast")
    wait_for("a run after it was resumed", lambda: len(names(server, "data")) == 2, limit=30)
    server.cli("schedule", "delete", "fast")
    assert len(names(server, "data")) == 2, "its snapshots stay"
    server.cli("schedule", "show", "fast", code=NOT_FOUND)
    server.check()


@test(hindcast_only=True)
def schedules_go_by_the_wall_clock(t):
    """Times in a zone: checked, shown with their offset, changed, removed, kept over a restart."""
    server = t.server()
    server.create("db", MIB)
    berlin = ("--tz", "Europe/Berlin")
    night = server.cli("schedule", "create", "night", "db", "--every", "1d", "--at", "2:30", "--on", "wed,Monday", *berlin)
    assert night["wall"] == {"tz": "Europe/Berlin", "at": "02:30", "on": ["mon", "wed"]}, night
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT0[23]:[03]0:00\+0[12]:00", night["next_local"]), night
    for wrong, why in [
        (("--every", "1h", "--at", "02:30"), "number of days"),
        (("--every", "7d", "--at", "02:30"), "the one day"),
        (("--every", "1d", "--between", "08:00-18:00"), "less than a day"),
        (("--every", "1d", "--tz", "Europe/Berlin"), "--at 00:00"),
        (("--every", "1d", "--at", "02:30", "--tz", "Europe/Nowhere"), "Europe/Nowhere"),
        (("--every", "1d", "--at", "25:00"), "02:30"),
        (("--every", "1h", "--on", "someday"), "someday"),
    ]:
        said = server.cli("schedule", "create", "x", "db", *wrong, code=USAGE)
        assert why in said, (wrong, said)
    now = time.gmtime()
    here = f"{now.tm_hour:02}:00-{now.tm_hour + 1:02}:00"
    there = f"{(now.tm_hour + 3) % 24:02}:00-{(now.tm_hour + 3) % 24 + 1:02}:00"
    server.cli("schedule", "create", "now", "db", "--every", "10s", "--between", here, "--tz", "UTC")
    server.cli("schedule", "create", "later", "db", "--every", "10s", "--between", there, "--tz", "UTC")
    if now.tm_min < 58:
        wait_for("a run in the window", lambda: any(n.startswith("now-") for n in names(server)), limit=30)
    assert not any(n.startswith("later-") for n in names(server))
    server.stop()
    server.start()
    changed = server.cli("schedule", "set", "night", "--on", "all")
    assert changed["wall"] == {"tz": "Europe/Berlin", "at": "02:30"}, "the zone and the time stay"
    changed = server.cli("schedule", "set", "night", "--every", "15m", "--at", "none", "--between", "22:00-06:00",
                         "--tz", "America/New_York")
    assert changed["wall"] == {"tz": "America/New_York", "between": "22:00-06:00"}, changed
    assert changed["next_local"][-6:] in ("-05:00", "-04:00"), changed
    changed = server.cli("schedule", "set", "night", "--between", "none")
    assert "wall" not in changed and "next_local" not in changed, changed
    server.check()


if __name__ == "__main__":
    main()
