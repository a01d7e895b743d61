"""Puts header and data digests on the wire for initiators that can't.

libiscsi 1.19 knows no data digests, and its test tool leaves header digests to the target's choice. This proxy speaks
to the target with `HeaderDigest=CRC32C` and `DataDigest=CRC32C` and to the initiator without: it adds both digests to
each PDU of the initiator, and verifies and removes those of the target.
"""

import re
import socket
import threading

from harness import Skip
from iscsi_wire import LOGIN, LOGIN_RESPONSE, Decoder, DigestError, have_digests

OFFERED = re.compile(rb"(?<![^\0])(HeaderDigest|DataDigest)=[^\0]*")


class Connection:
    """One initiator's connection and its own to the target."""

    def __init__(self, proxy, client):
        self.proxy, self.client = proxy, client
        self.target = socket.create_connection(("127.0.0.1", proxy.target_port))
        for each in (self.client, self.target):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.agreed = set()
        self.on = False
        for source, sink, handle in ((self.client, self.target, self.from_initiator),
                                     (self.target, self.client, self.from_target)):
            threading.Thread(target=self.pump, args=(source, sink, handle), daemon=True).start()

    def pump(self, source, sink, handle):
        decoder = Decoder()
        try:
            while received := source.recv(1 << 18):
                decoder.buffer += received
                out = []
                while (pdu := decoder.take()) is not None:
                    out.append(handle(decoder, pdu))
                sink.sendall(b"".join(out))
        except DigestError as error:
            self.proxy.errors.append(str(error))
        except OSError:
            pass
        finally:
            self.proxy.digests_checked += decoder.checked
            self.close()

    def close(self):
        for each in (self.client, self.target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def from_initiator(self, _, pdu):
        if pdu.opcode == LOGIN:
            pdu.data = OFFERED.sub(rb"\1=CRC32C", pdu.data)
        if self.on:
            self.proxy.digests_added += 2 if pdu.data else 1
        return pdu.encode(self.on, self.on)

    def from_target(self, decoder, pdu):
        if pdu.opcode == LOGIN_RESPONSE and not self.on:
            for key, value in re.findall(rb"(?<![^\0])(HeaderDigest|DataDigest)=([^\0]*)", pdu.data):
                if value == b"CRC32C":
                    self.agreed.add(key)
                else:
                    self.proxy.errors.append(f"asked for {key.decode()}=CRC32C, the target answers {value.decode()}")
            pdu.data = OFFERED.sub(rb"\1=None", pdu.data)
            # Digests begin after the answer that ends the login phase (RFC 7143 6.3.1): T, next stage 3.
            if pdu.bhs[36] == 0 and pdu.flags & 0x83 == 0x83:
                if self.agreed == {b"HeaderDigest", b"DataDigest"}:
                    decoder.header_digest = decoder.data_digest = self.on = True
                else:
                    self.proxy.errors.append(f"logged in with {self.agreed or 'no digest'}")
        return pdu.encode()


class Proxy:
    """Listens on `port`, for the target's portal `target_port`."""

    def __init__(self, target_port):
        if not have_digests():
            raise Skip("python3-crc32c is not installed for this Python")
        self.target_port = target_port
        self.errors = []
        self.digests_checked = self.digests_added = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                Connection(self, client)
            except OSError:
                client.close()

    def close(self):
        self.listener.close()

    def verify(self):
        """Fails when a digest was wrong or was not agreed on."""
        assert not self.errors, f"{len(self.errors)} errors with digests: {self.errors[:5]}"
