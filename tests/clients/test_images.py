#!/usr/bin/python3
"""Real images in and out through the tools people use: nbdcopy, nbdinfo, qemu-img, qemu-io."""

import re

from images import *


@test(limit=180)
def nbdcopy_in_and_out(t):
    need("nbdcopy")
    image = make_image(t)
    server = t.server()
    for name, chunk in (("a", "4K"), ("b", "64K")) if not PEER else (("a", None),):
        uri = server.create(name, SIZE, chunk)
        run("nbdcopy", "--flush", image, uri)
        copies = [("at once", t.dir / "out1")]
        run("nbdcopy", uri, copies[0][1])
        server.drained()
        copies.append(("in place", t.dir / "out2"))
        run("nbdcopy", uri, copies[1][1])
        server.check()
        copies.append(("after a restart", t.dir / "out3"))
        run("nbdcopy", uri, copies[2][1])
        for when, path in copies:
            assert sha256(path) == sha256(image), f"{name}, {when}: the copy differs"
        run("e2fsck", "-fn", copies[2][1])
        assert server.allocated(name) <= SIZE, server.allocated(name)


@test(limit=180)
def copies_between_volumes(t):
    need("nbdcopy", "qemu-img")
    image = make_image(t)
    server = t.server()
    one, two = server.create("one", SIZE), server.create("two", SIZE, "64K")
    run("nbdcopy", image, one)
    run("nbdcopy", "--connections=4", one, two)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", one, two)
    sparse = server.allocated("two")
    used = image.stat().st_blocks * 512
    assert sparse < used * 1.3 + 16 * MIB, f"a sparse copy allocates {sparse} bytes for {used}"


@test(limit=180)
def qemu_img_convert_and_compare(t):
    need("qemu-img")
    image = make_image(t)
    server = t.server()
    uri = server.create("v", SIZE)
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, uri)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, uri)
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", uri, t.dir / "v.qcow2")
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", image, t.dir / "v.qcow2")
    run("qemu-img", "check", t.dir / "v.qcow2")
    for entry in json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", uri)):
        assert 0 <= entry["start"] < SIZE


@test(limit=120)
def qcow2_on_a_volume(t):
    """qemu puts its own format, with its own metadata writes, on the volume."""
    need("qemu-img", "qemu-io")
    server = t.server()
    uri = server.create("v", SIZE)
    run("qemu-img", "create", "-q", "-f", "qcow2", uri, "128M")
    for i in range(20):
        run("qemu-io", "-f", "qcow2", "-c", f"write -P {i + 1} {i * 5}M 300k", uri)
    run("qemu-img", "check", "-f", "qcow2", uri)
    for i in range(20):
        expect_no_mismatch(run("qemu-io", "-f", "qcow2", "-c", f"read -P {i + 1} {i * 5}M 300k", uri))


@test(limit=120)
def qemu_io_patterns(t):
    need("qemu-io")
    server = t.server()
    uri = server.create("v", SIZE)
    expect_no_mismatch(run("qemu-io", "-f", "raw", *script(WRITES), uri))
    expect_no_mismatch(run("qemu-io", "-f", "raw", *script(READS), uri))
    server.kill()
    server.start()
    expect_no_mismatch(run("qemu-io", "-f", "raw", *script(READS), uri))
    wrong = run("qemu-io", "-f", "raw", "-c", "read -P 0x12 0 4k", uri, check=False)
    assert "verification failed" in wrong.stdout, "qemu-io would not notice a difference"


@test()
def nbdinfo_tells(t):
    need("nbdinfo", "nbdcopy")
    server = t.server()
    uri = server.create("v", SIZE)
    server.create("w", 2 * SIZE)
    document = json.loads(run("nbdinfo", "--json", uri))
    export = document["exports"][0]
    assert document["protocol"] == "newstyle-fixed" and document["structured"]
    assert export["export-size"] == SIZE
    for what in ("can_cache", "can_df", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"):
        assert export[what], what
    listed = json.loads(run("nbdinfo", "--list", "--json", server.uri("")))
    assert sorted(e["export-name"] for e in listed["exports"]) == ["v", "w"]
    assert int(run("nbdinfo", "--size", uri)) == SIZE
    assert run("nbdinfo", "--can", "flush", uri, check=False).returncode == 0
    assert run("nbdinfo", "--is", "readonly", uri, check=False).returncode == 2
    data = t.dir / "one"
    data.write_bytes(os.urandom(MIB))
    run("qemu-io", "-f", "raw", "-c", f"write -s {data} 64M 1M", uri)
    server.drained()
    entries = json.loads(run("nbdinfo", "--map", "--json", uri))
    assert sum(e["length"] for e in entries) == SIZE
    kinds = {e["offset"]: e["type"] for e in entries}
    assert kinds[0] == 3 and kinds[64 * MIB] == 0 and kinds[65 * MIB] == 3, entries
    totals = run("nbdinfo", "--map", "--totals", uri)
    assert re.search(r"^\s*1048576\s.*data", totals, re.MULTILINE), totals


if __name__ == "__main__":
    main()
