#!/usr/bin/python3
"""fio writes blocks that carry their own checksum, and reads all of them back."""

from harness import *


def fio(t, uri, *options, check=True):
    """Runs fio's nbd engine."""
    need("fio")
    command = ["fio", "--name=job", "--ioengine=nbd", f"--uri={uri}", "--eta=never", *options]
    return run(*command, check=check, cwd=t.dir, timeout=600)


VERIFY = ("--verify=crc32c", "--verify_fatal=1", "--randrepeat=1", "--randseed=3")


def amount(t, bytes_):
    return bytes_ * (4 if t.long else 1)


@test(limit=240)
def random_sizes(t):
    server = t.server()
    uri = server.create("v", "1G")
    job = ("--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned=0", "--blockalign=512", "--iodepth=16",
           f"--size={amount(t, 192 * MIB)}", *VERIFY)
    fio(t, uri, *job, "--do_verify=1", "--end_fsync=1")
    server.drained()
    server.check()
    fio(t, uri, *job, "--verify_only")


@test(limit=240)
def depths_and_chunks(t):
    server = t.server()
    for chunk in ("512", "4K", "16K", "1M"):
        uri = server.create(f"v{chunk}", "512M", chunk)
        for depth in (1, 64):
            fio(t, uri, "--rw=randwrite", "--bs=4k", f"--iodepth={depth}", f"--size={amount(t, 24 * MIB)}",
                "--do_verify=1", *VERIFY)
        server.drained()
        server.check()
        fio(t, uri, "--rw=randwrite", "--bs=4k", "--iodepth=16", f"--size={amount(t, 24 * MIB)}", "--verify_only",
            *VERIFY)


@test(limit=240)
def several_connections(t):
    """Four jobs, each on its own connection and its own quarter."""
    server = t.server()
    uri = server.create("v", "1G")
    part = amount(t, 48 * MIB)
    fio(t, uri, "--rw=randwrite", "--bsrange=4k-64k", "--iodepth=8", "--numjobs=4", "--thread=1", "--group_reporting",
        f"--size={part}", f"--offset_increment={part}", "--do_verify=1", *VERIFY)


@test(limit=240)
def mixed_with_trims(t):
    server = t.server()
    uri = server.create("v", "512M")
    fio(t, uri, "--rw=randtrimwrite", "--bs=16k", "--iodepth=8", f"--size={amount(t, 96 * MIB)}")
    fio(t, uri, "--rw=randwrite", "--bs=4k", "--iodepth=8", f"--size={amount(t, 48 * MIB)}", "--do_verify=1",
        *VERIFY)
    server.drained()
    server.check()


@test(limit=240)
def finished_writes_survive_a_kill(t):
    """Every write fio saw acknowledged is there after SIGKILL, without any flush."""
    server = t.server()
    uri = server.create("v", "1G")
    for turn in range(10 if t.long else 3):
        job = ("--rw=randwrite", "--bs=4k", "--iodepth=32", f"--size={96 * MIB}", f"--offset={turn * 96 * MIB % GIB}",
               *VERIFY)
        fio(t, uri, *job, "--do_verify=0")
        server.kill()
        server.start()
        fio(t, uri, *job, "--verify_only")
    server.check()


if __name__ == "__main__":
    main()
