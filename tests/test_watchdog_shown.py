"""A trainer that does not get on is seen where runs are shown: in the row, the list, the head of a run, the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commander_kit import FakeClock, Kit, ended, running, started

from relaytui.client.words import stalled
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.facts import heading
from relaytui.dashboard.screens.lists import run_item
from relaytui.wire.rows import RunRow
from relaytui.wire.status import RunStatus


def row(**more: object) -> RunRow:
    return RunRow("run-1", "sft", RunStatus.RUNNING, 1, 0.0, 0.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (5, "stalled 5 s in saving"),
        (12 * 60 + 7, "stalled 12 min in saving"),
        (3 * 3_600 + 5 * 60, "stalled 3h05m in saving"),
        (-50, "stalled 0 s in saving"),
    ],
)
def test_for_how_long_and_in_what(seconds: float, said: str) -> None:
    assert stalled(row(stalled_in="saving", stalled_at=1_000.0), 1_000.0 + seconds) == said
    assert stalled(row(), 1_000.0) == ""


def test_the_list_and_the_head_of_a_run_show_it() -> None:
    halted = row(stalled_in="saving", stalled_at=1_000.0)
    item = run_item(halted, 1_720.0)
    assert (Piece("▲ stalled", "warn"),) in item.row.cells
    assert item.order["status"] < run_item(row(), 1_720.0).order["status"], "before those that get on"
    assert "stalled" in item.text
    assert "▲ stalled 12 min in saving" in "".join(text for text, _ in heading(halted, 1_720.0))
    assert "stalled" not in "".join(text for text, _ in heading(row(), 1_720.0))


def test_what_a_pod_calls_a_phase_is_cleaned() -> None:
    assert "\x1b" not in stalled(row(stalled_in="\x1b[31mred" + "x" * 400, stalled_at=0.0), 1.0)
    assert len(stalled(row(stalled_in="x" * 400, stalled_at=0.0), 1.0)) < 60


def event(kind: str, **data: str) -> dict[str, Any]:
    return {"type": "event", "kind": kind, "message": "m", "data": data}


STALL = event("trainer.stalled", phase="saving", seconds="720")


async def shown(kit: Kit) -> tuple[str, float | None]:
    row = await kit.run("run-1")
    return row.get("stalled_in", ""), row.get("stalled_at")


async def test_a_commander_shows_it_from_the_last_sign_of_life_until_it_moves(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started())
        for over in ("trainer.moving", "trainer.exited", "agent.took_over"):
            clock.advance(1_000)
            await agent.state(STALL)
            assert await shown(kit) == ("saving", clock.wall() - 720)
            await agent.state(event(over))
            assert await shown(kit) == ("", None)
        await agent.state(STALL)
        since = clock.wall() - 720
        clock.advance(60)
    async with running(tmp_path / "state", clock) as kit:
        assert await shown(kit) == ("saving", since), "a restart forgets nothing"


async def test_it_ends_with_its_attempt_and_one_that_is_over_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path / "state", FakeClock()) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started(), STALL, ended("preempted"))
        assert await shown(kit) == ("", None)
        other = await kit.agent("b")
        await other.acquire("run-1")
        await other.state(started())
        await agent.state(STALL)
        assert await shown(kit) == ("", None)
        assert (await kit.kinds("run-1")).count("trainer.stalled") == 2, "the history has both"


@pytest.mark.parametrize("seconds", ["", "-5", "1e9", "99999999999", "²", "x" * 300])
async def test_what_a_pod_says_of_the_time_is_a_number_or_nothing(tmp_path: Path, seconds: str) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started(), event("trainer.stalled", seconds=seconds, phase=""))
        phase, at = await shown(kit)
        assert (phase, at) in [("?", clock.wall()), ("?", clock.wall() - 366 * 86_400)]
