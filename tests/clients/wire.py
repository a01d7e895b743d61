"""NBD by hand, byte for byte as in the protocol document, so that a test can also send what no library sends."""

import socket
import struct

NBDMAGIC = b"NBDMAGIC"
IHAVEOPT = b"IHAVEOPT"
OPTION_REPLY = 0x3E889045565A9
REQUEST = 0x25609513
SIMPLE_REPLY = 0x67446698
STRUCTURED_REPLY = 0x668E33EF

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO = 1, 2, 3, 5, 6, 7
OPT_STRUCTURED_REPLY, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT = 8, 9, 10
REP_ACK, REP_SERVER, REP_INFO, REP_META_CONTEXT = 1, 2, 3, 4
ERR = 1 << 31
ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_TLS_REQD = ERR | 1, ERR | 2, ERR | 3, ERR | 5
ERR_UNKNOWN, ERR_BLOCK_SIZE_REQD, ERR_TOO_BIG = ERR | 6, ERR | 8, ERR | 9
INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = 0, 1, 2, 3

CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, CMD_BLOCK_STATUS = range(8)
FLAG_FUA, FLAG_NO_HOLE, FLAG_DF, FLAG_REQ_ONE, FLAG_FAST_ZERO = 1, 2, 4, 8, 16
CHUNK_DONE, CHUNK_NONE, CHUNK_DATA, CHUNK_HOLE, CHUNK_STATUS, CHUNK_ERROR = 1, 0, 1, 2, 5, 32769

EPERM, EIO, EINVAL, ENOSPC = 1, 5, 22, 28


class Closed(Exception):
    """The server closed the connection."""


class Wire:
    """One connection. Negotiates fixed newstyle unless told otherwise."""

    def __init__(self, path, client_flags=3):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(path))
        self.structured = False
        self.size = None
        self.flags = None
        if client_flags is not None:
            assert self.take(8) == NBDMAGIC
            assert self.take(8) == IHAVEOPT
            self.handshake, = struct.unpack(">H", self.take(2))
            self.send(struct.pack(">I", client_flags))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def take(self, length):
        data = bytearray()
        while len(data) < length:
            try:
                piece = self.sock.recv(length - len(data))
            except ConnectionResetError as error:
                raise Closed from error
            if not piece:
                raise Closed(f"after {len(data)} of {length} bytes")
            data += piece
        return bytes(data)

    def closed_by_server(self):
        """True when the server ends the connection, whatever it sends before."""
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    # Negotiation.

    def option(self, option, data=b""):
        self.send(IHAVEOPT + struct.pack(">II", option, len(data)) + data)

    def option_reply(self, option):
        """One reply: (type, data)."""
        magic, echoed, kind, length = struct.unpack(">QIII", self.take(20))
        assert magic == OPTION_REPLY, f"{magic:#x}"
        assert echoed == option, f"a reply to option {echoed} instead of {option}"
        return kind, self.take(length)

    def ask(self, option, data=b""):
        """Sends an option; returns all replies up to the last one, as (type, data)."""
        self.option(option, data)
        replies = [self.option_reply(option)]
        while replies[-1][0] not in (REP_ACK,) and not replies[-1][0] & ERR:
            replies.append(self.option_reply(option))
        return replies

    def go(self, export, infos=()):
        """GO; keeps size and transmission flags."""
        replies = self.ask(OPT_GO, name_data(export) + struct.pack(f">H{len(infos)}H", len(infos), *infos))
        assert replies[-1][0] == REP_ACK, f"GO {export!r}: {replies[-1]}"
        for kind, data in replies[:-1]:
            if kind == REP_INFO and data[:2] == b"\0\0":
                _, self.size, self.flags = struct.unpack(">HQH", data)
        assert self.size is not None, "no NBD_INFO_EXPORT"
        return replies

    def use_structured(self):
        assert self.ask(OPT_STRUCTURED_REPLY) == [(REP_ACK, b"")]
        self.structured = True

    # Transmission.

    def request(self, command, offset=0, length=0, flags=0, payload=b"", cookie=0x1122334455667788):
        self.send(struct.pack(">IHHQQI", REQUEST, flags, command, cookie, offset, length) + payload)

    def reply(self, read_length=0, cookie=0x1122334455667788):
        """(error, data) of one reply, simple or structured."""
        magic, = struct.unpack(">I", self.take(4))
        if magic == SIMPLE_REPLY:
            error, echoed = struct.unpack(">IQ", self.take(12))
            assert echoed == cookie
            return error, self.take(read_length) if not error else b""
        assert magic == STRUCTURED_REPLY and self.structured, f"{magic:#x}"
        error, data, done = 0, bytearray(read_length), False
        while True:
            flags, kind, echoed, length = struct.unpack(">HHQI", self.take(16))
            assert echoed == cookie
            content = self.take(length)
            if kind & 0x8000:
                error, = struct.unpack(">I", content[:4])
            elif kind == CHUNK_DATA:
                at, = struct.unpack(">Q", content[:8])
                data[at - self.base:at - self.base + length - 8] = content[8:]
            if flags & CHUNK_DONE:
                return error, bytes(data)
            again, = struct.unpack(">I", self.take(4))
            assert again == STRUCTURED_REPLY

    def do(self, command, offset=0, length=0, flags=0, payload=b""):
        """A request and its reply."""
        self.base = offset
        self.request(command, offset, length, flags, payload)
        return self.reply(length if command == CMD_READ else 0)


def name_data(name):
    """Length and bytes of a name."""
    data = name.encode() if isinstance(name, str) else name
    return struct.pack(">I", len(data)) + data


def meta_data(export, *queries):
    """Data of LIST_META_CONTEXT and SET_META_CONTEXT."""
    return name_data(export) + struct.pack(">I", len(queries)) + b"".join(map(name_data, queries))
