"""The history is bounded: the oldest events go, and nothing that is decided by one."""

from __future__ import annotations

from pathlib import Path

from commander_kit import running

from relaytui.commander.keeper import TRIM_BATCH, Keeper
from relaytui.commander.server import Commander
from relaytui.commander.store import history
from relaytui.commander.store.writer import Tx

MANY = 2 * TRIM_BATCH + 100
KEPT = 50


async def write(commander: Commander, count: int, kind: str = "a.b", run_id: str | None = None) -> None:
    def add(tx: Tx) -> None:
        for number in range(count):
            history.add_event(tx, 1.0, kind, "somebody", f"number {number}", run_id, 7)

    await commander.core.relay.run(add)


async def kinds(commander: Commander) -> list[str]:
    found = await commander.core.reader.events(after=0, before=None, run_id=None, limit=10_000)
    return [event.kind for event in found]


async def test_the_oldest_events_go_and_those_that_hold_something_stay(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        await write(kit.commander, 3, "run.requeued", "run-1")
        await write(kit.commander, MANY)
        newest = kit.commander.core.board.events[-1]
        keeper = Keeper(kit.commander.core, tmp_path / "state", kept=KEPT)
        await keeper.trim()
        left = await kinds(kit.commander)
        assert left.count("a.b") == KEPT
        assert left.count("run.requeued") == 3, "no run is held for what lies before it was queued again"
        assert kit.commander.core.board.events[-1] == newest
        # Ids are never used twice, and there is nothing left to do.
        await keeper.trim()
        assert await kinds(kit.commander) == left
        await write(kit.commander, 1)
        assert kit.commander.core.board.events[-1].id == newest.id + 1
        # What was taken away is no gap that anybody trips over.
        status, answer = await kit.get("/api/events?after=1&limit=1000")
        assert (status, len(answer["events"])) == (200, len(left) + 1)


async def test_a_short_history_is_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        await write(kit.commander, KEPT)
        before = await kinds(kit.commander)
        await Keeper(kit.commander.core, tmp_path / "state").trim()
        assert await kinds(kit.commander) == before
