"""A resume that did not take is seen wherever its run is: the row, the list, the head of the run, the shell, a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commander_kit import FakeClock, Kit, ended, published, running, started
from dashboard_fleet import RUNS, run, scripted
from dashboard_rig import dashboard
from msgspec.structs import replace
from scripted_commander import NOW, ScriptedCommander, snapshot

from relaytui.cli.runs import _run_cells, print_detail
from relaytui.client.answers import RunDetail
from relaytui.client.mirror import Mirror
from relaytui.client.words import steps_made
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.facts import heading, peek_lines, why
from relaytui.dashboard.screens.histories import attempt_item
from relaytui.dashboard.screens.lists import run_item
from relaytui.wire.feed import EventAdded
from relaytui.wire.rows import AttemptRow, EventRow
from relaytui.wire.status import RunStatus

ALARM = "the resume did not take: step 1 after it was handed 30"
IGNORED = {
    "type": "event", "kind": "resume.ignored",
    "message": "the trainer began at step 1, below the checkpoint's 30: nothing is pruned any more",
    "data": {"step": "1", "checkpoint": "step_00000030"},
}  # fmt: skip
RESUMED = {**started(30), "checkpoint": "step_00000030"}


async def seen(kit: Kit) -> tuple[Any, Any]:
    row = await kit.run("naive")
    return row.get("began_step"), row.get("handed_step", 0)


async def attempt(kit: Kit) -> dict[str, Any]:
    return (await kit.attempts("naive"))[-1]


async def test_a_commander_tells_it_until_the_next_attempt(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("naive")
        await agent.state(RESUMED)
        assert await seen(kit) == (None, 0)
        await agent.state(IGNORED, published(10))
        assert await seen(kit) == (1, 30)
        row = await attempt(kit)
        assert (row["began_step"], row["started_step"], row["last_step"]) == (1, 30, 1)
    async with running(tmp_path / "state", clock) as kit:
        assert await seen(kit) == (1, 30), "a restart forgets nothing"


async def test_how_it_ended_says_it_too(tmp_path: Path) -> None:
    async with running(tmp_path / "state", FakeClock()) as kit:
        agent = await kit.agent()
        await agent.acquire("naive")
        await agent.state(RESUMED, IGNORED, ended("preempted", step=21, message="hung"))
        said = (await kit.run("naive"))["message"]
        assert said == f"preempted: hung; {ALARM}"
        assert (await attempt(kit))["message"] == f"hung; {ALARM}"
        other = await kit.agent("b")
        await other.acquire("naive")
        await other.state(started(21))
        assert await seen(kit) == (None, 0)


async def test_so_does_one_that_was_superseded(tmp_path: Path) -> None:
    """Whether its agent says how it ended or nobody waits for that."""
    async with running(tmp_path / "state", FakeClock()) as kit:
        agent = await kit.agent()
        await agent.acquire("naive")
        await agent.state(RESUMED, IGNORED)
        await kit.force("naive", 1)
        await agent.state(ended("superseded", step=21, message="another attempt took over"))
        assert (await attempt(kit))["message"] == f"another attempt took over; {ALARM}"
        other = await kit.agent("b")
        await other.acquire("naive")
        await other.state(RESUMED, IGNORED)
        await kit.force("naive", (await kit.run("naive"))["epoch"], pod_gone=True)
        messages = [row["message"] for row in await kit.attempts("naive")]
        assert [ALARM in message for message in messages if message] == [True, True], messages


@pytest.mark.parametrize(
    ("step", "known"),
    [("", (0, 30)), ("-1", (0, 30)), ("²", (0, 30)), ("9" * 300, (0, 30)), ("30", (None, 0)), ("31", (None, 0))],
)
async def test_what_a_pod_says_of_it_is_a_number_or_nothing(
    tmp_path: Path, step: str, known: tuple[int | None, int]
) -> None:
    async with running(tmp_path / "state", FakeClock()) as kit:
        agent = await kit.agent()
        await agent.acquire("naive")
        answer = await agent.state(RESUMED, {**IGNORED, "data": {"step": step}})
        assert answer["type"] == "ack", "whatever it says, what comes after it is heard"
        assert await seen(kit) == known


async def test_the_first_word_of_it_stays_and_is_of_that_attempt_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "state", FakeClock()) as kit:
        agent = await kit.agent()
        await agent.acquire("naive")
        await agent.state(RESUMED, IGNORED, {**IGNORED, "data": {"step": "7"}})
        assert await seen(kit) == (1, 30)
        await agent.state(ended("preempted", step=21))
        other = await kit.agent("b")
        await other.acquire("naive")
        assert await seen(kit) == (None, 0), "what the next one is handed is not known yet"


@pytest.mark.parametrize(
    ("message", "said"),
    [("", ALARM), ("exit 1; the resume did not take: it began at step 1, not after 30", None)],
)
async def test_it_is_said_once_of_how_it_ended(tmp_path: Path, message: str, said: str | None) -> None:
    async with running(tmp_path / "state", FakeClock()) as kit:
        agent = await kit.agent()
        await agent.acquire("naive")
        await agent.state(RESUMED, IGNORED, ended("crashed", step=21, message=message))
        assert (await attempt(kit))["message"] == (message if said is None else said)


# -- on screens ----------------------------------------------------------------------------------------------------

ROW = run("naive", step=21, total=60, began_step=1, handed_step=30, message="from step_00000030 at step 30")
TRIED = AttemptRow("naive", 3, "pod-a", NOW, started_step=30, last_step=21, began_step=1)


def test_lists_and_the_head_of_a_run_show_it() -> None:
    item = run_item(ROW, NOW)
    assert Piece("▲ no resume", "warn") in [piece for cell in item.row.cells for piece in cell]
    assert item.order["status"] < run_item(RUNS[0], NOW).order["status"]
    assert item.order["status"] < run_item(run("a"), NOW).order["status"], "whatever it is called"
    assert "no resume" in item.text
    assert _run_cells(ROW, NOW)[1] == "no resume"
    assert "▲ no resume" in "".join(text for text, _ in heading(ROW, NOW))
    assert why(ROW) == [Piece(f"▲ {ALARM}", "warn")]
    over = replace(ROW, status=RunStatus.FAILED, message=f"exit 1; {ALARM}")
    assert "no resume" not in "".join(text for text, _ in heading(over, NOW)), "its message says so"
    assert _run_cells(over, NOW)[1] == "failed"


def test_below_the_list_it_comes_before_who_holds_the_run() -> None:
    text = ["".join(text for text, _ in line) for line in peek_lines(ROW, Mirror(), 80)]
    assert text[1].startswith(f" ▲ {ALARM}")
    assert "held by pod-a" in text[1]


def test_an_attempt_says_what_it_began_with_and_what_it_was_handed() -> None:
    assert steps_made(TRIED) == ("1, not 30", "21")
    assert steps_made(replace(TRIED, began_step=None)) == ("30", "21")
    cells = ["".join(text for text, _ in cell) for cell in attempt_item(TRIED, 21, NOW).cells]
    assert "1, not 30→21" in cells


def test_the_shell_says_it_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_detail(RunDetail(NOW, ROW, [TRIED], []))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"alarm {ALARM}" in lines
    assert "3 pod-a 1, not 30 21 going on - -" in lines


async def test_it_is_said_in_the_corner_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commander = await ScriptedCommander().start()
    scripted(commander)
    commander.greeting = [snapshot([ROW])]
    try:
        async with dashboard(commander) as rig:
            await rig.shows("naive")
            event = EventRow(1, NOW, "resume.ignored", "pod-a", "the trainer began at step 1, below 30", "naive", 3)
            await commander.tell(EventAdded(event), EventAdded(event))
            await rig.shows("naive: the trainer began at step 1")
            assert len(rig.app._notifications) == 1
    finally:
        await commander.stop()
