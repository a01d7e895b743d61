"""iSCSI servers and URLs for the tests: Hindcast, or tgt with HINDCAST_PEER=tgt.

The tests of iSCSI start their servers with `server(t)`: one process with two portals, on ports that stay the same over
restarts, so that an initiator finds it again.
"""

import socket

from harness import *

NAMING_AUTHORITY = "iqn.2026-11.io.hindcast"
INITIATOR = "iqn.2026-11.example.client:one"
OTHER_INITIATOR = "iqn.2026-11.example.client:two"


def free_ports(count):
    """TCP ports of the loopback address that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def answers(port, host="127.0.0.1"):
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), 1).close()
        return True
    except OSError:
        return False


class Url:
    """Names of one logical unit, as different clients want them."""

    def __init__(self, port, target, lun, host="127.0.0.1"):
        self.host, self.port, self.target, self.lun = host, port, target, lun

    def __str__(self):
        return f"iscsi://{self.host}:{self.port}/{self.target}/{self.lun}"

    @property
    def portal(self):
        return f"iscsi://{self.host}:{self.port}"

    def blockdev(self, **options):
        """For qemu's `--image-opts` and `--blockdev`: options that a URL can't say."""
        fields = {"driver": "iscsi", "transport": "tcp", "portal": f"{self.host}:{self.port}", "target": self.target,
                  "lun": self.lun, "initiator-name": INITIATOR}
        fields.update((name.replace("_", "-"), value) for name, value in options.items())
        return ",".join(f"{name}={value}" for name, value in fields.items())


class IscsiHindcast(Hindcast):
    """Hindcast with two iSCSI portals. By default each volume is a target of its own."""

    def __init__(self, directory, portals=2, args=(), **kwargs):
        self.ports = free_ports(portals)
        listen = [f"--iscsi=127.0.0.1:{port}" for port in self.ports]
        super().__init__(directory, args=[*listen, *args], **kwargs)

    def url(self, volume, portal=0):
        return Url(self.ports[portal], f"{NAMING_AUTHORITY}:{volume}", 0)

    def create(self, name, size, chunk="16K", *flags):
        super().create(name, size, chunk, *flags)
        return self.url(name)

    def target(self, *args, code=DONE):
        """`hindcast target ...`."""
        return self.cli("target", *args, code=code)

    def ask_for_chap(self, target, user, secret, mutual=None):
        """Sets CHAP for a target, or with `--all` for all; `mutual` is (user, secret)."""
        files = []

        def stored(text):
            files.append(self.dir.parent / f"secret{len(files)}")
            files[-1].write_text(text + "\n")
            return files[-1]
        args = ["--user", user, "--secret-file", stored(secret)]
        if mutual:
            args += ["--mutual-user", mutual[0], "--mutual-secret-file", stored(mutual[1])]
        self.target("chap", target, *args)
        for file in files:
            file.unlink()


class Tgt(Peer):
    """Debian's `tgt`. It forgets its targets when it ends, so they are made again."""

    def __init__(self, directory, portals=2, **_):
        super().__init__(directory)
        need("tgtd", "tgtadm")
        self.ports = free_ports(portals)
        # Below 2^15; it only names a socket.
        self.control = self.ports[0] & 0x7FFF
        self.volumes = []

    def start(self, wait=True):
        portals = f"portal=127.0.0.1:{self.ports[0]}"
        self.spawn(["tgtd", "-f", "-C", self.control, "-t", "1", "--iscsi", portals])
        wait_for("tgtd", lambda: answers(self.ports[0]))
        for port in self.ports[1:]:
            self.admin("new", "portal", "--param", f"portal=127.0.0.1:{port}")
        for number, name in enumerate(self.volumes, 1):
            self.make_target(number, name)
        return self

    def admin(self, operation, mode, *args):
        run("tgtadm", "-C", self.control, "--lld", "iscsi", "--op", operation, "--mode", mode, *args)

    def publish(self, name):
        self.volumes.append(name)
        self.make_target(len(self.volumes), name)

    def make_target(self, tid, name):
        self.admin("new", "target", "--tid", tid, "-T", f"{NAMING_AUTHORITY}:{name}")
        for key in ("HeaderDigest", "DataDigest"):
            self.admin("update", "target", "--tid", tid, "--name", key, "--value", "None,CRC32C")
        # LUN 0 is tgt's own controller.
        self.admin("new", "logicalunit", "--tid", tid, "--lun", 1, "-b", self.dir / name)
        self.admin("update", "logicalunit", "--tid", tid, "--lun", 1, "--params", "thin_provisioning=1")
        self.admin("bind", "target", "--tid", tid, "-I", "ALL")

    def url(self, volume, portal=0):
        return Url(self.ports[portal], f"{NAMING_AUTHORITY}:{volume}", 1)

    def place(self, name):
        return self.url(name)


def server(t, name="data", start=True, **kwargs):
    """A new server of its own, with portals."""
    made = (Tgt if PEER == "tgt" else IscsiHindcast)(t.dir / name, **kwargs)
    t.defer(made.take_down)
    return made.start() if start else made


def need_qemu_iscsi():
    """Skips the test unless qemu's tools speak iSCSI."""
    need("qemu-img", "qemu-io")
    if "iscsi" not in run("qemu-img", "--help").split("Supported formats:")[-1]:
        raise Skip("qemu's iSCSI driver is not installed (Debian: qemu-block-extra)")
