"""A volume as a block device of this machine: nbdfuse shows it as a file, a loop device makes a disk of it."""

import os

from harness import *


class Disk:
    """nbdfuse and a loop device over one export; both die with the server and can be set up again."""

    def __init__(self, t, server, export):
        need_root()
        need("nbdfuse", "losetup", "fusermount3")
        self.t, self.server, self.export = t, server, export
        self.fuse_dir = t.dir / f"fuse-{export}"
        self.fuse_dir.mkdir()
        self.mount_dir = t.dir / f"mnt-{export}"
        self.mount_dir.mkdir()
        self.device = None
        self.fuse = None
        self.mounted = False
        t.defer(self.tear_down)

    def attach(self):
        """Brings the loop device up."""
        log = open(self.t.dir / "nbdfuse.log", "ab")
        self.fuse = subprocess.Popen(
            ["nbdfuse", str(self.fuse_dir / "disk"), self.server.uri(self.export)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )
        log.close()
        wait_for("nbdfuse", (self.fuse_dir / "disk").exists)
        self.device = run("losetup", "--find", "--show", self.fuse_dir / "disk").strip()
        return self.device

    def mount(self, *options):
        run("mount", *options, self.device, self.mount_dir)
        self.mounted = True
        return self.mount_dir

    def mount_checked(self):
        """Mounts after a crash. That replays ext4's own journal; then it must be clean without repair."""
        self.mount()
        self.unmount()
        run("e2fsck", "-fn", self.device, timeout=600)
        return self.mount()

    def unmount(self):
        # Processes that have just been stopped may hold it for a moment.
        wait_for("umount", lambda: run("umount", self.mount_dir, check=False).returncode == 0, limit=20, step=0.2)
        self.mounted = False

    def detach(self):
        """The orderly way down."""
        if self.mounted:
            self.unmount()
        if self.device:
            run("losetup", "-d", self.device)
            wait_for("the loop device's end", lambda: not run("losetup", "-j", self.fuse_dir / "disk").strip())
            self.device = None
        if self.fuse:
            # Busy for a moment after the loop device has gone.
            wait_for("nbdfuse's unmount", lambda: run("fusermount3", "-u", self.fuse_dir, check=False).returncode == 0)
            self.fuse.wait(30)
            self.fuse = None

    def tear_down(self):
        """Takes everything down whatever state it is in: after the server was killed, all of it is dead."""
        if self.mounted:
            # A file system without a disk: lazily, its own writes will fail.
            run("umount", "-l", self.mount_dir, check=False)
            self.mounted = False
        if self.device:
            run("losetup", "-d", self.device, check=False)
        if self.fuse:
            self.fuse.kill()
            self.fuse.wait()
            run("fusermount3", "-uz", self.fuse_dir, check=False)
            self.fuse = None
        if self.device:
            # A lazily unmounted file system lets go of it only when its last user has gone.
            wait_for("the loop device's end", lambda: not self.backing(), limit=60)
            self.device = None

    def backing(self):
        listed = run("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE")
        return any(line.split()[:1] == [self.device] and str(self.t.dir) in line for line in listed.splitlines())


def copy_tree(t, target):
    """A real tree of many small files, bounded."""
    room = (400 if t.long else 120) * MIB
    target.mkdir()
    for source in ("/usr/share/doc", "/usr/include", "/usr/lib/python3", "/usr/share/perl"):
        for directory, _, names in os.walk(source):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                room -= os.path.getsize(path) + 4 * KIB
                if room < 0:
                    return
                copy = target / path.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def exercise(t, server, disk, make, check_command, mount_options=()):
    """A file system made on `disk`, an export of `server`: filled, checked, compared after a restart, trimmed."""
    device = disk.attach()
    run(*make, device)
    root = disk.mount(*mount_options)
    copy_tree(t, root / "tree")
    for i in range(200):
        (root / f"renamed{i}").write_bytes(os.urandom(i * 100))
        os.rename(root / f"renamed{i}", root / f"file{i}")
    for i in range(0, 200, 3):
        os.unlink(root / f"file{i}")
    before = tree_checksums(root)
    assert len(before) > 100, "too few files to mean anything"
    disk.unmount()
    run(*check_command, disk.device, timeout=600)
    disk.detach()
    server.drained()
    server.check()
    disk.attach()
    run(*check_command, disk.device, timeout=600)
    disk.mount(*mount_options)
    assert tree_checksums(root) == before, "files differ after a restart"

    full = server.allocated(disk.export)
    shutil.rmtree(root / "tree")
    run("sync", "-f", root)
    run("fstrim", root)
    run("sync", "-f", root)
    def trimmed():
        server.drained()
        return server.allocated(disk.export) < full - 60 * MIB
    wait_for(f"fewer allocated bytes than {full} after fstrim", trimmed, limit=30, step=1)
    kept = {path: sum_ for path, sum_ in before.items() if not path.startswith("tree/")}
    assert tree_checksums(root) == kept
    disk.unmount()
    run(*check_command, disk.device, timeout=600)
    disk.detach()
    server.check()
