#!/usr/bin/python3
"""libiscsi's test suite, all of it: plain, with both digests, with mutual CHAP, and on a write-protected unit. A test
that fails, an assertion that fails, and a skip that `iscsi_skips.txt` doesn't excuse all fail the run."""

import fnmatch
import re

import digests
from iscsi import *

SKIPS = pathlib.Path(__file__).resolve().parent / "iscsi_skips.txt"
SIZE = 256 * MIB
# Sanitize.Reset looks whether an overwrite is still under way 4 s after its start, later on a busy machine; the server
# overwrites at most 128 MiB a second. The others would only take longer on a large unit.
RESET_SIZE = 2 * GIB
SANITIZE = ("BlockErase", "BlockEraseReserved", "CryptoErase", "CryptoEraseReserved", "ExitFailureMode",
            "InvalidServiceAction", "Overwrite", "OverwriteReserved", "Readonly", "Reservations")
SECOND_INITIATOR = "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test-2"

SUITE = re.compile(r"^Suite: (\S+)")
TEST = re.compile(r"^  Test: (\S+) \.\.\.(.*)$")
SUMMARY = re.compile(r"^ *(suites|tests|asserts) +(\d+) +(\d+) +(\d+|n/a) +(\d+) +(\d+|n/a)$")


class Ran:
    """What one run of `iscsi-test-cu` printed (CUnit's basic interface, verbose)."""

    def __init__(self, text):
        self.text = text
        # (suite.test, lines), in order; a name comes several times when a test is in several families.
        self.tests = []
        self.summary = {}
        suite, lines = None, None
        for line in text.splitlines():
            if match := SUITE.match(line):
                suite, lines = match[1], None
            elif match := TEST.match(line):
                lines = [match[2]]
                self.tests.append((f"{suite}.{match[1]}", lines))
            elif match := SUMMARY.match(line):
                self.summary[match[1]] = {"ran": int(match[3]), "failed": int(match[5])}
                lines = None
            elif lines is not None:
                lines.append(line)

    def failures(self):
        """(name, lines) of each test that failed."""
        return [(name, lines) for name, lines in self.tests if any(re.search(r"(^|\.\.\.)FAILED$", l) for l in lines)]

    def skips(self):
        """name -> reasons of each test that left out something."""
        skipped = {}
        for name, lines in self.tests:
            for line in lines:
                if "[SKIPPED]" in line:
                    reason = line.split("[SKIPPED]", 1)[1].strip()
                    reasons = skipped.setdefault(name, [])
                    if reason not in reasons:
                        reasons.append(reason)
        return skipped


def excuses():
    """(pattern of names, pattern of reasons, why) of each line of iscsi_skips.txt."""
    lines = [line.strip() for line in SKIPS.read_text().splitlines()]
    return [tuple(part.strip() for part in line.split("|")) for line in lines if line and not line.startswith("#")]


def excused(name, reason):
    return [e for e in excuses() if fnmatch.fnmatchcase(name, e[0]) and re.search(e[1], reason)]


class Suite:
    """One run of the tool, under way; its output is kept in a log."""

    def __init__(self, t, name, urls, tests=None, environment=None, options=()):
        need("iscsi-test-cu", "stdbuf")
        self.t, self.name = t, name
        command = ["stdbuf", "-oL", "-eL", "iscsi-test-cu", "--dataloss", "--initiator-name-2", SECOND_INITIATOR,
                   *options, *(["--test", tests] if tests else []), *map(str, urls)]
        self.log = t.dir / f"suite-{name}.log"
        self.start = time.monotonic()
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})})
        t.defer(self.process.kill)

    def finish(self):
        """Waits for its end and returns it parsed."""
        self.process.wait()
        ran = Ran(self.log.read_text(errors="replace"))
        if "tests" not in ran.summary:
            raise AssertionError(
                f"iscsi-test-cu ended with {self.process.returncode} before its summary\n{ran.text[-3000:]}")
        self.t.say(f"{self.name}: {ran.summary['tests']['ran']} tests, {ran.summary['asserts']['ran']} assertions, "
                   f"{len(ran.skips())} with skips, in {time.monotonic() - self.start:.0f} s")
        return ran


def suite(*args, **kwargs):
    """One run from start to end."""
    return Suite(*args, **kwargs).finish()


def judge(t, ran, expected):
    """Everything passed, at least `expected` tests ran, and every skip has its excuse. Prints each skip."""
    listed = {}
    for name, reasons in ran.skips().items():
        for reason in reasons:
            why = excused(name, reason)
            listed.setdefault((reason, why[0][2] if why else "NOT EXCUSED"), []).append(name)
    for (reason, why), names in listed.items():
        t.say(f"  skipped {', '.join(names)}: {reason} ({why})")
    failures = ran.failures()
    text = "".join(f"{name}\n" + "\n".join(lines[:12]) + "\n" for name, lines in failures[:25])
    assert not failures and ran.summary["tests"]["failed"] == 0, f"{len(failures)} tests failed\n{text}"
    assert ran.summary["asserts"]["failed"] == 0, f"assertions failed\n{ran.text[-3000:]}"
    assert ran.summary["suites"]["failed"] == 0, f"a suite could not be set up\n{ran.text[-3000:]}"
    assert len(ran.tests) == ran.summary["tests"]["ran"], "the output is not what this test understands"
    assert len(ran.tests) >= expected, f"only {len(ran.tests)} tests ran"
    unexcused = [f"{name}: {reason}" for name, reasons in ran.skips().items() for reason in reasons
                 if not excused(name, reason)]
    assert not unexcused, "skips without an excuse in iscsi_skips.txt:\n" + "\n".join(unexcused)


def both_portals(server, volume="v"):
    return [server.url(volume, portal) for portal in (0, 1)]


@test(limit=420)
def all_families(t):
    """Each test by all of its names: 615 runs of tests, and no excuse that has become needless. Those of SANITIZE run
    beside the others, once, on a server of their own: they take more than a minute, most of which the tool sleeps."""
    sanitizing = []
    # tgt makes the tool wait for ever there.
    if not PEER:
        erased = server(t, "erased")
        names = ",".join(f"ALL.Sanitize.{name}" for name in SANITIZE)
        for volume, size, tests in (("v", SIZE, names), ("w", RESET_SIZE, "ALL.Sanitize.Reset")):
            # One portal: with two, the tool's Reservations keeps the reservation that its next test runs into.
            url = erased.create(volume, size)
            sanitizing.append(Suite(t, f"sanitize {volume}", [url], tests, options=["--allow-sanitize"]))
    served = server(t)
    served.create("v", SIZE)
    ran = suite(t, "all families", both_portals(served))
    judge(t, ran, 600)
    skips = ran.skips()
    served.check()
    for each, expected in zip(sanitizing, (len(SANITIZE), 1)):
        ran = each.finish()
        judge(t, ran, expected)
        for name, reasons in ran.skips().items():
            skips[name] = skips.get(name, []) + reasons
    if sanitizing:
        erased.check()
    for pattern, reason, _ in excuses():
        used = any(fnmatch.fnmatchcase(name, pattern) and any(re.search(reason, r) for r in reasons)
                   for name, reasons in skips.items())
        assert used, f"iscsi_skips.txt excuses {pattern} ({reason}), which is not skipped"


@test(limit=240)
def with_header_and_data_digests(t):
    served = server(t)
    served.create("v", SIZE)
    urls = both_portals(served)
    proxies = [digests.Proxy(url.port) for url in urls]
    for proxy in proxies:
        t.defer(proxy.close)
    ran = suite(t, "digests", [Url(proxy.port, url.target, url.lun) for proxy, url in zip(proxies, urls)], "ALL")
    for proxy in proxies:
        proxy.verify()
    checked = sum(proxy.digests_checked for proxy in proxies)
    t.say(f"{checked} digests of the server checked, {sum(p.digests_added for p in proxies)} added for the initiator")
    assert checked > 10_000, "the digests were not on"
    judge(t, ran, 225)


@test(limit=240, hindcast_only=True)
def with_mutual_chap(t):
    """Nobody gets in without the secrets, and with them everything passes."""
    served = server(t)
    served.create("v", SIZE)
    secrets = {"LIBISCSI_CHAP_USERNAME": "alice", "LIBISCSI_CHAP_PASSWORD": "initiator-secret-1",
               "LIBISCSI_CHAP_TARGET_USERNAME": "server", "LIBISCSI_CHAP_TARGET_PASSWORD": "target-secret-22"}
    served.ask_for_chap("v", "alice", "initiator-secret-1", ("server", "target-secret-22"))
    refused = run("iscsi-inq", served.url("v"), check=False)
    assert refused.returncode != 0, f"let in without a secret:\n{refused.stdout}"
    judge(t, suite(t, "mutual CHAP", both_portals(served), "ALL", secrets), 225)
    log = served.log_tail()
    assert not any(value in log for value in secrets.values() if "secret" in value), "a secret in the log"


@test(limit=60, hindcast_only=True)
def write_protected(t):
    """The tests that run only on a unit that can't be written, on a target that is read-only for its initiators."""
    served = server(t)
    served.create("v", SIZE)
    served.target("allow", "v", "--read-only")
    ran = suite(t, "write-protected", [served.url("v")], "ALL.ReadOnly,ALL.TestUnitReady,ALL.Read16")
    judge(t, ran, 2)
    assert "ReadOnly.ReadOnlySBC" not in ran.skips(), "the unit is not write-protected"


if __name__ == "__main__":
    main()
