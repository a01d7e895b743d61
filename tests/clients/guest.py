"""A small virtual machine with Debian's kernel, open-iscsi, udev and multipath.

It runs in QEMU without KVM, so that it runs anywhere, from memory: kernel and an initramfs that is made here of Debian
packages. `./dev guest` unpacks those into target/guest (or where `HINDCAST_GUEST` says); none of them is installed on
the host, whose kernel, udev and disks they would change. The guest reaches the host's loopback address as 10.0.2.2.
"""

import atexit
import base64
import re
import select
import socket
import stat

from harness import *

HOST = "10.0.2.2"
INITIATOR_NAME = "iqn.2026-11.example.guest:kernel"
PROGRAMS = ("bin/busybox", "bin/sync", "sbin/iscsid", "sbin/iscsiadm", "sbin/multipath", "sbin/multipathd",
            "sbin/dmsetup", "sbin/kpartx", "bin/udevadm", "lib/systemd/systemd-udevd", "lib/udev/scsi_id",
            "lib/udev/kpartx_id", "sbin/mke2fs", "sbin/e2fsck")
# Loaded in this order, each after what it depends on. scsi_dh_alua is for disks that come later.
MODULES = ("virtio_pci", "virtio_net", "virtio_console", "crc32c_generic", "scsi_dh_alua", "sd_mod", "sg", "iscsi_tcp",
           "dm-multipath", "dm-service-time", "dm-round-robin", "ext4")
RULES = ("50-udev-default", "55-dm", "56-dm-mpath", "60-block", "60-kpartx", "60-multipath", "60-persistent-storage",
         "60-persistent-storage-dm", "95-dm-notify")
FILES = {
    "etc/iscsi/initiatorname.iscsi": f"InitiatorName={INITIATOR_NAME}\n",
    "etc/passwd": "root:x:0:0:root:/:/bin/sh\n",
    # Those that udev's rules name.
    "etc/group": "".join(f"{name}:x:{i}:\n" for i, name in enumerate(
        "root tty disk dialout kmem input video audio lp cdrom tape kvm sgx render".split())),
    }


class Packages:
    """The unpacked packages: paths in them, as one root directory."""

    def __init__(self):
        self.root = pathlib.Path(os.environ.get("HINDCAST_GUEST") or ROOT / "target" / "guest")
        kernels = sorted(self.root.glob("boot/vmlinuz-*"))
        if not kernels:
            raise Skip(f"no kernel in {self.root} to boot (`./dev guest` fetches it)")
        self.kernel = kernels[-1]
        version = self.kernel.name.removeprefix("vmlinuz-")
        self.modules = {path.stem.replace("-", "_"): path for path in
                        self.root.glob(f"lib/modules/{version}/kernel/**/*.ko")}

    def find(self, path):
        """The file behind a path; symbolic links are those of the guest's root."""
        found = self.root / path
        while found.is_symlink():
            found = self.root / os.path.normpath(os.path.join("/", path, "..", os.readlink(found))).lstrip("/")
            path = found.relative_to(self.root)
        return found

    def libraries(self, program):
        """Paths of the shared libraries that a program needs."""
        where = ":".join(str(self.root / d) for d in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib"))
        loader = self.find("lib64/ld-linux-x86-64.so.2")
        done = run(loader, "--library-path", where, "--list", program, check=False)
        return re.findall(rf" => {re.escape(str(self.root))}/(\S+)", done.stdout)

    def module_order(self):
        """Paths of the modules to load, each after those that it depends on."""
        order = []

        def add(name):
            path = self.modules.get(name.replace("-", "_"))
            if path is None:
                raise Skip(f"no kernel module {name} in {self.root} (`./dev guest` fetches it)")
            depends = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes()).group(1).decode()
            for each in filter(None, depends.split(",")):
                add(each)
            if path not in order:
                order.append(path)
        for name in MODULES:
            add(name)
        return order


class Archive:
    """A cpio archive, "newc": what the kernel takes as its first root."""

    def __init__(self, path):
        self.file = open(path, "wb")
        self.seen = set()

    def add(self, name, mode, content=b""):
        name = str(name)
        if name in self.seen:
            return
        self.seen.add(name)
        if "/" in name:
            self.add(os.path.dirname(name), stat.S_IFDIR | 0o755)
        fields = (len(self.seen), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        self.pad(b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0")
        self.pad(content)

    def pad(self, piece):
        self.file.write(piece + b"\0" * (-len(piece) % 4))

    def file_of(self, name, path):
        self.add(name, stat.S_IFREG | 0o755, path.read_bytes())

    def text(self, name, text):
        self.add(name, stat.S_IFREG | 0o755, text.encode())

    def link(self, name, target):
        self.add(name, stat.S_IFLNK | 0o777, target.encode())

    def close(self):
        self.add("TRAILER!!!", 0)
        self.file.close()


def merged(path):
    """Debian's bin, sbin, lib and lib64 are links into usr."""
    return f"usr/{path}" if str(path).split("/")[0] in ("bin", "sbin", "lib", "lib64") else str(path)


def make_initramfs(packages, path, iscsid_conf, multipath_conf):
    archive = Archive(path)
    for name in ("bin", "sbin", "lib", "lib64"):
        archive.link(name, f"usr/{name}")
    for name in ("proc", "sys", "dev", "run", "tmp", "mnt", "var/lib/iscsi", "etc/multipath"):
        archive.add(name, stat.S_IFDIR | 0o755)
    archive.link("var/run", "/run")
    archive.link("etc/mtab", "/proc/self/mounts")
    # Threads that are cancelled load libgcc_s themselves.
    libraries = {"lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libgcc_s.so.1"}
    plugins = [str(p.relative_to(packages.root)) for p in packages.root.glob("lib/multipath/*.so")]
    for program in (*PROGRAMS, *plugins):
        found = packages.find(program)
        archive.file_of(merged(program), found)
        libraries.update(packages.libraries(found))
    for library in sorted(libraries):
        archive.file_of(merged(library), packages.find(library))
    archive.link("usr/bin/mkfs.ext4", "../sbin/mke2fs")
    for rule in RULES:
        archive.file_of(f"usr/lib/udev/rules.d/{rule}.rules", packages.find(f"lib/udev/rules.d/{rule}.rules"))
    order = packages.module_order()
    for module in order:
        archive.file_of(f"modules.d/{module.name}", module)
    archive.text("modules", "".join(f"/modules.d/{module.name}\n" for module in order))
    for applet in run(packages.find("bin/busybox"), "--list").split():
        archive.link(f"usr/bin/{applet}", "busybox")
    for name, text in FILES.items():
        archive.text(name, text)
    archive.text("etc/iscsi/iscsid.conf", iscsid_conf)
    archive.text("etc/multipath.conf", multipath_conf)
    archive.file_of("init", pathlib.Path(__file__).with_name("guest_init.sh"))
    archive.close()


def documented_multipath():
    """The multipath.conf that docs/ISCSI.md recommends."""
    text = (ROOT / "docs" / "ISCSI.md").read_text()
    return re.search(r"```\n(defaults \{.*?)```", text, re.S).group(1)


class GuestFailed(Exception):
    """A command in the guest ended with another exit code than 0."""


class Guest:
    """The machine, booted; one for all tests of a script."""

    def __init__(self):
        need("qemu-system-x86_64")
        packages = Packages()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hc-guest-", dir=os.environ.get("HINDCAST_DIR", "/var/tmp")))
        self.console = self.dir / "console"
        initramfs = self.dir / "initramfs"
        make_initramfs(packages, initramfs, packages.find("etc/iscsi/iscsid.conf").read_text(), documented_multipath())
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-smp", "2",
                 "-m", "512M", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
                 "-kernel", packages.kernel, "-initrd", initramfs,
                 "-append", "console=ttyS0 panic=-1 loglevel=4 log_buf_len=4M mitigations=off no_timer_check "
                            "random.trust_cpu=on",
                 "-serial", f"file:{self.console}", "-netdev", "user,id=net,ipv6=off",
                 "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-serial-pci",
                 "-chardev", f"socket,id=commands,fd={theirs.fileno()}",
                 "-device", "virtserialport,chardev=commands"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()])
        self.channel, self.received = ours, b""
        atexit.register(self.end)
        try:
            assert self.line(120) == b"ready"
        except Exception:
            self.end()
            raise

    def line(self, limit):
        """The next line that comes from the guest."""
        end = time.monotonic() + limit
        while b"\n" not in self.received:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.channel], [], [], left)[0]
            if ready and not (piece := self.channel.recv(1 << 16)):
                raise AssertionError(f"the guest is gone\n{self.told()}")
            if not ready:
                raise AssertionError(f"no answer of the guest in {limit} s\n{self.told()}")
            self.received += piece
        line, self.received = self.received.split(b"\n", 1)
        return line

    def told(self):
        """The end of what the guest's kernel wrote to its console."""
        return self.console.read_text(errors="replace")[-3000:] if self.console.exists() else ""

    def run(self, command, limit=60, check=True):
        """Runs shell in the guest; returns its output, standard error too, or (code, output)."""
        self.channel.sendall(base64.b64encode(command.encode()) + b"\n")
        code, _, output = self.line(limit).partition(b" ")
        output = base64.b64decode(output).decode(errors="replace")
        if not check:
            return int(code), output
        if int(code):
            raise GuestFailed(f"{command}: exit code {int(code)}\n{output[-3000:]}")
        return output

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
