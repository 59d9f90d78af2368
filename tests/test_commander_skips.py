"""Reports that will never come: counted, said, and gone on behind; and the question how far the commander is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from commander_kit import Agent, FakeClock, Kit, log, running, started, step


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state", FakeClock()) as kit:
        yield kit


async def skip(agent: Agent, stream: str, first: int, last: int, **other: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"run_id": agent.run_id, "epoch": agent.epoch, "token": agent.token, "stream": stream}
    await agent.say(type="skip", first_seq=first, last_seq=last, why="damaged on the pod's disk", **message | other)
    return await agent.hear()


def report(stream: str) -> dict[str, Any]:
    return {"type": "event", "t": 1.0, "kind": "disk.full", "message": "x"} if stream == "state" else step(5)


@pytest.mark.parametrize("stream", ["state", "telemetry"])
async def test_what_will_not_come_is_counted_and_gone_on_behind(kit: Kit, stream: str) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    assert (await agent.report(stream, report(stream), first_seq=1))["seq"] == 1
    assert (await skip(agent, stream, 2, 40))["seq"] == 40
    assert (await skip(agent, stream, 2, 40))["seq"] == 40, "said again, it counts once"
    assert (await agent.report(stream, report(stream), first_seq=41))["seq"] == 41
    lost = [event for event in await kit.events("run-1") if event["kind"] == "run.reports_lost"]
    assert len(lost) == 1
    assert lost[0]["message"] == f"up to 39 {stream} reports are lost: damaged on the pod's disk"
    assert (lost[0]["data"]["count"], lost[0]["data"]["stream"]) == ("39", stream)


@pytest.mark.parametrize("stream", ["state", "telemetry"])
async def test_a_skip_that_leaves_a_gap_itself_is_asked_for(kit: Kit, stream: str) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    answer = await skip(agent, stream, 5, 9)
    assert (answer["type"], answer["code"], answer["expected"]) == ("refused", "gap", 1)
    assert "run.reports_lost" not in await kit.kinds("run-1")


@pytest.mark.parametrize("stream", ["state", "telemetry"])
async def test_how_far_the_commander_is_can_be_asked(kit: Kit, stream: str) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    assert (await skip(agent, stream, 1, 0))["seq"] == 0
    await agent.report(stream, *[report(stream)] * 3, first_seq=1)
    assert (await skip(agent, stream, 2, 1))["seq"] == 3
    assert (await skip(agent, stream, 9, 8))["expected"] == 4
    assert "run.reports_lost" not in await kit.kinds("run-1")


@pytest.mark.parametrize("stream", ["state", "telemetry"])
async def test_only_the_attempt_itself_can_skip(kit: Kit, stream: str) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    assert (await skip(agent, stream, 1, 9, token="x" * 64))["code"] == "not_holder"
    assert (await skip(agent, stream, 1, 9, epoch=7))["code"] == "unknown"
    assert (await agent.report(stream, report(stream), first_seq=1))["seq"] == 1


async def test_what_was_skipped_is_no_line_and_no_step(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    await agent.tell(log(1, "a"), step(3, 9, loss=2.0))
    await skip(agent, "telemetry", 3, 10)
    await agent.tell(log(8, "h"), first_seq=11)
    assert await kit.lines("run-1") == ["a", "h"]
    row = await kit.run("run-1")
    assert (row["step"], row["loss"]) == (3, 2.0)
