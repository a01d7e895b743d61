#!/usr/bin/python3
"""SIGKILL under load. The client keeps its own record of what was acknowledged, and of what was in flight, and after
each restart compares every block: an acknowledged write is there; one in flight is there wholly, or not at all in each
block. Writes, zeroes and trims, of one to sixteen blocks, on several connections."""

import random

from harness import *
from load import BLOCK, BLOCKS, ZERO, Load, verify


def kill_rounds(t, server, uri, rounds, seconds, kill=None):
    rng = random.Random(23)
    model, sequence = [ZERO] * BLOCKS, 1
    for turn in range(rounds):
        load = Load(uri, rng, model)
        start = sequence
        sequence = load.run(seconds(rng), sequence, kill or server.kill)
        assert load.flying_at_end > 16, "the server was killed without a load"
        server.start()
        verify(uri, model, load.flying)
        t.say(f"kill {turn + 1}: {sequence - start} requests, {len(load.flying)} unanswered")
    server.check()
    verify(uri, model, {})


@test(limit=240)
def every_acknowledged_write_survives(t):
    server = t.server(destage_start=25)
    uri = server.create("v", BLOCKS * BLOCK)
    kill_rounds(t, server, uri, 30 if t.long else 6, lambda rng: rng.uniform(0.2, 2.0))


@test(limit=240, hindcast_only=True)
def with_a_small_journal(t):
    """Destage, recycling of segments and backpressure all the time."""
    server = t.server(journal="32M", pool="512M")
    uri = server.create("v", BLOCKS * BLOCK, "64K")
    kill_rounds(t, server, uri, 30 if t.long else 6, lambda rng: rng.uniform(1.0, 4.0))


@test(limit=240, hindcast_only=True)
def with_writes_by_reference(t):
    """Most data is in its slot before the journal refers to it."""
    server = t.server(journal="32M", pool="512M", args=["--direct-min=4K"])
    server.cli("pool", "upgrade", "--enable", "references")
    uri = server.create("v", BLOCKS * BLOCK, "4K")
    referred = 0

    def kill():
        nonlocal referred
        referred += Api(server.api).metric("hindcast_direct_bytes")
        server.kill()

    kill_rounds(t, server, uri, 30 if t.long else 6, lambda rng: rng.uniform(0.5, 2.0), kill)
    t.say(f"{referred / MIB:.0f} MiB by reference")
    assert referred > 16 * MIB, "hardly anything went by reference"


@test(limit=240, hindcast_only=True)
def killed_again_while_recovering(t):
    # Nothing is destaged before the kill: every restart has the whole journal before it.
    server = t.server(destage_start=100)
    uri = server.create("v", BLOCKS * BLOCK)
    rng = random.Random(29)
    model = [ZERO] * BLOCKS
    load = Load(uri, rng, model)
    load.run(3.0, 1, server.kill)
    for _ in range(20 if t.long else 6):
        server.start(wait=False)
        time.sleep(rng.uniform(0.0, 0.15))
        server.kill()
    server.start()
    verify(uri, model, load.flying)
    server.check()


@test(limit=120, hindcast_only=True)
def control_operations_survive_a_kill(t):
    """What the command line was told is done is there after SIGKILL at once."""
    server = t.server()
    for i in range(10):
        server.create(f"v{i}", (i + 1) * MIB)
        server.kill()
        server.start()
        assert server.show(f"v{i}")["size"] == (i + 1) * MIB
    server.cli("volume", "resize", "v3", "--size", 100 * MIB)
    server.cli("volume", "rename", "v4", "other")
    server.cli("volume", "delete", "--now", "v5")
    server.kill()
    server.start()
    assert server.show("v3")["size"] == 100 * MIB
    assert server.show("other")["size"] == 5 * MIB
    server.cli("volume", "show", "v4", code=NOT_FOUND)
    server.cli("volume", "show", "v5", code=NOT_FOUND)
    server.check()


@test(limit=120, hindcast_only=True)
def terminated_under_load(t):
    """SIGTERM: a clean exit, everything acknowledged is there."""
    server = t.server()
    uri = server.create("v", BLOCKS * BLOCK)
    rng, model, sequence = random.Random(31), [ZERO] * BLOCKS, 1
    for _ in range(3):
        load = Load(uri, rng, model)
        sequence = load.run(1.0, sequence, server.stop)
        server.check_offline()
        server.start()
        verify(uri, model, load.flying)


if __name__ == "__main__":
    main()
