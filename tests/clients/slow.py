"""A disk that takes seconds for a sync."""

import subprocess
import time

from harness import *

SLOW = 6


class Slow:
    """Delays every sync of a server."""

    def __init__(self, t, served, seconds=SLOW):
        need("strace")
        self.process = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e",
             f"inject=fdatasync,fsync:delay_enter={int(seconds * 1e6)}", "-p", str(served.process.pid)],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        t.defer(self.end)
        time.sleep(1)
        if self.process.poll() is not None:
            raise Skip(f"strace can't attach here: {self.process.stderr.read().strip()}")

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
