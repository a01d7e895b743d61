#!/usr/bin/python3
"""Which of the server's threads run before others, where it may choose."""

import os
import subprocess
import sys

from harness import *
from libnbd import *

# Those that somebody waits for: the API's loop and workers, and who syncs in the background.
RAISED = {"hindcast", "tokio-rt-worker", "write-back"}
MAY_RAISE = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"


def policies(server):
    """(name, scheduling policy) of each thread."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    found = []
    for task in tasks.iterdir():
        try:
            found.append(((task / "comm").read_text().strip(), os.sched_getscheduler(int(task.name))))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
    return found


def raised(server):
    return {name for name, policy in policies(server) if policy == os.SCHED_RR}


def use(t, server):
    """A snapshot between commands, one without, and an export; tells the commands' policy, the names of threads that were
    raised meanwhile, and the connection to the volume."""
    note = t.dir / "policy"
    config = t.dir / "hindcast.toml"
    tell = f"{sys.executable} -c \"import os; print(os.sched_getscheduler(0))\" >{note}"
    config.write_text(f"[hooks.db]\nbefore = '''{tell}'''\nafter = 'true'\ntimeout = 30\n")
    server.args.append(f"--config={config}")
    server.start()
    server.create("db", 64 * MIB)
    h = nbd.NBD()
    h.connect_uri(server.uri("db"))
    for offset in range(0, 64 * MIB, MIB):
        h.pwrite(pattern(offset, MIB), offset)
    server.cli("snapshot", "create", "db@a")
    server.cli("snapshot", "create", "db@b", "--no-hooks")
    export = subprocess.Popen(
        [str(binary()), "export", "db@b", "--file", str(t.dir / "stream")],
        env={**os.environ, "HINDCAST_SOCKET": str(server.api)}, stderr=subprocess.DEVNULL)
    seen = set()
    while export.poll() is None:
        seen |= raised(server)
    assert export.returncode == 0 and (t.dir / "stream").stat().st_size > 64 * MIB
    return int(note.read_text()), seen, h


@test(hindcast_only=True)
def what_is_waited_for_runs_first(t):
    if subprocess.run([sys.executable, "-c", MAY_RAISE], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("real-time scheduling is not allowed here")
    server = t.server(start=False)
    hook, seen, connection = use(t, server)
    assert hook == os.SCHED_OTHER, f"the command ran with policy {hook}"
    assert seen <= RAISED, seen
    # What lowers a worker for a while raises it again: soon, and not only because an idle one goes away after 10 s.
    ordinary = lambda: {name for name, policy in policies(server) if policy != os.SCHED_RR}
    wait_for("workers that are raised again", lambda: "tokio-rt-worker" not in ordinary(), limit=3)
    wait_for("the API's loop after the export", lambda: raised(server) >= RAISED - {"tokio-rt-worker"})
    assert {"maintenance", "nbd-conn"} <= ordinary(), ordinary()
    server.stop()


class Unprivileged(Hindcast):
    """May not choose how its threads are scheduled."""

    def spawn(self, command):
        drop = ["--inh-caps", "-sys_nice", "--bounding-set", "-sys_nice"] if os.geteuid() == 0 else []
        super().spawn(["prlimit", "--rtprio=0", "setpriv", *drop, *command])


@test(hindcast_only=True)
def without_leave_all_goes_on(t):
    need("prlimit", "setpriv")
    server = Unprivileged(t.dir / "data")
    t.defer(server.take_down)
    hook, seen, connection = use(t, server)
    assert (hook, seen) == (os.SCHED_OTHER, set())
    assert "RLIMIT_RTPRIO" in server.log.read_text(), server.log_tail()
    server.stop()


if __name__ == "__main__":
    main()
