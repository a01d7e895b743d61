#!/usr/bin/python3
"""What is left of a pool that does not open: listed, copied, and served, while no part of it changes."""

import contextlib
import errno
import shutil

import iscsi
from harness import *
from libnbd import *

SMALL, LARGE = 32 * MIB, 96 * MIB


def salvage(server, *args, code):
    """`hindcast salvage -o json`; its report."""
    done = run(binary(), "salvage", "--data", server.dir, "-o", "json", *args, check=False, timeout=300)
    assert done.returncode == code, f"salvage {args}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert (code == DONE) == (not done.stderr.strip()), done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def files(server):
    """What no salvage may change. The sockets are the server's own."""
    return {name: digest for name, digest in tree_checksums(server.dir).items() if not name.endswith(".sock")}


@contextlib.contextmanager
def untouched(server):
    before = files(server)
    yield
    after = files(server)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed, f"changed: {changed}"


def device(report, name):
    return next(d for d in report["devices"] if (d["volume"], d["snapshot"]) == name)


def read_map(path):
    """The ranges of a map of ddrescue: (offset, length, status)."""
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return [(int(at, 0), int(length, 0), status) for at, length, status in lines[1:]]


def compare(image, wanted):
    """What the map calls rescued is right, and what it calls bad is a hole; bytes that are bad."""
    data, end, bad = image.read_bytes(), 0, 0
    assert len(data) == len(wanted)
    for at, length, status in read_map(image.with_name(image.name + ".map")):
        assert at == end, f"the map has a gap at {end}"
        end = at + length
        if status == "+":
            assert data[at:end] == wanted[at:end], f"{at}+{length} differs"
        else:
            assert status == "-" and data[at:end] == bytes(length), f"{at}+{length} is {status}"
            bad += length
    assert end == len(wanted)
    return bad


def two_physical_volumes(t, kind=Hindcast):
    """A small volume on the first physical volume, and a large one that lies on both. The server is stopped."""
    server = kind(t.dir / "data", pool="80M", journal="64M")
    t.defer(server.take_down)
    server.start()
    content = {"small": pattern(1, SMALL), "large": pattern(2, LARGE)}
    server.create("small", SMALL)
    put(server, "small", content["small"])
    server.cli("snapshot", "create", "small@then")
    server.drained()
    server.cli("pool", "add", t.dir / "other.pv", "--size", "128M")
    server.create("large", LARGE)
    with connection(server.uri("large")) as h:
        for at in range(0, LARGE, 16 * MIB):
            h.pwrite(content["large"][at:at + 16 * MIB], at)
        h.flush()
    server.drained()
    server.stop()
    return server, content


@test(limit=240, hindcast_only=True)
def a_physical_volume_is_missing(t):
    server, content = two_physical_volumes(t, iscsi.IscsiHindcast)
    with untouched(server):
        report = salvage(server, code=DONE)
    assert report["clean"] and not report["findings"], report
    (t.dir / "other.pv").rename(t.dir / "elsewhere")
    assert "it is missing" in server.refuses_to_start()

    with untouched(server):
        report = salvage(server, code=FAILED)
        assert [f["code"] for f in report["findings"]] == ["pv"], report
        for name in (("small", None), ("small", "then")):
            assert device(report, name)["lost"] == 0, report
        lost = device(report, ("large", None))
        assert 16 * MIB < lost["lost"] < LARGE and lost["readable"] + lost["lost"] == LARGE, lost
        assert all("other.pv can't be used: it is missing" in r["reason"] for r in lost["ranges"])
        table = run(binary(), "salvage", "--data", server.dir, check=False).stdout
        assert "large" in table and "LOST OF" in table, table

        salvage(server, "--all", "--to", t.dir / "out", code=FAILED)
        # A volume that can't be copied keeps no other one from being copied.
        (t.dir / "some").mkdir()
        (t.dir / "some" / "large.img").touch()
        report = salvage(server, "--all", "--to", t.dir / "some", code=FAILED)
        assert [f["volume"] for f in report["failed"]] == ["large"] and "the file exists" in report["failed"][0]["error"]
        assert [c["volume"] for c in report["copies"]] == ["small"], report
        assert compare(t.dir / "some" / "small.img", content["small"]) == 0
        salvage(server, "small@then", "--to", t.dir / "then.img", code=DONE)
        salvage(server, "small@then", "--to", t.dir / "then.img", code=CONFLICT)
        salvage(server, "none", "--to", t.dir / "none.img", code=NOT_FOUND)
    assert compare(t.dir / "out" / "small.img", content["small"]) == 0
    assert compare(t.dir / "then.img", content["small"]) == 0
    assert compare(t.dir / "out" / "large.img", content["large"]) == lost["lost"]
    assert (t.dir / "out" / "large.img").stat().st_blocks * 512 < LARGE - lost["lost"] + MIB, "lost ranges are holes"

    # The disk is somewhere else: nothing is lost.
    with untouched(server):
        moved = f"{t.dir / 'other.pv'}={t.dir / 'elsewhere'}"
        assert salvage(server, "--moved", moved, code=DONE)["clean"]

    server.args.append("--salvage")
    with untouched(server):
        server.start()
        health = server.cli("status")["health"]
        codes = {problem["code"] for problem in health["problems"]}
        assert health["state"] == "poisoned" and codes >= {"poisoned", "salvage"}, health
        assert get(server, "small", SMALL) == content["small"]
        with connection(server.uri("large")) as h:
            for r in lost["ranges"][:50]:
                refused(errno.EIO, h.pread, 4096, r["offset"])
            good = [(at, length) for at, length, status in read_map(t.dir / "out" / "large.img.map") if status == "+"]
            for at, length in good[:50]:
                length = min(length, MIB)
                assert h.pread(length, at) == content["large"][at:at + length]
        with connection(server.uri("small"), strict=False) as h:
            refused((errno.EPERM, errno.EROFS, errno.EIO), h.pwrite, bytes(4096), 0)
        server.cli("snapshot", "create", "small@no", code=(FAILED, CONFLICT))
        server.cli("pool", "backup-metadata", code=(FAILED, CONFLICT))
        if shutil.which("qemu-io") and "iscsi" in run("qemu-img", "--help"):
            url = server.url("small")
            one = run("qemu-io", "-r", "-f", "raw", "-c", "read -v 0 512", url)
            assert content["small"][:8].hex(" ") in one, one
        server.stop()
    server.args.remove("--salvage")

    # The disk comes back: nothing was lost by all that.
    (t.dir / "elsewhere").rename(t.dir / "other.pv")
    server.start()
    assert get(server, "large", 16 * MIB) == content["large"][:16 * MIB]
    server.check()


@test(limit=240, hindcast_only=True)
def the_catalog_is_gone(t):
    server, content = two_physical_volumes(t)
    server.start()
    old = server.cli("pool", "backup-metadata", "--to", t.dir / "old")["path"]
    put(server, "small", pattern(3, MIB))
    server.create("late", 16 * MIB)
    server.cli("target", "create", "iqn.2026-11.example:late")
    server.cli("target", "add-lun", "iqn.2026-11.example:late", "--volume", "late")
    server.drained()
    server.stop()
    content["small"] = pattern(3, MIB) + content["small"][MIB:]
    (server.dir / "catalog.redb").rename(t.dir / "catalog")
    assert "catalog is lost" in server.refuses_to_start()
    with untouched(server):
        report = salvage(server, code=DONE)
        assert report["catalog"]["source"] == "backup" and report["catalog"]["exact"], report
        salvage(server, "--all", "--to", t.dir / "out", code=DONE)
        for name, wanted in content.items():
            assert compare(t.dir / "out" / f"{name}.img", wanted) == 0
        # One of an earlier time may be wrong anywhere, and says so.
        report = salvage(server, "--from", old, code=FAILED)
        assert not report["catalog"]["exact"] and "another volume's data" in report["doubts"][0], report
        table = run(binary(), "salvage", "--data", server.dir, "--from", old, check=False).stdout
        assert "OF AN EARLIER TIME" in table and "IN DOUBT" in table, table
    # What neither backup nor journal know is not known to the server: its targets stay as they are.
    (t.dir / "journal").mkdir()
    journal = list(server.dir.glob("journal-*"))
    for file in journal:
        file.rename(t.dir / "journal" / file.name)
    server.args.extend(["--salvage", "--salvage-from", old])
    with untouched(server):
        server.start()
        server.cli("volume", "show", "late", code=NOT_FOUND)
        server.stop()
    del server.args[-3:]
    for file in journal:
        (t.dir / "journal" / file.name).rename(file)
    shutil.rmtree(server.dir / "metadata")
    for pv in (server.dir / "pv-0.img", t.dir / "other.pv"):
        with open(pv, "r+b") as file:
            file.seek(64 * KIB)
            file.write(bytes(960 * KIB))
    with untouched(server):
        done = run(binary(), "salvage", "--data", server.dir, check=False)
        assert done.returncode == NOT_FOUND and "no backup" in done.stderr, done
        assert salvage(server, "--from", old, code=FAILED)["doubts"]


@test(limit=240, hindcast_only=True)
def rot_of_the_catalog_and_of_the_journal(t):
    """Wherever a few bytes are damaged, a copy has each byte right, or calls it bad."""
    server, content = two_physical_volumes(t)
    catalog = server.dir / "catalog.redb"
    whole = catalog.read_bytes()
    own, lossy = 0, 0
    for n in range(24):
        at = len(whole) * n // 24 + 2000
        catalog.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1:])
        done = run(binary(), "salvage", "--data", server.dir, "-o", "json", check=False)
        assert done.returncode in (DONE, FAILED) and "panicked" not in done.stderr, done
        report = json.loads(done.stdout)
        assert not report["doubts"], report
        own += report["catalog"]["source"] == "own"
        if done.returncode == DONE:
            continue
        lossy += 1
        out = t.dir / f"out{n}"
        run(binary(), "salvage", "--data", server.dir, "--all", "--to", out, check=False)
        bad = sum(compare(out / f"{name}.img", content[name]) for name in content if (out / f"{name}.img").exists())
        gone = [name for name in content if not (out / f"{name}.img").exists()]
        # A snapshot whose row is lost, name and all, is only found.
        assert bad or gone or report["findings"] or device(report, ("small", "then"))["lost"], report
        shutil.rmtree(out)
    assert own > 12, f"{own} rested on their own catalog, {lossy} had losses"
    catalog.write_bytes(whole)

    for file in server.dir.glob("journal-0*"):
        file.unlink()
    report = salvage(server, code=FAILED)
    assert "journal" in [f["code"] for f in report["findings"]] and not report["doubts"], report
    # What the journal had is lost, though each copy is whole.
    salvage(server, "--all", "--to", t.dir / "out", code=FAILED)
    for name, wanted in content.items():
        assert compare(t.dir / "out" / f"{name}.img", wanted) == 0, "all of it was in place"


if __name__ == "__main__":
    main()
