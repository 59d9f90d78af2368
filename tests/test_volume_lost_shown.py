"""A run whose volume is lost is marked wherever runs are shown, until it is back or its attempt is over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from backup_kit import relay
from commander_kit import FakeClock, Kit, ended, running, started
from msgspec.structs import replace

from relaytui.cli.runs import _run_cells
from relaytui.client.mirror import Mirror
from relaytui.client.words import volume_lost
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.screens.facts import heading, peek_lines, run_lines
from relaytui.dashboard.screens.lists import run_item
from relaytui.dashboard.widgets.pieces import fit
from relaytui.wire.feed import Snapshot
from relaytui.wire.rows import RunRow
from relaytui.wire.status import RunStatus

NOW = 1_720.0


def row(**more: Any) -> RunRow:
    return RunRow("run-1", "sft", RunStatus.RUNNING, 1, 0.0, 0.0, **more)


LOST_ROW = row(volume_lost_at=1_000.0)


def test_lists_and_the_head_of_a_run_show_it() -> None:
    item = run_item(LOST_ROW, NOW)
    assert (Piece("▲ no volume", "warn"),) in item.row.cells
    assert item.order["status"] < run_item(row(), NOW).order["status"], "before those that are well"
    assert "no volume" in item.text
    assert "▲ volume lost 12:00" in "".join(text for text, _ in heading(LOST_ROW, NOW))
    assert _run_cells(LOST_ROW, NOW)[1] == "no volume"


def test_beside_what_else_is_wrong_nothing_is_hidden() -> None:
    """One whose holder is not there says that first: what it told of its volume may not be so any more."""
    silent = row(volume_lost_at=1_000.0, silent_since=1_600.0)
    assert _run_cells(silent, NOW)[1] == "silent 2:00"
    stalled = row(volume_lost_at=1_000.0, stalled_at=1_600.0, stalled_in="saving", began_step=1, handed_step=9)
    said = "".join(text for text, _ in heading(stalled, NOW))
    assert all(words in said for words in ("volume lost 12:00", "stalled 2 min in saving", "no resume"))
    assert _run_cells(stalled, NOW)[1] == "no volume"


@pytest.mark.parametrize("run_id", ["run-1", "math-sft-11-29-ablation-17", "r" * 128], ids=["short", "named", "long"])
@pytest.mark.parametrize("silent", [None, 1_600.0], ids=["stalled", "silent"])
def test_all_that_is_wrong_is_seen_in_eighty_columns(run_id: str, silent: float | None) -> None:
    """Whatever the run is called, and however long it has been so."""
    wrong = replace(
        row(volume_lost_at=1_000.0, stalled_at=1_060.0, stalled_in="evaluating", began_step=1, handed_step=9),
        run_id=run_id, status=RunStatus.DRAINING, holder="pod-a", silent_since=silent,
    )  # fmt: skip
    mirror = Mirror(lambda: 0.0)
    mirror.apply(Snapshot(NOW, "c", "0", 300.0, [wrong], [], [], 0))
    marks = ["▲ no resume", "▲ no volume", "▲ stalled"] if silent is None else ["▲ silent 2:00", "▲ no resume"]
    for lines in (run_lines(wrong, mirror, 80, least=4, most=2), peek_lines(wrong, mirror, 80)):
        head = "".join(text for text, _ in fit(lines[0], 80))
        at = [head.find(mark) for mark in marks]
        assert -1 not in at, head
        assert at == sorted(at), head
        assert run_id[:8] in head, head
    alone = "".join(text for text, _ in heading(wrong, NOW, 160))
    if len(run_id) < 128 and silent is None:
        assert "▲ no resume  ▲ volume lost 12:00  ▲ stalled 11 min in evaluating" in alone


@pytest.mark.parametrize("at", [None, 2_000.0])
def test_what_never_was_or_is_of_the_future(at: float | None) -> None:
    assert volume_lost(row(volume_lost_at=at), NOW) == ("" if at is None else "volume lost 0:00")


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "event", "kind": kind, "message": "/mnt/relay is gone", "data": {}} | more


LOST = event("volume.lost")


async def since(kit: Kit) -> float | None:
    at: float | None = (await kit.run("run-1")).get("volume_lost_at")
    return at


async def test_a_commander_shows_it_until_the_volume_is_back(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started())
        for over in (event("volume.back"), event("agent.took_over"), started()):
            clock.advance(100)
            await agent.state(LOST)
            assert await since(kit) == clock.wall()
            await agent.state(over)
            assert await since(kit) is None
        await agent.state(LOST, event("trainer.moving"))
        at = clock.wall()
        assert (await kit.drain("run-1", 1))[0] == 200
        assert await since(kit) == at, "an order does not bring it back"
        done = await asyncio.to_thread(relay, "runs", "run-1", "--state", tmp_path / "state")
        assert "lost 0:00 ago: what is saved now is not published" in " ".join(done.stdout.split()), done.stdout
        clock.advance(60)
    async with running(tmp_path / "state", clock) as kit:
        assert await since(kit) == at, "a restart forgets nothing"


async def test_it_is_over_with_its_attempt_and_is_back_with_it(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path / "state", clock) as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        await agent.state(started(), LOST)
        at = clock.wall()
        await kit.pass_time(clock, 302)
        assert await since(kit) is None, "nobody has it"
        assert (await agent.renew())["type"] == "renewed"
        assert await since(kit) == at, "who comes back tells nothing twice"
        await agent.state(ended("preempted"))
        other = await kit.agent("b")
        await other.acquire("run-1")
        await other.state(started())
        await agent.state(LOST)
        assert await since(kit) is None, "neither its predecessor's volume nor what that says of it counts"
