"""iSCSI (RFC 7143) as bytes: PDUs with and without digests, and a small initiator that does exactly what it is told."""

import itertools
import socket
import struct

from iscsi import INITIATOR

try:
    from crc32c import crc32c
except ImportError:
    crc32c = None

BHS = 48
# Opcodes (RFC 7143 11.2.1.2).
NOP_OUT, COMMAND, TASK_MANAGEMENT, LOGIN, TEXT, DATA_OUT, LOGOUT = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
NOP_IN, RESPONSE, LOGIN_RESPONSE, DATA_IN, R2T, REJECT = 0x20, 0x21, 0x23, 0x25, 0x31, 0x3F
IMMEDIATE, FINAL = 0x40, 0x80
# Flags of a SCSI command (11.3.1).
READ, WRITE, SIMPLE = 0x40, 0x20, 0x01
NO_TAG = 0xFFFFFFFF


def have_digests():
    """Whether this Python can compute CRC32C (Debian: python3-crc32c)."""
    return crc32c is not None


class DigestError(Exception):
    """A digest does not fit what it covers."""


class Closed(Exception):
    """The other side closed the connection."""


class Pdu:
    """One PDU, without padding and digests."""

    def __init__(self, bhs, data=b"", ahs=b""):
        self.bhs, self.data, self.ahs = bytearray(bhs), data, ahs

    @property
    def opcode(self):
        return self.bhs[0] & 0x3F

    @property
    def flags(self):
        return self.bhs[1]

    def word(self, at):
        return struct.unpack_from(">I", self.bhs, at)[0]

    def encode(self, header_digest=False, data_digest=False):
        """Bytes for the wire; lengths in the header are made to fit."""
        self.bhs[4] = len(self.ahs) // 4
        self.bhs[5:8] = len(self.data).to_bytes(3, "big")
        header = bytes(self.bhs) + self.ahs
        padded = self.data + bytes(-len(self.data) % 4)
        parts = [header]
        if header_digest:
            parts.append(struct.pack("<I", crc32c(header)))
        parts.append(padded)
        if data_digest and padded:
            parts.append(struct.pack("<I", crc32c(padded)))
        return b"".join(parts)


class Decoder:
    """Takes PDUs out of a stream of bytes."""

    def __init__(self):
        self.buffer = bytearray()
        self.header_digest = self.data_digest = False
        self.checked = 0

    def take(self):
        """The next PDU, or None until there are more bytes. What changes at a PDU changes before the next `take`."""
        if len(self.buffer) < BHS:
            return None
        header = BHS + self.buffer[4] * 4
        length = int.from_bytes(self.buffer[5:8], "big")
        padded = length + (-length % 4)
        data_at = header + (4 if self.header_digest else 0)
        end = data_at + padded + (4 if self.data_digest and padded else 0)
        if len(self.buffer) < end:
            return None
        whole = bytes(self.buffer[:end])
        del self.buffer[:end]
        if self.header_digest:
            self.check(whole[:header], whole[header:data_at], "header")
        if self.data_digest and padded:
            self.check(whole[data_at:data_at + padded], whole[data_at + padded:end], "data")
        return Pdu(whole[:BHS], whole[data_at:data_at + length], whole[BHS:header])

    def check(self, covered, digest, what):
        if struct.unpack("<I", digest)[0] != crc32c(covered):
            raise DigestError(f"{what} digest {digest.hex()} of a PDU {covered[:BHS].hex()}")
        self.checked += 1


def text(**keys):
    """A data segment of text keys (RFC 7143 6.1)."""
    return b"".join(f"{key}={value}".encode() + b"\0" for key, value in keys.items())


def keys_of(data):
    """Text keys of a data segment."""
    return dict(pair.split("=", 1) for pair in data.decode(errors="replace").split("\0") if "=" in pair)


class Initiator:
    """One connection that is one session. No authentication, digests as negotiated."""

    isids = itertools.count(1)

    def __init__(self, host, port, timeout=20, receive_buffer=None, source=None):
        self.socket = socket.socket()
        if source:
            self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect((host, port))
        self.decoder = Decoder()
        self.header_digest = self.data_digest = False
        self.cmd_sn, self.exp_stat_sn, self.tag = 1, 0, 0
        self.max_cmd_sn = 0
        self.answers = {}

    def close(self):
        self.socket.close()

    def send(self, pdu):
        self.socket.sendall(pdu.encode(self.header_digest, self.data_digest))

    def receive(self):
        while (pdu := self.decoder.take()) is None:
            received = self.socket.recv(1 << 18)
            if not received:
                raise Closed("the target closed the connection")
            self.decoder.buffer += received
        if pdu.opcode in (NOP_IN, RESPONSE, LOGIN_RESPONSE, 0x22, 0x24, 0x26, REJECT) or \
                (pdu.opcode == DATA_IN and pdu.flags & 1):
            self.exp_stat_sn = (pdu.word(24) + 1) & 0xFFFFFFFF
        if pdu.opcode >= 0x20:
            self.max_cmd_sn = pdu.word(32)
        return pdu

    def login(self, initiator, target=None, **keys):
        """Straight to full feature phase; returns the answer's PDU (status at 36, 37) whatever it says."""
        isid = struct.pack(">BHBH", 0x80, 0x4843, 0, next(Initiator.isids) & 0xFFFF)
        bhs = struct.pack(">BBBB4x6sHIHHII16x", LOGIN | IMMEDIATE, 0x87, 0, 0, isid, 0, 0, 0, 0, self.cmd_sn, 0)
        wanted = {"InitiatorName": initiator, "SessionType": "Normal" if target else "Discovery"}
        if target:
            wanted["TargetName"] = target
        wanted |= {"HeaderDigest": "None", "DataDigest": "None", "InitialR2T": "No", "ImmediateData": "Yes",
                   "MaxRecvDataSegmentLength": 262144, "MaxBurstLength": 262144, "FirstBurstLength": 65536,
                   "MaxOutstandingR2T": 1, "MaxConnections": 1, "ErrorRecoveryLevel": 0} | keys
        self.send(Pdu(bhs, text(**wanted)))
        answer = self.receive()
        self.answers = keys_of(answer.data)
        if answer.opcode == LOGIN_RESPONSE and answer.bhs[36] == 0 and answer.flags & 0x83 == 0x83:
            self.header_digest = self.decoder.header_digest = self.answers.get("HeaderDigest") == "CRC32C"
            self.data_digest = self.decoder.data_digest = self.answers.get("DataDigest") == "CRC32C"
        return answer

    def next_tag(self):
        self.tag += 1
        return self.tag

    def command(self, cdb, flags, expected, data=b"", lun=0, final=True):
        """Sends a SCSI command (11.3); returns its tag. `lun` by peripheral or flat addressing, below 256 the same."""
        tag = self.next_tag()
        bhs = struct.pack(">BB2x4xHxx4xIIII16s", COMMAND, flags | SIMPLE | (FINAL if final else 0), lun, tag, expected,
                          self.cmd_sn, self.exp_stat_sn, bytes(cdb))
        self.cmd_sn = (self.cmd_sn + 1) & 0xFFFFFFFF
        self.send(Pdu(bhs, data))
        return tag

    def room(self):
        """Commands that the target's window still takes (MaxCmdSN, RFC 7143 4.2.2.1)."""
        return (self.max_cmd_sn - self.cmd_sn + 1 + (1 << 31)) % (1 << 32) - (1 << 31)

    def execute(self, cdb, flags=0, expected=0, data=b"", lun=0):
        """One command to its end; returns (status, data in). Data out has to fit the first burst."""
        tag = self.command(cdb, flags, expected, data, lun)
        received = bytearray(expected if flags & READ else 0)
        while True:
            pdu = self.receive()
            if pdu.opcode == NOP_IN and pdu.word(20) != NO_TAG:
                self.nop_reply(pdu)
            if pdu.word(16) != tag:
                continue
            if pdu.opcode == DATA_IN:
                at = pdu.word(40)
                received[at:at + len(pdu.data)] = pdu.data
                if pdu.flags & 1:
                    return pdu.bhs[3], bytes(received)
            elif pdu.opcode == RESPONSE:
                return pdu.bhs[3], pdu.data if pdu.bhs[3] else bytes(received)
            elif pdu.opcode == REJECT:
                raise AssertionError(f"rejected with reason {pdu.bhs[2]}")

    def write(self, lba, data, lun=0):
        """WRITE (10) of blocks of 512 bytes; returns status and, where it isn't good, sense data."""
        return self.execute(write10(lba, len(data) // 512), WRITE, len(data), data, lun)

    def read(self, lba, blocks, lun=0):
        """READ (10) of blocks of 512 bytes; returns status, and data or sense data."""
        return self.execute(read10(lba, blocks), READ, blocks * 512, lun=lun)

    def settle(self):
        """Takes the unit attentions that a new nexus meets."""
        for _ in range(8):
            if self.execute(bytes(6))[0] == 0:
                return
        raise AssertionError("TEST UNIT READY does not become good")

    def nop_reply(self, nop):
        """Answers the target's NOP-In (11.18)."""
        bhs = struct.pack(">BB2x4x8sIIII16x", NOP_OUT | IMMEDIATE, FINAL, bytes(nop.bhs[8:16]), NO_TAG, nop.word(20),
                          self.cmd_sn, self.exp_stat_sn)
        self.send(Pdu(bhs))


def sense_of(response):
    """(key, ASC, ASCQ) of a response's data: a two-byte length, then fixed format sense data (RFC 7143 11.4.7)."""
    return response[4] & 0x0F, response[14], response[15]


def read10(lba, blocks):
    """READ (10) (SBC-3 5.11)."""
    return struct.pack(">BBIBHB6x", 0x28, 0, lba, 0, blocks, 0)


def write10(lba, blocks):
    """WRITE (10) (SBC-3 5.32)."""
    return struct.pack(">BBIBHB6x", 0x2A, 0, lba, 0, blocks, 0)


def attached(url):
    """A session with a target, after its unit attentions."""
    session = Initiator(url.host, url.port)
    answer = session.login(INITIATOR, url.target)
    assert answer.bhs[36] == 0, f"refused: {answer.bhs[36]} {answer.bhs[37]}"
    session.settle()
    return session
