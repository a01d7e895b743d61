"""A load over NBD that keeps its own record of what was acknowledged, and of what was in flight."""

import struct

from harness import *

try:
    import nbd
except ImportError:
    nbd = None

BLOCK = 4096
BLOCKS = 64 * MIB // BLOCK
ZERO = 0


def content(block, sequence):
    """What write number `sequence` puts into a block."""
    if sequence == ZERO:
        return bytes(BLOCK)
    unit = struct.pack("<QQ", block, sequence)
    return unit * (BLOCK // len(unit))


class Load:
    """Requests in flight on several connections of one thread; never two on the same block."""

    def __init__(self, uri, rng, model, connections=4, depth=16):
        if nbd is None:
            raise Skip("python3-libnbd is not installed for this Python")
        self.rng, self.model = rng, model
        self.handles = []
        for _ in range(connections):
            handle = nbd.NBD()
            handle.connect_uri(uri)
            self.handles.append(handle)
        self.depth = depth
        # (handle index, cookie) -> (first block, blocks, sequence, buffer)
        self.flying = {}
        self.busy = set()

    def issue(self, index, sequence):
        count = self.rng.choice((1, 1, 1, 1, 2, 3, 8, 16))
        first = self.rng.randrange(BLOCKS - count)
        blocks = range(first, first + count)
        if any(b in self.busy for b in blocks):
            return
        handle, at, length = self.handles[index], first * BLOCK, count * BLOCK
        kind = self.rng.random()
        if kind < 0.85:
            data = bytearray(b"".join(content(b, sequence) for b in blocks))
            buffer = nbd.Buffer.from_bytearray(data)
            flags = nbd.CMD_FLAG_FUA if self.rng.random() < 0.01 else 0
            cookie = handle.aio_pwrite(buffer, at, flags=flags)
        else:
            buffer, sequence = None, ZERO
            cookie = handle.aio_zero(length, at) if kind < 0.95 or PEER else handle.aio_trim(length, at)
        self.flying[index, cookie] = (first, count, sequence, buffer)
        self.busy.update(blocks)

    def fill(self, sequence):
        """Brings every connection to its depth."""
        for index, handle in enumerate(self.handles):
            while handle.aio_in_flight() < self.depth:
                before = len(self.flying)
                self.issue(index, sequence)
                if len(self.flying) == before:
                    break
                sequence += 1
        return sequence

    def reap(self):
        """Takes what was acknowledged into the model."""
        for (index, cookie), (first, count, sequence, _) in list(self.flying.items()):
            if self.handles[index].aio_command_completed(cookie):
                del self.flying[index, cookie]
                for block in range(first, first + count):
                    self.busy.discard(block)
                    self.model[block] = sequence

    def run(self, seconds, sequence, at_end, collect=True):
        """Keeps all connections busy; calls `at_end` while they are; returns the next sequence number. Without
        `collect`, what is in flight then stays so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sequence = self.fill(sequence)
            for handle in self.handles:
                handle.poll(0)
            self.reap()
        sequence = self.fill(sequence)
        self.flying_at_end = len(self.flying)
        at_end()
        if collect:
            self.collect_last_replies()
        return sequence

    def drain(self, limit):
        """Waits until all that is in flight is answered, and answered well."""
        def answered():
            for handle in self.handles:
                handle.poll(100)
            self.reap()
            return not self.flying
        wait_for("answers to all that was in flight", answered, limit=limit, step=0)

    def collect_last_replies(self):
        """Answers that were sent before the kill count as acknowledged."""
        for handle in self.handles:
            try:
                while handle.aio_in_flight() and handle.poll(100) > 0:
                    pass
            except nbd.Error:
                pass
        for (index, cookie), (first, count, sequence, _) in list(self.flying.items()):
            try:
                done = self.handles[index].aio_command_completed(cookie)
            except nbd.Error:
                done = False
            if done:
                del self.flying[index, cookie]
                for block in range(first, first + count):
                    self.model[block] = sequence


def verify(uri, model, flying):
    """Compares every block; where a write was in flight, both answers are right, and the model learns which."""
    maybe = {block: sequence for first, count, sequence, _ in flying.values() for block in range(first, first + count)}
    handle = nbd.NBD()
    handle.connect_uri(uri)
    for first in range(0, BLOCKS, 256):
        data = handle.pread(256 * BLOCK, first * BLOCK)
        for block in range(first, first + 256):
            found = data[(block - first) * BLOCK:(block - first + 1) * BLOCK]
            if found == content(block, model[block]):
                continue
            assert block in maybe and found == content(block, maybe[block]), (
                f"block {block}: expected write {model[block]}"
                f"{f' or {maybe[block]}' if block in maybe else ''}, found {struct.unpack('<QQ', found[:16])}"
            )
            model[block] = maybe[block]
    handle.shutdown()
