#!/usr/bin/python3
"""Every NBD command and every error a well-behaved client library can provoke, through libnbd."""

import contextlib
import errno
import random

from harness import *
from libnbd import *

SIZE = 64 * MIB


def extents(handle, offset, length, flags=0):
    """`base:allocation` as a list of (length, flags)."""
    found = []

    def collect(context, _offset, entries, _error):
        assert context == nbd.CONTEXT_BASE_ALLOCATION
        found.extend(zip(entries[::2], entries[1::2]))

    handle.block_status(length, offset, collect, flags)
    return found


def chunks_of(handle, length, offset, flags=0):
    """The pieces of a structured read: (offset, status, data), and the whole content."""
    pieces = []

    def collect(data, at, status, _error):
        pieces.append((at, status, bytes(data)))

    whole = handle.pread_structured(length, offset, collect, flags)
    return pieces, bytes(whole)


@test()
def size_and_capabilities(t):
    server = t.server()
    uri = server.create("v", SIZE)
    with connection(uri) as h:
        assert h.get_size() == SIZE
        assert h.get_protocol() == "newstyle-fixed"
        assert h.get_structured_replies_negotiated()
        for what in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_cache", "can_df"):
            assert getattr(h, what)(), what
        assert not h.is_read_only()
        assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)


@test(hindcast_only=True)
def block_size_constraints(t):
    server = t.server()
    for name, block, chunk in (("small", 512, "16K"), ("large", 4096, "64K")):
        uri = server.create(name, SIZE, chunk, "--block", block)
        with connection(uri) as h:
            assert h.get_block_size(nbd.SIZE_MINIMUM) == block
            assert h.get_block_size(nbd.SIZE_PREFERRED) == server.show(name)["chunk_size"]
            assert h.get_block_size(nbd.SIZE_MAXIMUM) >= 32 * MIB
            assert h.can_fast_zero()


@test()
def random_commands_against_a_model(t):
    """Reads, writes, trims and zeroes of any size at any place: every byte as a plain array has it."""
    server = t.server()
    uri = server.create("v", SIZE)
    model = bytearray(SIZE)
    rng = random.Random(7)
    block = 512
    with connection(uri) as h:
        for step in range(6000 if t.long else 1500):
            length = block * min(int(rng.expovariate(1 / 40)) + 1, 4096)
            offset = rng.randrange(0, (SIZE - length) // block + 1) * block
            kind = rng.random()
            if kind < 0.45:
                data = rng.randbytes(length)
                h.pwrite(data, offset, rng.choice((0, nbd.CMD_FLAG_FUA)))
                model[offset:offset + length] = data
            elif kind < 0.55:
                flags = rng.choice((0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FUA, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA))
                h.zero(length, offset, flags)
                model[offset:offset + length] = bytes(length)
            elif kind < 0.62:
                h.trim(length, offset, rng.choice((0, nbd.CMD_FLAG_FUA)))
                if PEER:
                    # A trim of part of a page need not read as zeros elsewhere.
                    h.zero(length, offset)
                model[offset:offset + length] = bytes(length)
            elif kind < 0.64:
                h.flush()
            else:
                assert h.pread(length, offset) == model[offset:offset + length], f"step {step}: {offset}+{length}"
        for offset in range(0, SIZE, MIB):
            assert h.pread(MIB, offset) == model[offset:offset + MIB], f"at the end: {offset}"
    if not PEER:
        server.drained()
        server.check()
    with connection(uri) as h:
        for offset in range(0, SIZE, MIB):
            assert h.pread(MIB, offset) == model[offset:offset + MIB], f"after a restart: {offset}"


@test()
def structured_reads_and_holes(t):
    server = t.server()
    uri = server.create("v", SIZE)
    data = pattern(1, 64 * KIB)
    with connection(uri) as h:
        h.pwrite(data, MIB)
        pieces, whole = chunks_of(h, 2 * MIB, 0)
        assert whole == bytes(MIB) + data + bytes(MIB - len(data))
        assert {status for _, status, _ in pieces} <= {nbd.READ_DATA, nbd.READ_HOLE}
        if not PEER:
            assert any(status == nbd.READ_HOLE for _, status, _ in pieces), "no hole was reported as one"
        covered = sorted((at, at + len(content)) for at, _, content in pieces)
        end = 0
        for begin, stop in covered:
            assert begin == end, f"a gap or overlap at {end}"
            end = stop
        assert end == 2 * MIB
        pieces, whole = chunks_of(h, 2 * MIB, 0, nbd.CMD_FLAG_DF)
        assert len(pieces) == 1, f"DF, but {len(pieces)} pieces"
        assert whole == bytes(MIB) + data + bytes(MIB - len(data))


@test()
def simple_replies(t):
    server = t.server()
    uri = server.create("v", SIZE)
    data = pattern(2, 64 * KIB)
    with connection(uri, set_request_structured_replies=False) as h:
        assert not h.get_structured_replies_negotiated()
        assert not h.can_df()
        h.pwrite(data, 4096)
        assert h.pread(len(data) + 8192, 0) == bytes(4096) + data + bytes(4096)
        assert not h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)


@test(hindcast_only=True)
def block_status(t):
    server = t.server()
    uri = server.create("v", SIZE, "64K")
    hole = nbd.STATE_HOLE | nbd.STATE_ZERO
    with connection(uri, strict=False) as h:
        assert extents(h, 0, SIZE) == [(SIZE, hole)]
        h.pwrite(pattern(3, 128 * KIB), MIB)
        for moment in ("staged", "in place"):
            found = extents(h, 0, SIZE)
            assert sum(length for length, _ in found) <= SIZE
            assert found[0] == (MIB, hole), f"{moment}: {found}"
            assert found[1] == (128 * KIB, 0), f"{moment}: {found}"
            assert found[2][1] == hole, f"{moment}: {found}"
            server.drained()
        assert extents(h, 0, SIZE, nbd.CMD_FLAG_REQ_ONE) == [(MIB, hole)]
        one = extents(h, MIB + 512, 1024, nbd.CMD_FLAG_REQ_ONE)
        assert len(one) == 1 and 0 < one[0][0] <= 1024 and one[0][1] == 0, one
        h.trim(128 * KIB, MIB)
        server.drained()
        assert extents(h, 0, SIZE)[0][1] == hole
        h.zero(128 * KIB, 2 * MIB, nbd.CMD_FLAG_NO_HOLE)
        server.drained()
        found = extents(h, 2 * MIB, 128 * KIB)
        assert all(not flags & nbd.STATE_HOLE for _, flags in found), f"NO_HOLE left a hole: {found}"
        refused(errno.EINVAL, extents, h, SIZE - 512, 1024)
    bare = nbd.NBD()
    bare.set_strict_mode(0)
    bare.connect_uri(uri)
    refused(errno.EINVAL, bare.block_status, 4096, 0, lambda *_: None)
    assert bare.pread(512, 0) == bytes(512), "the connection must survive"
    bare.shutdown()


@test()
def zeroes_with_every_flag(t):
    server = t.server()
    uri = server.create("v", SIZE)
    flags = {"none": 0, "FUA": nbd.CMD_FLAG_FUA, "NO_HOLE": nbd.CMD_FLAG_NO_HOLE} if nbd else {}
    with connection(uri) as h:
        if h.can_fast_zero():
            flags["FAST_ZERO"] = nbd.CMD_FLAG_FAST_ZERO
            flags["FAST_ZERO|NO_HOLE"] = nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE
        for i, (name, flag) in enumerate(flags.items()):
            base = i * 4 * MIB
            for offset, length in ((0, MIB), (512, 512), (MIB - 512, 1024), (2 * MIB + 1536, 70 * KIB)):
                data = pattern(i, 4 * MIB)
                h.pwrite(data, base)
                try:
                    h.zero(length, base + offset, flag)
                except nbd.Error as error:
                    # Allowed only as the quick answer that a fast zero would not be fast.
                    assert flag & nbd.CMD_FLAG_FAST_ZERO and error.errnum == errno.EOPNOTSUPP, f"{name}: {error.string}"
                    assert h.pread(4 * MIB, base) == data
                    continue
                expected = data[:offset] + bytes(length) + data[offset + length:]
                assert h.pread(4 * MIB, base) == expected, f"{name} {offset}+{length}"


@test()
def flush_fua_cache(t):
    server = t.server()
    uri = server.create("v", SIZE)
    with connection(uri) as h:
        h.flush()
        data = pattern(5, MIB)
        h.pwrite(data, 0, nbd.CMD_FLAG_FUA)
        h.cache(MIB, 0)
        h.cache(4 * MIB, SIZE - 4 * MIB)
        h.flush()
        assert h.pread(MIB, 0) == data
    if not PEER:
        stats = server.show("v")["stats"]
        assert stats["flushes"] >= 2 and stats["writes"] >= 1, stats


@test()
def out_of_range(t):
    server = t.server()
    uri = server.create("v", SIZE)
    with connection(uri, strict=False) as h:
        for offset in (SIZE - 512, SIZE, SIZE + 512, 2**62):
            refused(errno.EINVAL, h.pread, 1024, offset)
            refused(errno.ENOSPC, h.pwrite, bytes(1024), offset)
            refused((errno.EINVAL, errno.ENOSPC), h.zero, 1024, offset)
            refused(errno.EINVAL, h.trim, 1024, offset)
            refused(errno.EINVAL, h.cache, 1024, offset)
            refused(errno.EINVAL, chunks_of, h, 1024, offset)
        h.pwrite(pattern(6, 512), SIZE - 512)
        assert h.pread(512, SIZE - 512) == pattern(6, 512), "the connection must survive"


@test(hindcast_only=True)
def offsets_that_overflow(t):
    server = t.server()
    uri = server.create("v", SIZE)
    with connection(uri, strict=False) as h:
        top = 2**64 - 512
        refused(errno.EINVAL, h.pread, 512, top)
        refused(errno.EINVAL, h.pread, 4096, top)
        refused(errno.ENOSPC, h.pwrite, bytes(4096), top)
        refused(errno.EINVAL, h.trim, 4096, top)
        refused((errno.EINVAL, errno.ENOSPC), h.zero, 4096, top)
        assert h.pread(512, 0) == bytes(512)


@test(hindcast_only=True)
def misaligned(t):
    server = t.server()
    for name, block in (("small", 512), ("large", 4096)):
        uri = server.create(name, SIZE, "64K", "--block", block)
        with connection(uri, strict=False) as h:
            for offset, length in ((1, block), (0, block - 1), (block // 2, block), (block, block + 1)):
                refused(errno.EINVAL, h.pread, length, offset)
                refused(errno.EINVAL, h.pwrite, bytes(length), offset)
                refused(errno.EINVAL, h.trim, length, offset)
                refused(errno.EINVAL, h.zero, length, offset)
            h.pwrite(pattern(8, block), block)
            assert h.pread(3 * block, 0) == bytes(block) + pattern(8, block) + bytes(block)


@test(hindcast_only=True)
def too_long(t):
    """Longer than the advertised maximum: refused, and the connection goes on (for a write it may end)."""
    server = t.server()
    uri = server.create("v", "1G")
    with connection(uri, strict=False) as h:
        largest = h.get_block_size(nbd.SIZE_MAXIMUM)
        whole = h.pread(largest, 0)
        assert len(whole) == largest
        refused((errno.EINVAL, errno.EOVERFLOW), h.pread, largest + 512, 0)
        assert h.pread(512, 0) == bytes(512), "the connection must survive"
        # Commands without payload have no such limit.
        h.zero(GIB, 0)
        h.trim(GIB, 0)
        h.cache(512 * MIB, 0)
        if largest + 512 <= 64 * MIB:
            try:
                h.pwrite(bytes(largest + 512), 0)
                raise AssertionError("a write longer than the maximum succeeded")
            except nbd.Error as error:
                assert error.errnum in (errno.EINVAL, errno.ENOTCONN, errno.EPIPE, errno.ECONNRESET, 0, None), error.string
    with connection(uri) as h:
        assert h.pread(512, 0) == bytes(512), "the server must survive"


@test(hindcast_only=True)
def read_only_volume(t):
    server = t.server()
    uri = server.create("v", SIZE, "16K", "--read-only")
    with connection(uri, strict=False) as h:
        assert h.is_read_only()
        refused(errno.EPERM, h.pwrite, bytes(512), 0)
        refused(errno.EPERM, h.trim, 512, 0)
        refused(errno.EPERM, h.zero, 512, 0)
        assert h.pread(512, 0) == bytes(512), "the connection must survive"


@test()
def unknown_export(t):
    server = t.server()
    server.create("v", SIZE)
    try:
        with connection(server.uri("nobody")):
            raise AssertionError("an export that does not exist was opened")
    except nbd.Error as error:
        assert error.errnum in (errno.ENOENT, errno.EIO, errno.EINVAL, errno.ENOTSUP), error.string
    with connection(server.uri("v")) as h:
        assert h.get_size() == SIZE


@test()
def options_before_go(t):
    """LIST, INFO and LIST_META_CONTEXT on one connection, then GO, or ABORT."""
    server = t.server()
    server.create("one", SIZE)
    server.create("two", 2 * SIZE)
    names, contexts = [], []
    with connection(server.uri("one"), set_opt_mode=True) as h:
        h.opt_list(lambda name, _description: names.append(name))
        assert sorted(names) == ["one", "two"], names
        h.set_export_name("two")
        h.opt_info()
        assert h.get_size() == 2 * SIZE
        h.clear_meta_contexts()
        h.opt_list_meta_context(contexts.append)
        assert "base:allocation" in contexts, contexts
        contexts.clear()
        h.add_meta_context("base:")
        h.opt_list_meta_context(contexts.append)
        assert contexts == ["base:allocation"], contexts
        contexts.clear()
        h.clear_meta_contexts()
        h.add_meta_context("nobody:knows")
        h.opt_list_meta_context(contexts.append)
        assert contexts == [], contexts
        if not PEER:
            h.set_export_name("nobody")
            refused(errno.ENOENT, h.opt_info)
            refused(errno.ENOENT, h.opt_go)
        h.set_export_name("one")
        h.opt_go()
        assert h.get_size() == SIZE and h.pread(512, 0) == bytes(512)
        assert not h.can_meta_context("nobody:knows")
    with connection(server.uri("one"), set_opt_mode=True) as h:
        h.opt_abort()


@test()
def many_connections_see_each_other(t):
    """What multi-connection promises: a write answered here is read there, a flush there covers it."""
    server = t.server()
    uri = server.create("v", SIZE)
    with contextlib.ExitStack() as stack:
        handles = [stack.enter_context(connection(uri)) for _ in range(8)]
        for i in range(400):
            writer, reader = handles[i % 8], handles[(i * 5 + 3) % 8]
            data = pattern(i, 4096)
            writer.pwrite(data, i * 8192)
            assert reader.pread(4096, i * 8192) == data, f"write {i} not seen"
        handles[0].flush()
    server.kill()
    server.start()
    with connection(uri) as h:
        for i in range(400):
            assert h.pread(4096, i * 8192) == pattern(i, 4096), f"write {i} lost"


@test()
def many_requests_in_flight(t):
    """64 requests at once, answered in any order, each with its own content."""
    server = t.server()
    uri = server.create("v", SIZE)
    with connection(uri) as h:
        def complete(cookies):
            pending = set(cookies)
            while pending:
                done = {c for c in pending if h.aio_command_completed(c)}
                pending -= done
                if pending and not done:
                    h.poll(-1)
        for turn in range(20):
            writes = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(pattern(turn * 64 + i, 8192))), i * 65536)
                      for i in range(64)]
            complete(writes)
            buffers = [nbd.Buffer(8192) for _ in range(64)]
            complete([h.aio_pread(buffer, i * 65536) for i, buffer in enumerate(buffers)])
            for i, buffer in enumerate(buffers):
                assert bytes(buffer.to_bytearray()) == pattern(turn * 64 + i, 8192), f"turn {turn}, request {i}"


@test(hindcast_only=True)
def resize_and_delete_while_connected(t):
    server = t.server()
    uri = server.create("v", SIZE)
    with connection(uri, strict=False) as h:
        h.pwrite(pattern(9, 4096), SIZE - 4096)
        assert "force" in server.cli("volume", "resize", "v", "--size", SIZE // 2, code=CONFLICT)
        server.cli("volume", "resize", "v", "--size", SIZE // 2, "--force")
        refused(errno.EINVAL, h.pread, 4096, SIZE - 4096)
        assert h.pread(4096, 0) == bytes(4096)
        server.cli("volume", "resize", "v", "--size", SIZE)
    with connection(uri) as h:
        assert h.get_size() == SIZE
        assert h.pread(4096, SIZE - 4096) == bytes(4096), "a shrunk and grown volume shows old bytes"
        server.cli("volume", "delete", "--now", "v", code=CONFLICT)
    server.cli("volume", "delete", "--now", "nobody", code=NOT_FOUND)
    wait_for("the connection's end", lambda: server.show("v")["handles"] == 0)
    server.cli("volume", "delete", "--now", "v")
    server.cli("volume", "show", "v", code=NOT_FOUND)


if __name__ == "__main__":
    main()
