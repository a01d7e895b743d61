#!/usr/bin/python3
"""sg3_utils on logical units: another decoder than libiscsi's looks at what we answer. They speak Linux's SG_IO, which
`sg_over_iscsi.c` carries over iSCSI, because a kernel without an initiator has no SCSI devices for them."""

import re

from iscsi import *

MISCOMPARE = 14
RESERVATION_CONFLICT = 24
NOT_READY = 2


class Programs:
    """The programs, on one unit, as one host."""

    def __init__(self, t, url, host=INITIATOR):
        need("cc", "sg_inq")
        library = t.dir / "sg_over_iscsi.so"
        if not library.exists():
            source = pathlib.Path(__file__).resolve().parent / "sg_over_iscsi.c"
            built = run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source, "-liscsi",
                        "-ldl", check=False)
            if "iscsi/iscsi.h" in built.stderr:
                raise Skip("libiscsi's headers are not installed (Debian: libiscsi-dev)")
            assert built.returncode == 0, built.stderr
        self.url = url
        self.environment = {**os.environ, "LD_PRELOAD": str(library), "ISCSI_INITIATOR": host}

    def __call__(self, program, *args, code=0, after=()):
        """Runs one; it must end with `code`; returns what it printed."""
        done = run(program, *args, self.url, *after, check=False, env=self.environment, timeout=60)
        assert done.returncode == code, f"{program} {args}: {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def unit(t, size=64 * MIB):
    served = server(t)
    return served, served.create("v", size)


def expect(text, *patterns):
    for pattern in patterns:
        assert re.search(pattern, text, re.MULTILINE), f"no {pattern!r} in\n{text}"


@test(hindcast_only=True)
def what_the_unit_says_of_itself(t):
    _, url = unit(t)
    sg = Programs(t, url)
    expect(sg("sg_inq"), "SPC-4", "Vendor identification: HINDCAST", "3PC=1", "CmdQue=1", "RMB=0", "TPGS=1")
    pages = sg("sg_vpd", "-a")
    expect(pages, "designator type: NAA", "vendor id: HINDCAST", "Target port group: 0x1", "Block limits",
           r"LBPU\): 1", r"LBPWS\): 1", r"LBPWS10\): 1", r"LBPRZ\): 1", "thin provisioned", "Non-rotating",
           r"Optimal unmap granularity: 32 ", "Extended copy")
    assert "illegal" not in pages.lower() and "unable to decode" not in pages, pages
    expect(sg("sg_readcap", "-l"), "lbpme=1, lbprz=1", "Device size: 67108864 bytes")
    expect(sg("sg_luns"), "1 lun entry")
    expect(sg("sg_modes", "-a"), "Caching", "Control", "Read-Write error recovery", "WP=0, DpoFua=1")
    expect(sg("sg_logs", "-a"), "Logical block provisioning page", "Available LBA mapping threshold resource count: [1-9]")
    expect(sg("sg_requests"), "No Sense")
    expect(sg("sg_rtpg", "-d"), r"active/optimized", "target port count : 01")
    commands = sg("sg_opcodes")
    expect(commands, "Compare and write", "Orwrite", "Write atomic", "Unmap", "Get LBA status", "Extended copy",
           "Persistent reserve out, register and move", "Sanitize, overwrite", "Report target port groups")
    expect(sg("sg_opcodes", "--tmf"), "Abort task set", "Clear task set", "Logical unit reset")
    expect(sg("sg_opcodes", "--opcode=0x28", "--rctd"), "Read")
    expect(sg("sg_copy_results", "-p"), "Maximum target descriptor count: [1-9]")


@test(hindcast_only=True)
def blocks_and_their_provisioning(t):
    served, url = unit(t)
    sg = Programs(t, url)
    data, back = t.dir / "blocks", t.dir / "back"
    data.write_bytes(os.urandom(64 * KIB))
    one, pair = t.dir / "one", t.dir / "pair"
    one.write_bytes(data.read_bytes()[:512])
    pair.write_bytes(one.read_bytes() + b"\x33" * 512)
    write, read = ("2a", *"00 00 00 00 00 00 00 80 00".split()), ("28", *"00 00 00 00 00 00 00 80 00".split())
    sg("sg_raw", "-s", 64 * KIB, "-i", data, after=write)
    sg("sg_raw", "-r", 64 * KIB, "-o", back, after=read)
    assert back.read_bytes() == data.read_bytes()
    sg("sg_verify", "-l", 0, "-c", 1, "-n", 512, "-i", one)
    expect(sg("sg_verify", "-l", 1, "-c", 1, "-n", 512, "-i", one, code=MISCOMPARE), "LBA 0x1")
    sg("sg_sync")
    expect(sg("sg_get_lba_status", "-l", 0), r"blocks: +128 +mapped")
    sg("sg_unmap", "--force", "-l", 32, "-n", 32)
    sg("sg_write_same", "--unmap", "--16", "--lba=64", "--num=32")
    sg("sg_raw", "-r", 64 * KIB, "-o", back, after=read)
    expected = bytearray(data.read_bytes())
    expected[16 * KIB:48 * KIB] = bytes(32 * KIB)
    assert back.read_bytes() == expected, "what was unmapped does not read as zeros, or too much was"
    status = sg("sg_get_lba_status", "-l", 32, "-m", 256)
    expect(status, r"LBA: 0x0*20 +blocks: +64 +deallocated", r"LBA: 0x0*60 +blocks: +32 +mapped")
    sg("sg_compare_and_write", "-l", 0, "-n", 1, "-x", 1024, "-i", pair)
    assert "MISCOMPARE" in sg("sg_compare_and_write", "-l", 0, "-n", 1, "-x", 1024, "-i", pair, code=MISCOMPARE).upper()
    served.check()
    sg("sg_raw", "-r", 64 * KIB, "-o", back, after=read)
    expected[:512] = b"\x33" * 512
    assert back.read_bytes() == expected, "after a restart"


@test(hindcast_only=True)
def persistent_reservations_of_two_hosts(t):
    """Registered, reserved, in each other's way, preempted; and kept through a kill with APTPL."""
    served, url = unit(t)
    one, two = Programs(t, url), Programs(t, url, OTHER_INITIATOR)
    write = ("2a", *"00 00 00 00 00 00 00 01 00".split())
    data = t.dir / "blocks"
    data.write_bytes(bytes(512))
    expect(one("sg_persist", "-n", "-i", "-c"), r"PTPL_C\): 1", r"ATP_C\): 1", "Write Exclusive, registrants only: 1")
    one("sg_persist", "-n", "-o", "-G", "-S", "0xabc", "-Z")
    two("sg_persist", "-n", "-o", "-G", "-S", "0xdef", "-Z")
    expect(one("sg_persist", "-n", "-i", "-k"), "2 registered reservation keys", "0xabc", "0xdef")
    one("sg_persist", "-n", "-o", "-R", "-K", "0xabc", "-T", 1)
    expect(two("sg_persist", "-n", "-i", "-r"), "Key=0xabc", "Write Exclusive")
    two("sg_raw", "-s", 512, "-i", data, after=write, code=RESERVATION_CONFLICT)
    one("sg_raw", "-s", 512, "-i", data, after=write)
    expect(two("sg_persist", "-n", "-i", "-s"), f"{INITIATOR},i,0x", f"{OTHER_INITIATOR},i,0x", "<< Reservation holder >>")
    served.kill()
    served.start()
    expect(two("sg_persist", "-n", "-i", "-r"), "Key=0xabc")
    two("sg_raw", "-s", 512, "-i", data, after=write, code=RESERVATION_CONFLICT)
    two("sg_persist", "-n", "-o", "-P", "-K", "0xdef", "-S", "0xabc", "-T", 1)
    two("sg_raw", "-s", 512, "-i", data, after=write)
    one("sg_raw", "-s", 512, "-i", data, after=write, code=RESERVATION_CONFLICT)
    two("sg_persist", "-n", "-o", "-C", "-K", "0xdef")
    one("sg_raw", "-s", 512, "-i", data, after=write)
    expect(one("sg_persist", "-n", "-i", "-k"), "registered")


@test(hindcast_only=True)
def stopped_and_protected(t):
    _, url = unit(t)
    sg = Programs(t, url)
    sg("sg_turs")
    sg("sg_start", "--stop")
    sg("sg_turs", code=NOT_READY)
    sg("sg_start", "--start")
    sg("sg_turs")
    sg("sg_wr_mode", "--page=0xa", "--contents=0a,0a,02,10,08,00,00,00,ff,ff,00,00")
    expect(sg("sg_modes", "-a"), "WP=1")
    write = ("2a", *"00 00 00 00 00 00 00 01 00".split())
    data = t.dir / "blocks"
    data.write_bytes(bytes(512))
    # Exit code 7: DATA PROTECT.
    sg("sg_raw", "-s", 512, "-i", data, after=write, code=7)
    sg("sg_wr_mode", "--page=0xa", "--contents=0a,0a,02,10,00,00,00,00,ff,ff,00,00")
    sg("sg_raw", "-s", 512, "-i", data, after=write)


if __name__ == "__main__":
    main()
