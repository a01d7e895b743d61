#!/usr/bin/python3
"""The tools people use, on `iscsi://` URLs: qemu-img, qemu-io, and those of libiscsi."""

import re
import struct

from images import *
from iscsi import *
from iscsi_wire import READ, Closed, Initiator, sense_of


# Others are not decoded by iscsi-inq of libiscsi 1.19.
KNOWN_TO_ISCSI_INQ = (0x00, 0x80, 0x83, 0xB0, 0xB1, 0xB2)


def raw(url):
    """qemu's arguments for a raw image there."""
    return ["-f", "raw", str(url)]


@test(limit=180)
def qemu_img_in_and_out(t):
    """An image in, out again by another portal, and after a restart: the same bytes."""
    need_qemu_iscsi()
    image = make_image(t)
    served = server(t)
    served.create("v", SIZE)
    by = [served.url("v", portal) for portal in (0, 1)]
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, by[0])
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, by[1])

    def copy_out(name, source):
        out = t.dir / name
        run("qemu-img", "convert", *raw(source)[:2], "-O", "raw", source, out)
        assert sha256(out) == sha256(image), f"{name}: the copy differs"
        return out

    copy_out("at once", by[1])
    served.drained()
    copy_out("in place", by[0])
    served.check()
    out = copy_out("after a restart", by[0])
    run("e2fsck", "-fn", out)
    if not PEER:
        used = image.stat().st_blocks * 512
        assert served.allocated("v") < used * 1.3 + 16 * MIB, "zeros of a sparse image took space"
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", by[0], t.dir / "v.qcow2")
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", image, t.dir / "v.qcow2")


@test(limit=180, hindcast_only=True)
def one_volume_over_both_protocols(t):
    """What comes in by iSCSI goes out by NBD, and the other way round."""
    need_qemu_iscsi()
    image = make_image(t)
    served = server(t)
    url = served.create("v", SIZE)
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, url)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, served.uri("v"))
    run("qemu-io", "-f", "raw", "-c", "write -P 0x5a 100M 3M", "-c", "flush", served.uri("v"))
    expect_no_mismatch(run("qemu-io", "-f", "raw", "-c", "read -P 0x5a 100M 3M", url))


@test(limit=120)
def qemu_io_patterns(t):
    need_qemu_iscsi()
    served = server(t)
    url = served.create("v", SIZE)
    expect_no_mismatch(run("qemu-io", *raw(url), *script(WRITES)))
    expect_no_mismatch(run("qemu-io", *raw(url), *script(READS)))
    served.kill()
    served.start()
    expect_no_mismatch(run("qemu-io", *raw(url), *script(READS)))
    wrong = run("qemu-io", *raw(url), "-c", "read -P 0x12 0 4k", check=False)
    assert "verification failed" in wrong.stdout, "qemu-io would not notice a difference"


@test(limit=120)
def qemu_io_with_header_digests(t):
    """libiscsi's own header digests, asked for by qemu."""
    need_qemu_iscsi()
    served = server(t)
    url = served.create("v", SIZE)
    options = ["--image-opts", url.blockdev(header_digest="crc32c")]
    expect_no_mismatch(run("qemu-io", *options, *script(WRITES)))
    expect_no_mismatch(run("qemu-io", *options, *script(READS)))
    expect_no_mismatch(run("qemu-io", *raw(url), *script(READS)))


@test(limit=120, hindcast_only=True)
def discarded_space_comes_back(t):
    need_qemu_iscsi()
    served = server(t)
    url = served.create("v", SIZE)
    expect_no_mismatch(run("qemu-io", *raw(url), "-c", "write -P 1 0 64M", "-c", "flush"))
    served.drained()
    full = served.allocated("v")
    assert full >= 64 * MIB, full
    expect_no_mismatch(run("qemu-io", "--discard=unmap", *raw(url), "-c", "discard 0 32M", "-c", "write -z -u 32M 16M",
                           "-c", "flush"))

    def trimmed():
        served.drained()
        return served.allocated("v") <= full - 48 * MIB
    wait_for("less allocated after UNMAP and WRITE SAME with UNMAP", trimmed, limit=20)
    expect_no_mismatch(run("qemu-io", *raw(url), "-c", "read -P 0 0 48M", "-c", "read -P 1 48M 16M"))
    run("qemu-img", "map", "--output=json", *raw(url))
    holes = [e for e in json.loads(run("qemu-img", "map", "--output=json", *raw(url))) if e["zero"] or not e["data"]]
    assert sum(e["length"] for e in holes) >= 48 * MIB, f"GET LBA STATUS shows no holes: {holes}"


@test()
def iscsi_ls_lists_targets_and_units(t):
    need("iscsi-ls")
    served = server(t)
    for name in ("a", "b"):
        served.create(name, 64 * MIB)
    for portal in (0, 1):
        port = served.ports[portal]
        listed = run("iscsi-ls", f"iscsi://127.0.0.1:{port}")
        names = re.findall(r"^Target:(\S+) Portal:(\S+),(\d+)", listed, re.MULTILINE)
        assert {name for name, _, _ in names} == {f"{NAMING_AUTHORITY}:a", f"{NAMING_AUTHORITY}:b"}, listed
        portals = {address for _, address, _ in names}
        assert f"127.0.0.1:{port}" in portals, f"discovery does not name the portal it came by: {listed}"
        for _, address, _ in names:
            assert int(address.rsplit(":", 1)[1]) in served.ports, listed
    if PEER:
        return
    units = run("iscsi-ls", "-s", f"iscsi://127.0.0.1:{served.ports[0]}")
    assert len(re.findall(r"Lun:0 +Type:DIRECT_ACCESS \(Size:6[34]M\)", units)) >= 2, units
    served.cli("volume", "delete", "--now", "b")
    listed = run("iscsi-ls", f"iscsi://127.0.0.1:{served.ports[0]}")
    assert ":a " in listed and ":b " not in listed, listed


@test(hindcast_only=True)
def iscsi_inq_reads_every_page(t):
    need("iscsi-inq", "iscsi-readcapacity16")
    served = server(t)
    url = served.create("v", 64 * MIB)
    standard = run("iscsi-inq", url)
    for line in ("Peripheral Device Type:DIRECT_ACCESS", "Vendor:HINDCAST", "CmdQue:1", "Removable:0", "3PC:1"):
        assert line in standard, f"no {line}: {standard}"
    pages = run("iscsi-inq", "-e", 1, "-c", 0, url)
    codes = [int(code, 16) for code in re.findall(r"Page:0x([0-9a-f]{2})", pages)]
    for wanted in KNOWN_TO_ISCSI_INQ:
        assert wanted in codes, f"no page {wanted:#x}: {pages}"
    answers = {code: run("iscsi-inq", "-e", 1, "-c", code, url) for code in KNOWN_TO_ISCSI_INQ}
    session = Initiator(url.host, url.port)
    session.login(INITIATOR, url.target)
    session.settle()
    for code in codes:
        status, page = session.execute(struct.pack(">BBBHB", 0x12, 1, code, 1024, 0), READ, 1024)
        assert status == 0 and page[1] == code and int.from_bytes(page[2:4], "big") > 0, (hex(code), page[:64].hex())
    session.close()
    identity = answers[0x83]
    assert "NAA" in identity and "T10" in identity, identity
    assert re.search(r"Serial.*\w{8}", answers[0x80]), answers[0x80]
    assert re.search(r"maximum unmap lba count:[1-9]", answers[0xB0]), answers[0xB0]
    assert re.search(r"maximum compare and write length:[1-9]", answers[0xB0]), answers[0xB0]
    assert "lbpu:1" in answers[0xB2] and "lbprz:1" in answers[0xB2], answers[0xB2]
    capacity = run("iscsi-readcapacity16", url)
    assert f"Total size:{64 * MIB}" in capacity and "LBPME:1 LBPRZ:1" in capacity, capacity
    served.kill()
    served.start()
    assert run("iscsi-inq", "-e", 1, "-c", 0x83, url) == identity, "another identity after a restart"
    served.create("w", 64 * MIB)
    assert run("iscsi-inq", "-e", 1, "-c", 0x83, served.url("w")) != identity, "two units, one identity"


@test(hindcast_only=True)
def iscsi_swp_protects(t):
    need("iscsi-swp")
    need_qemu_iscsi()
    served = server(t)
    url = served.create("v", 64 * MIB)
    assert "SWP:0" in run("iscsi-swp", url)
    run("iscsi-swp", "--swp=on", url)
    assert "SWP:1" in run("iscsi-swp", url)
    refused = run("qemu-io", *raw(url), "-c", "write -P 7 0 4k", check=False)
    assert refused.returncode != 0 or "failed" in refused.stdout + refused.stderr, "written to a protected unit"
    expect_no_mismatch(run("qemu-io", "-r", *raw(url), "-c", "read -P 0 0 4k"))
    run("iscsi-swp", "--swp=off", url)
    expect_no_mismatch(run("qemu-io", *raw(url), "-c", "write -P 7 0 4k", "-c", "read -P 7 0 4k"))


@test(limit=60)
def iscsi_perf_reads(t):
    need("iscsi-perf")
    served = server(t)
    url = served.create("v", 64 * MIB)
    for args in (("-r", "-m", 1), ("-r", "-m", 32), ("-b", 512, "-m", 8)):
        printed = run("iscsi-perf", *args, "-t", 2, url)
        average = re.search(r"iops average (\d+)", printed)
        assert average and int(average[1]) > 100 and "finished." in printed, printed


@test(hindcast_only=True)
def growing_and_deleting_are_noticed(t):
    """Sessions that are open meet unit attentions, not stale sizes; a deleted volume's unit is gone."""
    served = server(t)
    url = served.create("v", 64 * MIB)
    session = Initiator(url.host, url.port)
    session.login(INITIATOR, url.target)
    session.settle()
    capacity = bytes([0x25]) + bytes(9)
    last = lambda: int.from_bytes(session.execute(capacity, READ, 8)[1][:4], "big")
    before = last()
    served.cli("volume", "resize", "v", "--size", 128 * MIB)
    status, sense = session.execute(bytes(6))
    assert status == 2 and sense_of(sense) == (6, 0x2A, 0x09), (status, sense.hex())
    session.settle()
    assert last() + 1 == 2 * (before + 1), "the old capacity"
    served.cli("volume", "delete", "--now", "v", code=CONFLICT)
    served.cli("volume", "delete", "--now", "v", "--force")
    try:
        answers = [session.execute(bytes(6)) for _ in range(3)]
        assert answers[-1][0] == 2, "the unit of a deleted volume is still ready"
    except (Closed, ConnectionError):
        pass  # Its target is gone too, and with it the session.
    refused = Initiator(url.host, url.port).login(INITIATOR, url.target)
    assert (refused.bhs[36], refused.bhs[37]) == (2, 3), "not told that the target does not exist (RFC 7143 11.13.5)"


if __name__ == "__main__":
    main()
