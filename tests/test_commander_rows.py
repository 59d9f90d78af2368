"""A restart changes nothing in what is shown of a run: the row is made of what is committed, in one way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from commander_kit import Agent, FakeClock, Kit, ended, log, published, running, started, step

MOVED = {"lease_expires_at", "silent_since"}
"""A restart gives holders a window to come back in, and until they do nobody is connected."""
OUTCOMES = ("completed", "failed", "preempted", "drained")


async def rows(kit: Kit) -> dict[str, dict[str, Any]]:
    found = (await kit.get("/api/runs"))[1]["runs"]
    return {row["run_id"]: {key: value for key, value in row.items() if key not in MOVED} for row in found}


async def same_after_a_restart(kit: Kit, state: Path, clock: FakeClock) -> dict[str, dict[str, Any]]:
    before = await rows(kit)
    await kit.commander.stop()
    async with running(state, clock) as again:
        assert await rows(again) == before
    return before


async def test_an_attempt_that_never_stepped_does_not_take_the_run_back(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        first = await kit.agent("first")
        await first.acquire("run-1")
        await first.state(started())
        await first.tell(step(125, 400, loss=2.5))
        await first.state(ended("preempted", 125))
        await (await kit.agent("second")).acquire("run-1")
        row = (await same_after_a_restart(kit, tmp_path / "state", clock))["run-1"]
    assert (row["epoch"], row["step"], row["total"], row["loss"]) == (2, 125, 400, 2.5)


async def test_a_run_begun_anew_shows_that_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        first = await kit.agent("first")
        await first.acquire("run-1")
        await first.tell(step(125, 400, loss=2.5))
        await first.state(ended("preempted", 125))
        second = await kit.agent("second")
        await second.acquire("run-1")
        await second.state(started(0))
        row = (await same_after_a_restart(kit, tmp_path / "state", clock))["run-1"]
    assert row.get("step", 0) == 0


@pytest.mark.parametrize("resumed", [100, 125, 0])
async def test_what_was_told_of_lost_steps_does_not_stand_beside_the_step(tmp_path: Path, resumed: int) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        first = await kit.agent("first")
        await first.acquire("run-1")
        await first.state(started())
        await first.tell(step(1, 400, loss=9.0), step(125, 400, loss=2.5, lr=0.1, reward=0.7))
        await first.state(ended("preempted", 125))
        second = await kit.agent("second")
        await second.acquire("run-1")
        await second.state(started(resumed))
        row = (await same_after_a_restart(kit, tmp_path / "state", clock))["run-1"]
    lost = resumed < 125
    assert row.get("step", 0) == resumed
    assert [row.get(name) for name in ("loss", "lr", "reward")] == ([None] * 3 if lost else [2.5, 0.1, 0.7])
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        again = await kit.agent("second")
        await again.tell(step(resumed + 1, loss=3.5), run_id="run-1", epoch=second.epoch, token=second.token)
        row = (await rows(kit))["run-1"]
        await again.tell(step(130, loss=3.5), run_id="run-1", epoch=second.epoch, token=second.token)
        later = (await rows(kit))["run-1"]
    assert row["loss"] == 3.5, "its own is"
    for each in (row, later):  # how far it gets by now has no part in it
        assert (each.get("lr") is None, each.get("reward") is None) == (lost, lost)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
async def test_a_loss_that_is_no_number_is_one_after_a_restart_too(tmp_path: Path, value: str) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        lease = {"run_id": "run-1", "epoch": agent.epoch, "token": agent.token}
        await agent.tell(step(3, 40, loss=value, lr=value, reward=value))
        await same_after_a_restart(kit, tmp_path / "state", clock)
    async with running(tmp_path / "state", clock) as kit:
        await (await kit.agent()).tell(step(4, 40), first_seq=2, **lease)
        row = (await same_after_a_restart(kit, tmp_path / "state", clock))["run-1"]
    assert (row["step"], row["loss"], row["lr"], row["reward"], row["first_loss"]) == (4, *[value] * 4)


@pytest.mark.parametrize("seed", range(6))
async def test_no_history_shows_otherwise_after_a_restart(tmp_path: Path, seed: int) -> None:
    dice, clock = random.Random(seed), FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        for n in range(12):
            await a_history(kit, f"run-{n}", dice, clock)
        await same_after_a_restart(kit, tmp_path / "state", clock)


async def a_history(kit: Kit, run_id: str, dice: random.Random, clock: FakeClock) -> None:
    """Attempts one after the other, each saying some of what agents say, in any order; those before come late."""
    spoken: list[Agent] = []
    for epoch in range(dice.randrange(1, 4)):
        agent = await kit.agent(f"{run_id}-{epoch}")
        if (await agent.acquire(run_id))["type"] != "granted":
            return
        spoken.append(agent)
        for _ in range(dice.randrange(7)):
            clock.advance(1.0)
            await say(dice.choice([agent, agent, *spoken]), dice)
        if dice.random() < 0.5:
            await agent.state(ended(dice.choice(OUTCOMES), dice.choice([0, dice.randrange(300)])))
        else:
            await kit.force(run_id, agent.epoch, pod_gone=True)
        if dice.random() < 0.3:
            await say(agent, dice)


async def say(agent: Agent, dice: random.Random) -> None:
    at = dice.randrange(200)
    match dice.randrange(6):
        case 0:
            await agent.state(started(dice.choice([0, at])))
        case 1:
            await agent.state(published(at))
        case 2:
            await agent.tell(log(1 + 10 * agent.seq["telemetry"], "words"))
        case 3:
            told = agent.seq["telemetry"]
            agent.seq["telemetry"] += 2
            await agent.say(
                type="skip", stream="telemetry", run_id=agent.run_id, epoch=agent.epoch, token=agent.token,
                first_seq=told + 1, last_seq=told + 2, why="full",
            )  # fmt: skip
            await agent.hear("ack")
        case _:
            metrics = {name: dice.random() for name in ("loss", "lr", "reward") if dice.random() < 0.5}
            total = dice.choice([None, 400])
            await agent.tell(step(at, total, **metrics) | {"rate": dice.choice([None, 2.0])})
