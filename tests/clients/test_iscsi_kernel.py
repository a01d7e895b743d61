#!/usr/bin/python3
"""Linux's own initiator, in a virtual machine (guest.py), with Debian's defaults: slow disks, many
changes of LUNs, names of disks, multipath, and restarts of the server under a mounted file system."""

import re
import time

from guest import HOST, Guest
from iscsi import *
from iscsi_wire import attached
from slow import Slow

# What the kernel writes when it gives up a connection, a command, or a file system.
TROUBLE = re.compile(r"ping timeout|detected conn error|I/O error|EXT4-fs (error|warning)|Aborting journal|"
                     r"remount.*read-only|lost async page write|session recovery timed out|rejecting I/O|task abort")
# Losing the connection is what a restart means; the rest must not reach anybody.
LOST_CONNECTION = re.compile(r"ping timeout|detected conn error")
# Debian's default of both: seconds without a word until the initiator pings, and until it gives up
# waiting for the answer.
PING = 5
SLOW_FLUSH = 14
MORE_LUNS = 149


class Kernel:
    """The initiator of the guest, as one test uses it. Made after the test's server, it leaves in time."""

    guest = None

    def __init__(self, t):
        if Kernel.guest is None or Kernel.guest.process.poll() is not None:
            began = time.monotonic()
            Kernel.guest = Guest()
            t.say(f"the guest is up after {time.monotonic() - began:.1f} s")
            self.run("iscsid")
        self.mark = f"test began at {time.monotonic()}"
        self.run(f"echo {self.mark} >/dev/kmsg")
        t.defer(self.leave)
        t.defer(lambda: t.failed and t.say("\n  ".join(["the guest's kernel said:", *self.dmesg()[-40:]])))

    def run(self, *args, **kwargs):
        return Kernel.guest.run(*args, **kwargs)

    def leave(self):
        """Logs out of everything. A guest that doesn't come to rest is given up; another one is booted."""
        try:
            self.run("umount /mnt; killall multipathd; multipath -F; iscsiadm -m node -u; iscsiadm -m node -o delete;"
                     "pidof systemd-udevd || /usr/lib/systemd/systemd-udevd --daemon; udevadm settle", check=False)
            assert not self.disks()
        except Exception:
            Kernel.guest.end()
            raise

    def dmesg(self):
        """What the kernel has said since the test began; all of it has to be there."""
        said = self.run("dmesg").splitlines()
        [began] = [number for number, line in enumerate(said) if self.mark in line]
        return said[began + 1:]

    def trouble(self, kind=TROUBLE):
        return [line for line in self.dmesg() if kind.search(line)]

    def login(self, served, *targets, portals=(0,), replacement_timeout=None):
        """Logs in to each target by each portal; returns {LUN: disk} of the last of these sessions."""
        for target in targets:
            for portal in portals:
                node = f"iscsiadm -m node -T {NAMING_AUTHORITY}:{target} -p {HOST}:{served.ports[portal]}"
                self.run(f"{node} -o new")
                if replacement_timeout:
                    self.run(f"{node} -o update -n node.session.timeo.replacement_timeout -v {replacement_timeout}")
        self.run("iscsiadm -m node --login && udevadm settle", limit=120)
        return self.disks_of(targets[-1])[-1]

    def multipath(self, count):
        """Starts multipath as documented; returns {WWID: {names of its paths}} of so many maps."""
        def maps():
            found = {}
            listed = self.run("multipathd show paths raw format '%d %w %m'", check=False)[1]
            for name, wwid, mapped in re.findall(r"^(sd\S+) (\S+) (\S+)", listed, re.M):
                if mapped == wwid and self.run(f"test -e /dev/mapper/{wwid}", check=False)[0] == 0:
                    found.setdefault(wwid, set()).add(name)
            return found
        self.run("multipathd")
        wait_for("maps of two paths", lambda: [len(paths) for paths in maps().values()] == [2] * count, limit=30)
        self.run("udevadm settle")
        return maps()

    def disks(self):
        """(target, session, LUN, name) of all disks, in the order of sessions."""
        listed = self.run("""for s in /sys/class/iscsi_session/session*; do for b in $s/device/target*/*/block/*; do
            [ -e $b ] && echo "$(cat $s/targetname) ${s##*session} ${b%/block/*} ${b##*/}"
        done; done; true""")
        found = []
        for target, session, path, name in map(str.split, listed.splitlines()):
            found.append((target.removeprefix(f"{NAMING_AUTHORITY}:"), int(session), int(path.rsplit(":", 1)[1]), name))
        return sorted(found, key=lambda disk: disk[1:3])

    def disks_of(self, target):
        """{LUN: name} of each session with a target."""
        sessions = {}
        for name, session, lun, disk in self.disks():
            if name == target:
                sessions.setdefault(session, {})[lun] = disk
        return list(sessions.values())

    def sessions(self):
        """{number: state}"""
        listed = self.run("""for s in /sys/class/iscsi_session/session*; do
            [ -e $s ] && echo "${s##*session} $(cat $s/state)"
        done; true""")
        return dict(map(str.split, listed.splitlines()))

    def first_byte(self, device):
        """What all of the first 64 KiB is."""
        found = self.run(f"dd if={device} iflag=direct bs=64k count=1 2>/dev/null | od -An -v -tx1 | "
                         "tr -s ' ' '\\n' | sort -u")
        return [int(byte, 16) for byte in found.split()]


def guest_server(t, **kwargs):
    """A server whose two portals, of two groups, are told as what the guest reaches them by."""
    ports = free_ports(2)
    served = server(t, start=False, portals=0, args=[
        f"--iscsi=127.0.0.1:{port}/{group}={HOST}:{port}" for group, port in enumerate(ports, 1)], **kwargs)
    served.ports = ports
    return served.start()


@test(limit=240, hindcast_only=True)
def a_slow_flush_costs_no_session(t):
    """A disk that takes 14 s for a sync, under ext4, with pings every five seconds."""
    served = guest_server(t)
    kernel = Kernel(t)
    for name in ("one", "two"):
        served.create(name, 64 * MIB)
    served.target("create", "both")
    for name in ("one", "two"):
        served.target("add-lun", "both", "--volume", name)
    disks = kernel.login(served, "both")
    times = kernel.run("cd /sys/class/iscsi_connection/connection* && cat recv_tmo ping_tmo")
    assert times.split() == [str(PING)] * 2, f"the pings of open-iscsi's defaults: {times}"
    kernel.run(f"mkfs.ext4 -q /dev/{disks[0]} && mount -t ext4 /dev/{disks[0]} /mnt && "
               "dd if=/dev/zero of=/mnt/file bs=4k count=1 2>/dev/null && sync")
    before = kernel.sessions()
    # Destage has syncs of its own, which the flush would wait for.
    served.drained()
    slow = Slow(t, served, SLOW_FLUSH)
    began = time.monotonic()
    # What is there already, and no metadata: one flush, where a new file takes three.
    kernel.run("(dd if=/dev/zero of=/mnt/file bs=4k count=1 conv=notrunc && sync -d /mnt/file; echo done $?) "
               ">/run/flushed 2>&1 &")
    # Long enough without a word from the server that the initiator has asked twice.
    time.sleep(2.5 * PING)
    said = kernel.run("cat /run/flushed")
    assert "done" not in said, f"the disk was not slow: {said}"
    at = time.monotonic()
    kernel.run(f"dd if=/dev/{disks[1]} of=/dev/null iflag=direct bs=4k count=1")
    other = time.monotonic() - at
    wait_for("the flush", lambda: "done" in kernel.run("cat /run/flushed"), limit=90, step=0.5)
    took = time.monotonic() - began
    slow.end()
    t.say(f"fdatasync of ext4: {took:.1f} s; a read of another unit meanwhile {other:.2f} s")
    assert "done 0" in kernel.run("cat /run/flushed"), kernel.run("cat /run/flushed")
    assert took >= SLOW_FLUSH and other < 2
    assert kernel.trouble() == [] and kernel.sessions() == before and set(before.values()) == {"LOGGED_IN"}


@test(limit=240, hindcast_only=True)
def many_luns_at_once_cost_no_session(t):
    """149 LUNs as fast as the API takes them: the session stays, and all are seen."""
    served = guest_server(t)
    kernel = Kernel(t)
    # Naming each disk takes the guest more time than all else, and is not what this is about.
    kernel.run("udevadm control --exit")
    served.target("create", "many")
    api = Api(served.api)
    for number in range(MORE_LUNS + 1):
        api.post("volumes", {"name": f"v{number}", "size": 4 * MIB})
    api.post("targets/many/luns", {"volume": "v0"})
    kernel.login(served, "many")
    before = kernel.sessions()
    began = time.monotonic()
    for number in range(1, MORE_LUNS + 1):
        api.post("targets/many/luns", {"volume": f"v{number}"})
    took = time.monotonic() - began
    api.close()
    wait_for("a LUN that it was told of", lambda: len(kernel.disks()) > 1 or kernel.trouble(), limit=30)
    assert kernel.trouble() == []
    told = len(kernel.disks())
    at = time.monotonic()
    kernel.run("iscsiadm -m session -R", limit=120)
    # A disk comes a little after its unit.
    wait_for("all disks", lambda: len(kernel.disks()) == MORE_LUNS + 1, limit=30)
    seen = kernel.disks_of("many")
    t.say(f"{MORE_LUNS} LUNs in {took:.2f} s; {told} disks without being asked, {len(seen[0])} after "
          f"{time.monotonic() - at:.1f} s of scanning")
    assert took < 20, "too slow to mean anything"
    assert len(seen) == 1 and sorted(seen[0]) == list(range(MORE_LUNS + 1))
    assert kernel.trouble() == [] and kernel.sessions() == before and set(before.values()) == {"LOGGED_IN"}
    assert kernel.first_byte(f"/dev/{seen[0][MORE_LUNS]}") == [0]


@test(limit=240, hindcast_only=True)
def moments_of_a_volume_are_disks_of_their_own(t):
    """A volume, its snapshot and three of its moments, by two portals: by-id names, and multipath."""
    served = guest_server(t)
    kernel = Kernel(t)
    session = attached(served.create("db", 64 * MIB, "16K", "--cdp", "parity"))
    targets, number = {}, 0
    while len(targets) < 3:
        number += 1
        assert session.write(0, bytes([number]) * 64 * KIB)[0] == 0
        lsn = served.pool()["journal"]["sequenced_lsn"]
        # The moments whose numbers are most alike.
        if lsn % 16 == 0:
            targets[f"db:at:lsn:{lsn}"] = number
    served.cli("snapshot", "create", "db@kept")
    targets["db:snap:kept"] = number
    assert session.write(0, bytes([number + 1]) * 64 * KIB)[0] == 0
    targets["db"] = number + 1
    session.close()
    kernel.login(served, *targets, portals=(0, 1))
    paths = {target: {session[0] for session in kernel.disks_of(target)} for target in targets}
    assert all(len(names) == 2 for names in paths.values()), paths
    links = by_id(kernel)
    for target, byte in targets.items():
        of_it = [link for link, disk in links.items() if disk in paths[target]]
        assert sum(link.startswith(("scsi-3", "wwn-0x")) for link in of_it) == 2, (target, links)
        for link in of_it:
            assert kernel.first_byte(f"/dev/disk/by-id/{link}") == [byte], (target, link, links)
    merged_by_multipath(t, kernel, targets, paths)


def by_id(kernel):
    """{name in /dev/disk/by-id: the disk that it leads to}"""
    listed = kernel.run('cd /dev/disk/by-id && for l in *; do echo "$l $(basename $(readlink -f $l))"; done')
    return dict(map(str.split, listed.splitlines()))


def merged_by_multipath(t, kernel, targets, paths):
    """With the documented configuration: one map a volume, snapshot or moment, of its two paths."""
    found = kernel.multipath(len(targets))
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, paths.values())), (found, paths)
    names = by_id(kernel)
    for wwid, disks in found.items():
        [target] = [target for target in targets if paths[target] == disks]
        for device in (f"/dev/mapper/{wwid}", f"/dev/disk/by-id/scsi-{wwid}", f"/dev/disk/by-id/wwn-0x{wwid[1:]}"):
            assert kernel.first_byte(device) == [targets[target]], (target, device)
        assert names[f"scsi-{wwid}"].startswith("dm-"), names
    assert "1 alua" in kernel.run("dmsetup table"), "the handler of the documented configuration"
    t.say(f"{len(paths)} disks of two paths each: {', '.join(sorted(found))}")


WRITER = """
n=0
while [ ! -e /run/stop ]; do
  n=$((n + 1))
  dd if=/dev/urandom of=/mnt/f$n bs=64k count=1 conv=fsync 2>/dev/null || echo $n >>/run/failed
  sha256sum /mnt/f$n >>/run/sums
done
echo >/run/ended
"""


class Writer:
    """Writes and syncs one file after another on a mounted file system of the guest."""

    def __init__(self, kernel):
        self.kernel = kernel
        kernel.run(f"rm -f /run/stop /run/ended /run/failed; :>/run/sums; cat >/run/writer <<'END'{WRITER}END\n"
                   "sh /run/writer >/run/writer.out 2>&1 &")
        self.goes_on()

    def count(self):
        return int(self.kernel.run("wc -l </run/sums"))

    def goes_on(self):
        before = self.count()
        wait_for("files that are written", lambda: self.count() > before + 5, limit=90, step=0.2)

    def end(self, device):
        """All files are there, whole, and the file system is clean."""
        self.kernel.run("touch /run/stop; until [ -e /run/ended ]; do sleep 0.1; done")
        assert self.kernel.run("cat /run/failed", check=False)[0] != 0, "a write or sync failed"
        self.kernel.run(f"umount /mnt && mount -t ext4 {device} /mnt && sha256sum -c /run/sums >/run/verified",
                        limit=120)
        self.kernel.run(f"umount /mnt && e2fsck -fn {device}", limit=120)
        return self.count()


def restarts_under(t, kernel, served, device, down):
    """Stops the server in order, and kills it, under a file system that is being written to."""
    kernel.run(f"mkfs.ext4 -q {device} && mount -t ext4 {device} /mnt")
    writer = Writer(kernel)
    for end in (served.stop, served.kill):
        end()
        time.sleep(1)
        count = writer.count()
        time.sleep(down)
        assert writer.count() == count, "nobody waits: the server was not away"
        began = time.monotonic()
        served.start()
        writer.goes_on()
        t.say(f"{'stopped' if end == served.stop else 'killed'} for {down} s: goes on "
              f"{time.monotonic() - began:.1f} s after the start")
    t.say(f"{writer.end(device)} files are whole")


@test(limit=300, hindcast_only=True)
def a_restart_is_a_pause_for_a_file_system(t):
    """With open-iscsi's defaults: no error reaches ext4, and the session is the same."""
    served = guest_server(t)
    kernel = Kernel(t)
    served.create("db", 512 * MIB)
    [disk] = kernel.login(served, "db").values()
    before = kernel.sessions()
    restarts_under(t, kernel, served, f"/dev/{disk}", down=3)
    assert [line for line in kernel.trouble() if not LOST_CONNECTION.search(line)] == []
    assert kernel.sessions() == before and set(before.values()) == {"LOGGED_IN"}


@test(limit=300, hindcast_only=True)
def a_restart_is_a_pause_under_multipath(t):
    """Sessions that give up sooner than the server is back: multipath holds what they give back."""
    served = guest_server(t)
    kernel = Kernel(t)
    served.create("db", 512 * MIB)
    kernel.login(served, "db", portals=(0, 1), replacement_timeout=3)
    [wwid] = kernel.multipath(1)
    restarts_under(t, kernel, served, f"/dev/mapper/{wwid}", down=5)
    assert any("session recovery timed out" in line for line in kernel.dmesg()), "no path was given up"
    of_the_map = re.compile(r"EXT4-fs|JBD2|Aborting journal|I/O error, dev dm-|on dev dm-")
    assert [line for line in kernel.trouble() if of_the_map.search(line)] == []


if __name__ == "__main__":
    main()
