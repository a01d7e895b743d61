"""libnbd for tests: connections that close themselves, and errors that are expected."""

import contextlib
import errno
import random

from harness import Skip

try:
    import nbd
except ImportError:
    nbd = None


@contextlib.contextmanager
def connection(uri, strict=True, **settings):
    """A libnbd handle; with `strict=False` it sends even what can't succeed."""
    if nbd is None:
        raise Skip("python3-libnbd is not installed for this Python")
    handle = nbd.NBD()
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    for name, value in settings.items():
        getattr(handle, name)(value)
    if not strict:
        handle.set_strict_mode(0)
    handle.connect_uri(uri)
    try:
        yield handle
    finally:
        with contextlib.suppress(nbd.Error):
            handle.shutdown()


def refused(expected, call, *args, **kwargs):
    """The call must fail with one of the expected error numbers."""
    expected = expected if isinstance(expected, tuple) else (expected,)
    try:
        call(*args, **kwargs)
    except nbd.Error as error:
        names = [errno.errorcode[e] for e in expected]
        assert error.errnum in expected, f"{error.errno} instead of {names}: {error.string}"
        return error
    raise AssertionError(f"{call.__name__}{args} succeeded, but should fail")


def pattern(seed, length):
    return random.Random(seed).randbytes(length)


def put(server, export, data, offset=0):
    """Writes, and waits until that is durable."""
    with connection(server.uri(export)) as h:
        h.pwrite(data, offset)
        h.flush()


def get(server, export, length, offset=0):
    with connection(server.uri(export)) as h:
        return bytes(h.pread(length, offset))


def changed_since(uri, *states):
    """For each state the ranges (offset, length) that may have changed since, or None where that isn't known."""
    if nbd is None:
        raise Skip("python3-libnbd is not installed for this Python")
    contexts = [f"hindcast:changed-since:{state}" for state in states]
    handle = nbd.NBD()
    for context in contexts:
        handle.add_meta_context(context)
    handle.connect_uri(uri)
    size = handle.get_size()

    def ranges(context):
        found, position = [], 0
        while position < size:
            got = []

            def extent(metacontext, offset, entries, error, got=got):
                if metacontext == context:
                    got.extend(entries)
            handle.block_status(size - position, position, extent)
            assert got, "no extents"
            for length, flags in zip(got[::2], got[1::2]):
                if flags & 1:
                    found.append((position, length))
                position += length
        return found
    changed = [ranges(context) if handle.can_meta_context(context) else None for context in contexts]
    handle.shutdown()
    return changed
