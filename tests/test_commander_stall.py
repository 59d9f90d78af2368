"""Nobody loses a lease because the commander was frozen or could not write: the time in which nobody could renew is
given back, and no more than that."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from commander_kit import Agent, FakeClock, Kit, running, started
from msgspec.structs import replace

from relaytui.commander.model.lease import RECONNECT_WINDOW
from relaytui.commander.store import runs
from relaytui.wire.errors import RelayError

WINDOW = RECONNECT_WINDOW


def tick(length: float) -> float:
    return min(1.0, length / 20)


async def awake(kit: Kit, clock: FakeClock, seconds: float, every: float) -> None:
    """Time with a commander that is well: a sweep each tick."""
    while seconds > 1e-9:
        clock.advance(min(every, seconds))
        seconds -= every
        with contextlib.suppress(RelayError):  # as the server's own loop: one that failed is followed by the next
            await kit.commander.core.leases.sweep()


def held(kit: Kit, run_id: str) -> bool:
    return kit.commander.core.board.runs[run_id].run.status.active


def left(kit: Kit, clock: FakeClock, run_id: str) -> float:
    """Seconds until the run's lease runs out."""
    return kit.commander.core.board.runs[run_id].expires - clock.boot()


FREEZES = ("0.5t", "0.99t", "1.01t", "1.5t", "3t", "0.2L", "0.5L", "0.9L", "0.99L", "1.01L", "2L", "30000s")


def seconds(freeze: str, length: float) -> float:
    unit = {"t": 2 * tick(length), "L": length, "s": 1.0}[freeze[-1]]
    return float(freeze[:-1]) * unit


@pytest.mark.parametrize("length", [1.0, 10.0, 60.0, 300.0])
async def test_a_freeze_of_any_size_costs_no_holder_its_lease(tmp_path: Path, length: float) -> None:
    clock = FakeClock()
    every, tolerance = tick(length), 2 * tick(length)
    window = min(length, WINDOW)
    async with running(tmp_path / "state", clock, lease_seconds=length) as kit:
        core, agent = kit.commander.core, await kit.agent()
        for n, freeze in enumerate(FREEZES):
            gap = seconds(freeze, length)
            remaining = {f"run-{n}-end": every / 2, f"run-{n}-late": tolerance, f"run-{n}-half": length / 2}
            for run_id, wanted in remaining.items():
                assert (await agent.acquire(run_id))["type"] == "granted"
                lease = core.board.runs[run_id].lease
                assert lease is not None
                sooner = replace(lease, expires=clock.boot() + wanted)
                await core.relay.run(lambda tx, sooner=sooner: runs.save_lease(tx, sooner))
            await kit.commander.core.leases.sweep()
            clock.advance(gap)
            await kit.commander.core.leases.sweep()
            for run_id, wanted in remaining.items():
                if gap > tolerance:
                    assert held(kit, run_id), (freeze, run_id)
                    # At least what it had, or what the freeze took, or the window to come back in.
                    assert left(kit, clock, run_id) >= min(wanted, gap, window) - 1e-6, (freeze, run_id)
                    assert left(kit, clock, run_id) <= max(wanted, min(gap, window)) + 1e-6, (freeze, run_id)
                elif wanted > gap:
                    assert held(kit, run_id), (freeze, run_id)
            # Who stays silent after it loses the run all the same, soon.
            await awake(kit, clock, max(window, length / 2) + 3 * every, every)
            assert not any(held(kit, run_id) for run_id in remaining), freeze


async def test_a_holder_that_renews_is_never_within_the_tolerance_of_its_end(tmp_path: Path) -> None:
    for length in (1.0, 5.0, 10.0, 20.0, 60.0, 300.0):
        async with running(tmp_path / f"state-{length:g}", FakeClock(), lease_seconds=length) as kit:
            leases = kit.commander.core.leases
            assert leases.tolerance <= length / 10
            assert leases.interval <= leases.tolerance / 2


async def test_freezes_without_end_keep_no_dead_holder_for_ever(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock, lease_seconds=10) as kit:
        await (await kit.agent()).acquire("run-1")
        lasted = 0.0
        while held(kit, "run-1"):
            clock.advance(3)  # every tick is late
            lasted += 3
            await kit.commander.core.leases.sweep()
            assert lasted < 100
        assert lasted >= 10


async def test_the_originals_worker_is_not_turned_away_in_the_moment_after_a_freeze(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock, lease_seconds=10) as kit:
        status, grant = await kit.post("/api/lease/acquire", {"worker_id": "w", "run_id": "run-1"}, role="worker")
        assert (status, grant["status"]) == (200, "granted")
        clock.advance(60)
        body = {"worker_id": "w", "lease_token": grant["lease_token"]}
        assert (await kit.post("/api/lease/renew", body, role="worker"))[0] == 200
        await kit.commander.core.leases.sweep()
        assert held(kit, "run-1")


# -- a disk that does not take it ----------------------------------------------------------------------------------


async def come_back(kit: Kit, agent: Agent) -> None:
    """Its connection was hung up: another one, for the same lease."""
    agent.ws = (await kit.agent(agent.worker, agent.incarnation)).ws


@pytest.mark.parametrize("length", [10.0, 300.0])
@pytest.mark.parametrize("stretch", [0.5, 0.99, 1.5, 20.0])
async def test_a_disk_that_takes_nothing_costs_no_holder_its_lease(
    tmp_path: Path, length: float, stretch: float
) -> None:
    clock = FakeClock()
    every = tick(length)
    async with running(tmp_path / "state", clock, lease_seconds=length) as kit:
        agent, other = await kit.agent("holder"), await kit.agent("other")
        await agent.acquire("run-1")
        await agent.state(started())
        await awake(kit, clock, length * 0.6, every)
        database = kit.commander.core.relay._db
        database.execute("PRAGMA query_only=ON")
        await agent.say(type="renew", request=99, run_id="run-1", epoch=1, token=agent.token)
        assert (await agent.hear())["type"] == "problem"
        await awake(kit, clock, length * stretch, max(every, length * stretch / 50))
        database.execute("PRAGMA query_only=OFF")
        # The disk takes it again: before anybody else is asked, the holder has its time back.
        await awake(kit, clock, every, every)
        assert held(kit, "run-1")
        assert (await other.acquire("run-1"))["code"] == "held"
        assert left(kit, clock, "run-1") >= min(length * 0.4, length * stretch, WINDOW) - 2 * every
        await come_back(kit, agent)
        assert (await agent.renew())["type"] == "renewed"
        # A holder that does not come back loses it.
        await awake(kit, clock, length + 3 * every, every)
        assert not held(kit, "run-1")


async def test_a_renewal_that_waits_behind_a_slow_disk_comes_before_the_sweep(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock, lease_seconds=10) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await awake(kit, clock, 9.9, 0.5)
        now = clock.boot()
        core = kit.commander.core
        # The sweep was decided while the lease was live, and carried out when the disk had it: by the time of deciding.
        clock.advance(5)
        await core.relay.run(lambda tx: core.leases._sweep_in(tx, now))
        assert held(kit, "run-1")
