"""An agent that ends by itself says good-bye: it has `left`, and is no pod that is missing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Rig, eventually, mock, rigged
from commander_kit import Agent, FakeClock, Kit, running, started, until

from relaytui.wire.messages import LEAVES


async def row(kit: Kit, worker: str = "pod") -> dict[str, Any]:
    rows: list[dict[str, Any]] = (await kit.get("/api/workers"))[1]["workers"]
    return next(each for each in rows if each["worker"] == worker)


async def gone(kit: Kit, agent: Agent, code: int) -> str | None:
    """What is said of it once its connection was closed so."""
    await agent.ws.close(code=code)
    workers = kit.commander.core.workers
    await until(lambda: not workers.is_connected(agent.incarnation))
    await kit.commander.core.relay.run(lambda tx: None)  # what was written before that is there
    said: str | None = (await row(kit, agent.worker)).get("gone")
    return said


@pytest.mark.parametrize(("code", "said"), [(LEAVES, "left"), (1000, None), (1001, None)])
async def test_who_says_good_bye_has_left_and_who_is_cut_off_is_missing(
    tmp_path: Path, code: int, said: str | None
) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        assert await gone(kit, await kit.agent(), code) == said
    async with running(tmp_path / "state", clock) as kit:
        assert (await row(kit)).get("gone") == said, "a restart forgets nothing"
        agent = await kit.agent()
        assert ((await row(kit)).get("gone"), (await row(kit))["status"]) == (None, "idle"), "it is back"
        assert await gone(kit, agent, 1000) is None, "and its good-bye of then is none of now"


async def test_while_it_has_a_run_it_is_missed(tmp_path: Path) -> None:
    """Its end was not told: the run waits for its lease."""
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started())
        assert await gone(kit, agent, LEAVES) is None
        await kit.pass_time(clock, 302)
        assert (await row(kit))["gone"] == "left"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path, lease_seconds=30.0) as rig:
        yield rig


def worker(rig: Rig, name: str) -> dict[str, Any]:
    rows = rig.call("/api/workers")["workers"]
    return next((each for each in rows if each["worker"] == name), {})


def test_an_agent_that_is_stopped_while_it_waits_has_left(rig: Rig) -> None:
    holder = rig.agent(mock("--steps", 2000, "--step-seconds", 0.05))
    eventually(lambda: rig.run()["step"], "a step")
    waiting = rig.agent(mock("--steps", 10), "pod-b")
    eventually(lambda: worker(rig, "pod-b").get("waiting_for"), "it waits")
    waiting.process.send_signal(signal.SIGTERM)
    waiting.wait()
    assert eventually(lambda: worker(rig, "pod-b").get("gone"), "its good-bye") == "left"
    assert holder.process.poll() is None


def test_an_agent_that_ends_for_want_of_what_it_needs_has_left(rig: Rig) -> None:
    (rig.volume / "runs").write_text("no folder")
    agent = rig.agent(mock("--steps", 10))
    assert agent.wait() != 0
    assert eventually(lambda: worker(rig, "pod-a").get("gone"), "its good-bye") == "left"
