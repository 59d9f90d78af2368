"""The step shown of a run is at least that of a checkpoint which its attempt published: not every trainer tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commander_kit import MANIFEST, FakeClock, Kit, ended, log, published, running, started, step


def listed(*steps: int, epoch: int = 1) -> dict[str, Any]:
    line = [published(each) | {"epoch": epoch, "at": 1.0} for each in steps]
    return {"type": "listed", "line": [{k: v for k, v in one.items() if k != "type"} for one in line]}


async def shown(kit: Kit) -> tuple[int, int]:
    """Of the run, and of its newest attempt."""
    return (await kit.run("run-1")).get("step", 0), (await kit.attempts("run-1"))[-1].get("last_step", 0)


@pytest.mark.parametrize("told", [[], [log(1, "no step")], [step(80)]], ids=["nothing", "lines", "a step"])
async def test_what_was_saved_was_made(tmp_path: Path, told: list[dict[str, Any]]) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started(75, "step_00000075"))
        if told:
            await agent.tell(*told)
        await agent.state(published(400), published(950))
        assert await shown(kit) == (950, 950)
        await agent.tell(step(960))
        assert await shown(kit) == (960, 960)
    async with running(tmp_path / "state", clock) as kit:
        assert await shown(kit) == (960, 960), "a restart shows the same"


async def test_so_is_what_a_commander_hears_of_late(kit: Kit) -> None:
    """Published again, as it was told before; or of a volume that is told whole."""
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), published(400))
    await agent.state(ended("preempted", 400))
    later = await kit.agent("later")
    await later.acquire("run-1")
    await later.state(started(75), published(400))
    assert await shown(kit) == (75, 75), "another attempt made that one"
    await later.state(listed(400, 950, epoch=2))
    assert await shown(kit) == (950, 950)


async def test_one_that_counts_anew_is_where_it_counts(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(75, "step_00000075"))
    await agent.tell(step(10))
    await agent.state(published(10, manifest=MANIFEST))
    assert (await shown(kit))[0] == 10
    await agent.tell(step(11))
    assert (await shown(kit))[0] == 11
