#!/usr/bin/python3
"""Who may use a target: by name, by address, by secret; read-only, with some LUNs only; all of it kept over restarts."""

from iscsi import *
from iscsi_wire import READ, Closed, Initiator, sense_of

GOOD, CHECK_CONDITION = 0, 2
# Login status (RFC 7143 11.13.5).
OK, NO_PROOF, NOT_FOUND_HERE = (0, 0), (2, 1), (2, 3)
SECRET, OTHER_SECRET = "first-secret-123", "second-secret-45"


def login(url, name=INITIATOR, source=None):
    """(login status, connection)."""
    session = Initiator(url.host, url.port, source=source)
    answer = session.login(name, url.target)
    return (answer.bhs[36], answer.bhs[37]), session


def status_of_login(url, name=INITIATOR, source=None):
    status, session = login(url, name, source)
    session.close()
    return status


def attach(url, name=INITIATOR):
    """A session that has met its unit attentions."""
    status, session = login(url, name)
    assert status == OK, f"{name} is refused: {status}"
    session.settle()
    return session


def discovered(url, name=INITIATOR):
    """Short names of the targets that discovery shows."""
    listed = run("iscsi-ls", "-i", name, url.portal)
    return sorted({line.split()[0].removeprefix(f"Target:{NAMING_AUTHORITY}:") for line in listed.splitlines()
                   if line.startswith("Target:")})


def refused_write(session, lun=0):
    """Whether a write meets DATA PROTECT."""
    status, sense = session.write(8, bytes(512), lun)
    return status == CHECK_CONDITION and sense_of(sense)[0] == 7


def with_secret(user, secret, target_user=None, target_secret=None):
    """libiscsi's environment for CHAP."""
    found = {"LIBISCSI_CHAP_USERNAME": user, "LIBISCSI_CHAP_PASSWORD": secret}
    if target_user:
        found |= {"LIBISCSI_CHAP_TARGET_USERNAME": target_user, "LIBISCSI_CHAP_TARGET_PASSWORD": target_secret}
    return {**os.environ, **found}


def lets_in(url, environment=None):
    """Whether libiscsi can log in."""
    done = run("iscsi-inq", url, check=False, env=environment or dict(os.environ), timeout=30)
    return done.returncode == 0 and "HINDCAST" in done.stdout


@test(hindcast_only=True)
def names_decide(t):
    """Wildcards, the first rule that fits, what is shown to whom; capitals don't matter."""
    need("iscsi-ls")
    served = server(t)
    one, two = served.create("one", 64 * MIB), served.create("two", 64 * MIB)
    assert status_of_login(one) == OK, "open as long as there is no rule, on loopback"
    served.target("allow", "one", "--initiator", "iqn.2026-11.example.client:*")
    served.target("deny", "one", "--initiator", "iqn.2026-11.example.client:t?o", "--at", "1")
    for name, expected in ((INITIATOR, OK), ("iqn.2026-11.example.client:ONE", OK), (OTHER_INITIATOR, NOT_FOUND_HERE),
                           ("iqn.2026-11.example.other:one", NOT_FOUND_HERE), ("iqn.2026-11.example.client:twoo", OK)):
        assert status_of_login(one, name) == expected, (name, status_of_login(one, name))
    assert discovered(one) == ["one", "two"] and discovered(one, OTHER_INITIATOR) == ["two"]
    assert status_of_login(two, OTHER_INITIATOR) == OK
    # A rule for all closes what had no rule.
    served.target("allow", "--all", "--initiator", INITIATOR)
    assert status_of_login(two) == OK and status_of_login(two, OTHER_INITIATOR) == NOT_FOUND_HERE
    served.target("disallow", "--all", "--rule", "1")
    served.target("disallow", "one", "--rule", "1")
    assert status_of_login(one, OTHER_INITIATOR) == OK
    missing = Url(one.port, one.target + "x", 0)
    assert status_of_login(missing) == NOT_FOUND_HERE


@test(hindcast_only=True)
def addresses_decide(t):
    served = server(t)
    url = served.create("v", 64 * MIB)
    served.target("allow", "v", "--address", "127.0.0.0/30")
    served.target("allow", "v", "--address", "127.0.1.0/24", "--initiator", OTHER_INITIATOR)
    served.target("deny", "v", "--address", "127.0.0.2", "--at", "1")
    for source, name, expected in (("127.0.0.1", INITIATOR, OK), ("127.0.0.2", INITIATOR, NOT_FOUND_HERE),
                                   ("127.0.0.3", INITIATOR, OK), ("127.0.0.4", INITIATOR, NOT_FOUND_HERE),
                                   ("127.0.1.77", INITIATOR, NOT_FOUND_HERE), ("127.0.1.77", OTHER_INITIATOR, OK)):
        found = status_of_login(url, name, source)
        assert found == expected, f"{name} from {source}: {found}"


@test(hindcast_only=True)
def closed_beyond_loopback(t):
    """A server that others can reach lets nobody in until it is told whom."""
    need("iscsi-ls")
    port = free_ports(1)[0]
    served = server(t, portals=0, args=[f"--iscsi=0.0.0.0:{port}"])
    served.ports = [port]
    url = served.create("v", 64 * MIB)
    assert status_of_login(url) == NOT_FOUND_HERE and discovered(url) == []
    served.target("allow", "v", "--initiator", INITIATOR)
    assert status_of_login(url) == OK and discovered(url) == ["v"]
    assert status_of_login(url, OTHER_INITIATOR) == NOT_FOUND_HERE and discovered(url, OTHER_INITIATOR) == []


@test(hindcast_only=True)
def read_only_for_some(t):
    need_qemu_iscsi()
    served = server(t)
    url = served.create("v", 64 * MIB)
    served.target("allow", "v", "--initiator", INITIATOR)
    served.target("allow", "v", "--initiator", OTHER_INITIATOR, "--read-only")
    writer, reader = attach(url), attach(url, OTHER_INITIATOR)
    assert writer.write(8, b"\x11" * 512)[0] == GOOD and refused_write(reader)
    assert reader.read(8, 1) == (GOOD, b"\x11" * 512)
    # MODE SENSE (6): the WP bit of the header (SBC-3 6.4.1).
    protected = lambda session: session.execute(bytes([0x1A, 0, 0x3F, 0, 192, 0]), READ, 192)[1][2] & 0x80 != 0
    assert protected(reader) and not protected(writer)
    options = ["-r", "--image-opts", url.blockdev(**{"initiator-name": OTHER_INITIATOR})]
    assert "verification failed" not in run("qemu-io", *options, "-c", "read -P 0x11 4k 512")


@test(hindcast_only=True)
def luns_are_masked(t):
    need("iscsi-ls")
    served = server(t)
    for name in ("a", "b", "c"):
        served.create(name, 64 * MIB)
    served.target("create", "multi")
    for lun, name in ((0, "a"), (3, "b"), (7, "c")):
        served.target("add-lun", "multi", "--volume", name, "--lun", lun)
    served.target("allow", "multi", "--initiator", INITIATOR)
    served.target("allow", "multi", "--initiator", OTHER_INITIATOR, "--lun", 3, "--lun", 7)
    url = Url(served.ports[0], f"{NAMING_AUTHORITY}:multi", 0)

    def luns(session):
        """REPORT LUNS (SPC-4 6.33)."""
        _, answer = session.execute(bytes([0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), READ, 256)
        count = int.from_bytes(answer[:4], "big") // 8
        return [answer[8 + 8 * i + 1] for i in range(count)]

    everything, some = attach(url), login(url, OTHER_INITIATOR)[1]
    assert luns(everything) == [0, 3, 7] and luns(some) == [3, 7], (luns(everything), luns(some))
    def settled_read(session, lun):
        for _ in range(6):
            status, data = session.read(0, 1, lun)
            if status == GOOD or sense_of(data)[0] != 6:
                return status, data
        raise AssertionError("unit attentions without end")
    for lun in (0, 3, 7):
        assert settled_read(everything, lun)[0] == GOOD
    status, sense = settled_read(some, 0)
    assert status == CHECK_CONDITION and sense_of(sense) == (5, 0x25, 0), f"LUN 0 is not masked: {sense.hex()}"
    assert settled_read(some, 3)[0] == settled_read(some, 7)[0] == GOOD
    shown = run("iscsi-ls", "-s", "-i", OTHER_INITIATOR, url.portal)
    assert "Lun:3 " in shown and "Lun:7 " in shown and "Lun:0 " not in shown.split(":multi ")[1].split("Target:")[0], shown
    # One logical unit by two targets: the same content.
    assert everything.write(0, b"\x77" * 512, 3)[0] == GOOD
    assert attach(served.url("b")).read(0, 1)[1] == b"\x77" * 512


@test(hindcast_only=True)
def chap_in_both_directions(t):
    need("iscsi-inq", "iscsi-ls")
    served = server(t)
    url = served.create("v", 64 * MIB)
    served.ask_for_chap("v", "alice", SECRET)
    assert status_of_login(url) == NO_PROOF and not lets_in(url)
    assert lets_in(url, with_secret("alice", SECRET))
    for user, secret in (("alice", OTHER_SECRET), ("bob", SECRET), ("alice", SECRET + "x"), ("alice", SECRET[:-1])):
        assert not lets_in(url, with_secret(user, secret)), f"let in with {user}, {secret}"
    # The server can't be made to prove itself when it has nothing to prove with.
    assert not lets_in(url, with_secret("alice", SECRET, "server", OTHER_SECRET))
    served.ask_for_chap("v", "alice", SECRET, ("server", OTHER_SECRET))
    assert lets_in(url, with_secret("alice", SECRET, "server", OTHER_SECRET))
    assert lets_in(url, with_secret("alice", SECRET)), "the initiator need not ask"
    for user, secret in (("server", OTHER_SECRET + "x"), ("other", OTHER_SECRET)):
        assert not lets_in(url, with_secret("alice", SECRET, user, secret)), "libiscsi took a wrong proof"
    said = served.target("chap", "v", "--user", "a", "--secret-file", "/dev/null", code=(USAGE, FAILED))
    assert SECRET not in said
    # For all targets, and for discovery.
    served.target("chap", "v", "--off")
    assert lets_in(url)
    served.ask_for_chap("--all", "carol", OTHER_SECRET)
    assert not lets_in(url) and lets_in(url, with_secret("carol", OTHER_SECRET))
    assert run("iscsi-ls", url.portal, check=False).returncode != 0, "discovery without a proof"
    assert ":v " in run("iscsi-ls", url.portal, env=with_secret("carol", OTHER_SECRET))
    no_secret_anywhere(served)


def no_secret_anywhere(served):
    """Not in the log, not in what the API says; where it has to be, only the owner can read it."""
    shown = json.dumps([served.target("show", "v"), served.target("show", "--all"), served.target("list")])
    for secret in (SECRET, OTHER_SECRET):
        assert secret not in shown, "the API tells a secret"
        assert secret not in served.log.read_text(errors="replace"), "the log tells a secret"
    for path in served.dir.rglob("*"):
        if path.is_file() and path.stat().st_size < 16 * MIB and SECRET.encode() in path.read_bytes():
            assert path.stat().st_mode & 0o077 == 0, f"{path} holds a secret and can be read by others"


@test(hindcast_only=True)
def kept_over_restarts(t):
    """Targets, LUNs, rules, secrets and states, after SIGKILL at once and after an orderly stop."""
    need("iscsi-inq")
    served = server(t)
    url = served.create("v", 64 * MIB)
    served.create("w", 64 * MIB)
    served.target("create", "multi", "--alias", "for the cluster")
    served.target("add-lun", "multi", "--volume", "v")
    served.target("add-lun", "multi", "--volume", "w", "--lun", 9)
    served.target("allow", "multi", "--initiator", "iqn.2026-11.example.*", "--address", "127.0.0.0/8", "--read-only",
                  "--lun", 9)
    served.target("deny", "--all", "--initiator", OTHER_INITIATOR)
    served.target("allow", "--all")
    served.target("set", "w", "--disabled")
    served.ask_for_chap("v", "alice", SECRET, ("server", OTHER_SECRET))
    state = lambda: [served.target("list"), served.target("show", "--all")] + [
        served.target("show", name) for name in ("v", "w", "multi")]
    before = state()
    for way in (served.kill, served.stop):
        way()
        served.start()
        assert state() == before, f"{state()}\nis not\n{before}"
        assert not lets_in(url) and lets_in(url, with_secret("alice", SECRET, "server", OTHER_SECRET))
        assert status_of_login(served.url("w")) != OK, "a disabled target lets initiators in"
        assert status_of_login(url, OTHER_INITIATOR) == NOT_FOUND_HERE
    served.target("delete", "multi")
    served.cli("volume", "rename", "v", "renamed")
    served.kill()
    served.start()
    served.target("show", "multi", code=NOT_FOUND)
    assert lets_in(served.url("renamed"), with_secret("alice", SECRET)), "the secret did not follow the volume's name"
    served.check()


@test(hindcast_only=True)
def changes_reach_open_sessions(t):
    served = server(t)
    url = served.create("v", 64 * MIB)
    served.target("allow", "v", "--initiator", INITIATOR)
    session = attach(url)
    assert session.write(8, bytes(512))[0] == GOOD
    served.target("allow", "v", "--initiator", INITIATOR, "--read-only", "--at", "1")
    wait_for("refused writes", lambda: refused_write(session), limit=10)
    served.target("deny", "v", "--at", "1")
    try:
        for _ in range(100):
            session.execute(bytes(6))
            time.sleep(0.05)
        raise AssertionError("a session goes on that a new rule refuses")
    except (Closed, ConnectionError, TimeoutError):
        pass
    assert status_of_login(url) == NOT_FOUND_HERE


@test(hindcast_only=True)
def rules_attach_to_data(t):
    """Copies of a volume, and other targets that map it, let in nobody whom the volume's own target refuses."""
    need("iscsi-inq")
    served = server(t)
    url = served.create("v", 64 * MIB)
    served.cli("snapshot", "create", "v@s")
    served.target("create", "multi")
    served.target("add-lun", "multi", "--volume", "v")
    served.target("add-lun", "multi", "v@s")
    served.target("allow", "v", "--initiator", INITIATOR)
    multi = Url(served.ports[0], f"{NAMING_AUTHORITY}:multi", 0)
    insider, outsider = attach(multi), login(multi, OTHER_INITIATOR)[1]
    assert insider.read(0, 1, 0)[0] == GOOD
    for lun in (0, 1):
        status, sense = outsider.read(0, 1, lun)
        assert status == CHECK_CONDITION and sense_of(sense) == (5, 0x25, 0), f"LUN {lun} is seen: {sense.hex()}"
    served.cli("clone", "create", "v@s", "copy")
    served.cli("snapshot", "create", "v@w")
    served.cli("snapshot", "set", "v@w", "--writable")
    for name in ("v", "copy", "v.w", "v:snap:s", "v:at:s", "v:snap:w"):
        assert status_of_login(served.url(name)) == OK, name
        assert status_of_login(served.url(name), OTHER_INITIATOR) == NOT_FOUND_HERE, name
    served.ask_for_chap("v", "alice", SECRET)
    served.cli("clone", "create", "v@s", "second")
    for name in ("v", "second"):
        there = served.url(name)
        assert not lets_in(there) and status_of_login(there) == NO_PROOF, name
    status, sense = login(multi)[1].read(0, 1, 0)
    assert sense_of(sense) == (5, 0x25, 0), "an account of the volume is asked for at every target"


@test(hindcast_only=True)
def accounts_of_their_own(t):
    """Several accounts a target: each by its own secret, rules by account."""
    need("iscsi-inq")
    served = server(t)
    url = served.create("v", 64 * MIB)
    served.ask_for_chap("v", "alice", SECRET)
    served.ask_for_chap("v", "bob", OTHER_SECRET)
    assert lets_in(url, with_secret("alice", SECRET)) and lets_in(url, with_secret("bob", OTHER_SECRET))
    assert not lets_in(url, with_secret("alice", OTHER_SECRET)) and not lets_in(url, with_secret("bob", SECRET))
    served.target("allow", "v", "--user", "alice")
    assert lets_in(url, with_secret("alice", SECRET)) and not lets_in(url, with_secret("bob", OTHER_SECRET))
    served.target("chap", "v", "--remove", "alice")
    assert not lets_in(url, with_secret("alice", SECRET))


@test(hindcast_only=True)
def files_and_devices_are_units(t):
    """A file's bytes as they are, a block device, and what must be refused."""
    need_qemu_iscsi()
    served = server(t)
    image = t.dir / "image.raw"
    content = os.urandom(4 * MIB)
    image.write_bytes(content)
    served.target("create", "files")
    served.target("add-lun", "files", "--file", image)
    served.target("add-lun", "files", "--file", t.dir / "missing", code=(NOT_FOUND, USAGE, FAILED))
    url = Url(served.ports[0], f"{NAMING_AUTHORITY}:files", 0)
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", url, t.dir / "copy.raw")
    assert (t.dir / "copy.raw").read_bytes() == content
    run("qemu-io", "-f", "raw", "-c", "write -P 0x42 1M 64k", "-c", "flush", url)
    assert image.read_bytes()[MIB:MIB + 64 * KIB] == b"\x42" * 64 * KIB
    protected = t.dir / "protected.raw"
    protected.write_bytes(content)
    served.target("add-lun", "files", "--file", protected, "--read-only", "--lun", 4)
    session = attach(url)
    for _ in range(4):
        status, sense = session.write(0, bytes(512), lun=4)
        assert status == CHECK_CONDITION
        if sense_of(sense)[0] != 6:
            break
    assert sense_of(sense)[0] == 7 and protected.read_bytes() == content, sense.hex()
    session.close()
    served.kill()
    served.start()
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, url)
    if os.geteuid() == 0 and os.path.exists("/dev/loop-control"):
        backing = t.dir / "device.raw"
        run("truncate", "-s", 16 * MIB, backing)
        device = run("losetup", "--find", "--show", backing).strip()
        t.defer(run, "losetup", "-d", device)
        served.target("add-lun", "files", "--device", device, "--lun", 2)
        on_device = Url(served.ports[0], url.target, 2)
        run("qemu-io", "-f", "raw", "-c", "write -P 0x24 0 1M", "-c", "flush", on_device)
        served.target("remove-lun", "files", "2")
        assert backing.read_bytes()[:MIB] == b"\x24" * MIB
    else:
        t.say("no loop devices here: a block device as a unit was not tried")


if __name__ == "__main__":
    main()
