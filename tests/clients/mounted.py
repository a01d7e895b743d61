"""A volume as a block device of this machine: nbdfuse shows it as a file, a loop device makes a disk of it."""

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
