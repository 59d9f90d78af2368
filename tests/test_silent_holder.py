"""A holder that is not connected is cut off or dead, nobody knows which: its run does not look as if it trained."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from commander_kit import FakeClock, Kit, running, started, step, until
from dashboard_fleet import run
from dashboard_rig import dashboard
from msgspec.structs import replace
from scripted_commander import NOW, TOKEN, ScriptedCommander, snapshot

from relaytui.cli.act import _describe
from relaytui.cli.group import cli
from relaytui.cli.runs import _facts, _run_cells, print_detail
from relaytui.client.answers import RunDetail, Runs, WhoAmI, Workers
from relaytui.client.mirror import Mirror
from relaytui.client.waiting import waits
from relaytui.client.words import rate_now, silent, time_left
from relaytui.dashboard.acts import meanwhile
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.facts import heading, peek_lines, run_lines
from relaytui.dashboard.screens.lists import run_item
from relaytui.dashboard.widgets.pieces import width_of
from relaytui.shell.program import run as shell
from relaytui.wire.feed import Snapshot
from relaytui.wire.rows import AttemptRow, RunRow, WorkerRow
from relaytui.wire.status import OrderKind, RunStatus, WorkerStatus

HEARD = run("r", step=109, total=3_000, rate=4.98, loss=2.5, reported_at=NOW - 105, message="trainer runs")
SILENT = replace(HEARD, silent_since=NOW - 105)
ASKS = WorkerRow("pod-c", "i-c", WorkerStatus.IDLE, NOW, NOW - 60, version="0.1.0", waiting_for="r")


@pytest.fixture
async def commander(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedCommander]:
    monkeypatch.setenv("RELAY_TOKEN", TOKEN)
    made = await ScriptedCommander().start()
    yield made
    await made.stop()


def text(line: Any) -> str:
    return "".join(piece.text for piece in line)


def mirror_of(row: RunRow, *workers: WorkerRow) -> Mirror:
    mirror = Mirror(lambda: 0.0)
    mirror.apply(Snapshot(NOW, "c", "0", 300.0, [row], list(workers), [], 0))
    return mirror


@pytest.mark.parametrize(
    ("row", "seconds", "said"),
    [
        (SILENT, 0, "silent 1:45"),
        (SILENT, 7_200, "silent 2h01m"),
        (SILENT, -500, "silent 0:00"),
        (replace(SILENT, stalled_at=NOW - 900, stalled_in="saving"), 0, "silent 1:45"),
        (HEARD, 0, ""),
    ],
)
def test_for_how_long(row: RunRow, seconds: float, said: str) -> None:
    assert silent(row, NOW + seconds) == said


@pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.LEASED, RunStatus.DRAINING])
def test_it_is_the_same_word_in_the_list_on_the_screen_and_in_the_shell(status: RunStatus) -> None:
    """The list, the panel and the shell said `running 109/3000 4.98/s eta 9:41` of a pod that was dead for 107 s."""
    row = replace(SILENT, status=status)
    assert (rate_now(row), time_left(row)) == (None, None)
    item = run_item(row, NOW)
    assert item.row.cells[1] == (Piece("▲ silent 1:45", "warn"),)
    assert [text(item.row.cells[i]) for i in (5, 6)] == ["–", "–"]
    assert item.order["status"] < run_item(HEARD, NOW).order["status"], "before those that get on"
    head = heading(row, NOW)
    assert Piece("▲ silent 1:45", "warn") in head
    assert not any(piece.ink.startswith("state-") for piece in head), "nothing in the colour of a run that is well"
    for lines in (peek_lines(row, mirror_of(row), 80), run_lines(row, mirror_of(row), 120, least=4, most=9)):
        said = "\n".join(map(text, lines))
        assert ("silent 1:45" in said, "4:12" in said, "/s" in said, "eta" in said) == (True, True, False, False), said
    cells = _run_cells(row, NOW)
    assert (cells[1], cells[4], cells[6], cells[7]) == ("silent 1:45", "252s", "-", "-")
    facts = dict(_facts(RunDetail(NOW, row), ""))
    assert facts["status"] == f"{status.value}, silent 1:45, held by pod-a at epoch 3, lease left 252s"
    assert facts["step"] == "109/3000 (3%)"


def test_what_its_last_word_was_is_not_said_as_if_it_were_so() -> None:
    said = "\n".join(map(text, run_lines(SILENT, mirror_of(SILENT), 120, least=4, most=9)))
    assert "trainer runs" not in said
    assert "pod-a is not connected: cut off, or dead" in said
    facts = dict(_facts(RunDetail(NOW, SILENT), ""))
    assert facts["why"] == "pod-a is not connected: cut off, or dead"
    assert meanwhile(OrderKind.SAVE, SILENT) == "r: pod-a is asked for a checkpoint now; the run is silent"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (SILENT, "pod-c waits: free in 4:12, unless pod-a comes back"),
        (HEARD, "pod-c waits until pod-a lets go of it"),
        (replace(HEARD, holder="x" * 60), "pod-c waits until xxx"),
    ],
)
def test_who_waits_for_a_run_that_is_held_is_said_below_the_list(row: RunRow, words: str, width: int) -> None:
    mirror = mirror_of(row, ASKS)
    if row.holder == "pod-a":
        assert waits(row, [ASKS], [], NOW) == words
    lines = peek_lines(row, mirror, width)
    assert len(lines) <= 3
    assert words[:30] in "\n".join(map(text, lines))
    assert "109/3000" in text(lines[-1])
    assert all(sum(width_of(piece.text) for piece in line) <= width for line in lines)


async def since(kit: Kit) -> float | None:
    found: float | None = (await kit.run("run-1")).get("silent_since")
    return found


async def test_a_commander_tells_it_from_the_end_of_the_connection_to_the_next(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        feed = await kit.feed()
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started())
        assert await since(kit) is None
        clock.advance(7)
        await agent.close()
        gone = clock.wall()
        assert (await feed.run("run-1", silent_since=gone))["status"] == "running"
        clock.advance(100)
        assert await since(kit) == gone
        again = await kit.agent()
        await feed.run("run-1", silent_since=None)
        await again.close()
        await feed.run("run-1", silent_since=clock.wall())
        await kit.pass_time(clock, 302)
        assert (await kit.run("run-1"))["status"] == "queued"
        assert await since(kit) is None, "nobody holds it"


@pytest.mark.parametrize("told", [True, False])
async def test_a_restart_of_the_commander_does_not_make_it_older_than_it_is(tmp_path: Path, told: bool) -> None:
    """A connection's row is written when it begins and ends: a commander that was killed knows only its beginning."""
    clock = FakeClock()
    began = clock.wall()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started())
        clock.advance(200)
        if told:
            await agent.tell(step(5))
            core = kit.commander.core
            await until(lambda: core.board.run_row(core.board.runs["run-1"]).reported_at == clock.wall())
        else:
            await agent.renew()
        heard = clock.wall()
    with sqlite3.connect(tmp_path / "state" / "relay.db") as db:
        assert db.execute("UPDATE workers SET seen_at = ?", (began,)).rowcount == 1
    clock.advance(20)
    async with running(tmp_path / "state", clock) as kit:
        assert await since(kit) == heard


async def test_dialogs_and_the_shells_questions_say_it_for_the_age_of_its_last_report(
    commander: ScriptedCommander,
) -> None:
    assert "silent 1:45, lease left 252s" in _describe(RunDetail(NOW, SILENT))
    assert "last report 1m ago" in _describe(RunDetail(NOW, HEARD))
    commander.greeting = [snapshot([SILENT])]
    async with dashboard(commander, size=(80, 24)) as rig:
        await rig.shows("silent 1:45")
        await rig.press("d")
        said = await rig.shows("holder  pod-a  ▲ silent")
        assert "last report" not in said


async def test_the_top_line_and_the_attempts_do_not_call_it_running(commander: ScriptedCommander) -> None:
    tried = AttemptRow("r", 3, "pod-a", NOW - 300, 0, 109)
    commander.greeting = [snapshot([SILENT, replace(HEARD, run_id="other")])]
    commander.answers["GET", "/api/runs/r"] = (200, RunDetail(NOW, SILENT, [tried]))
    async with dashboard(commander, size=(120, 40)) as rig:
        await rig.shows("1 silent  1 running")
        await rig.press("enter")
        await rig.shows("silent 1:45", without="going on")


async def test_the_shell_counts_it(commander: ScriptedCommander, capsys: pytest.CaptureFixture[str]) -> None:
    tried = AttemptRow("r", 3, "pod-a", NOW - 300, 0, 109)
    print_detail(RunDetail(NOW, SILENT, [tried]))
    said = capsys.readouterr().out
    assert "going on" not in said
    commander.answers["GET", "/api/whoami"] = (200, WhoAmI("operator", "c", NOW, "0.1.0", 300))
    commander.answers["GET", "/api/runs"] = (200, Runs(NOW, [SILENT, replace(HEARD, run_id="other")]))
    commander.answers["GET", "/api/workers"] = (200, Workers(NOW, []))
    assert await asyncio.to_thread(shell, "relay-tui", cli, ["--connect", commander.endpoint.url, "status"]) == 0
    assert "2 running (1 of them silent)" in capsys.readouterr().out
