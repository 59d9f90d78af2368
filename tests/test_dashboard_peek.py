"""What is selected is said whole below the list: it takes the room that it needs, up to a third of the screen."""

from __future__ import annotations

import pytest
from dashboard_fleet import commander, run
from dashboard_rig import dashboard
from scripted_commander import NOW, ScriptedCommander, snapshot

from relaytui.dashboard.widgets.table import Table
from relaytui.wire.rows import EventRow
from relaytui.wire.status import RunStatus

__all__ = ["commander"]


def words(count: int) -> str:
    return " ".join(f"word-{n:02}" for n in range(count))


def event(number: int, message: str) -> EventRow:
    return EventRow(number, NOW + number, "checkpoint.none", "pod-1", message, "r", 1)


@pytest.mark.parametrize(("size", "most"), [((80, 24), 40), ((80, 18), 20), ((100, 40), 100)])
async def test_an_event_is_whole_while_it_has_room_and_ends_in_dots_where_it_has_not(
    commander: ScriptedCommander, size: tuple[int, int], most: int
) -> None:
    commander.greeting = [snapshot([run("r")], events=[event(1, words(1_000 // 8)), event(2, words(most))])]
    async with dashboard(commander, size=size) as rig:
        await rig.press("3")
        await rig.shows(f"word-{most - 1}", f"word-{most // 2}")
        rig.app.screen.query_one("#events", Table).select("1")
        peek = rig.app.screen.query_one("#peek")
        await rig.becomes(lambda: peek.region.height == size[1] // 3)
        await rig.becomes(lambda: rig.text.splitlines()[peek.region.bottom - 1].rstrip().endswith("…"))


async def test_why_a_run_failed_is_whole_and_what_has_little_to_say_takes_no_more(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run("short"), run("bad", RunStatus.FAILED, message=words(30))])]
    async with dashboard(commander, size=(80, 24)) as rig:
        table = await rig.shows("short") and rig.app.screen.query_one("#runs", Table)
        assert isinstance(table, Table)
        table.select("bad")
        await rig.shows(*words(30).split(), "no step was made")
        table.select("short")
        await rig.becomes(lambda: rig.app.screen.query_one("#peek").region.height == 4)


async def test_why_the_attempt_before_ended_is_said_of_one_that_trains(commander: ScriptedCommander) -> None:
    message = "from step_00000010 at step 10; attempt 3, as the one before ended: the trainer exited with 1 at step 12"
    commander.greeting = [snapshot([run("again", RunStatus.RUNNING, message=message, step=12, total=40)])]
    async with dashboard(commander, size=(80, 24)) as rig:
        await rig.shows("the one before ended: the trainer", "exited with 1 at step 12", "12/40")


@pytest.mark.parametrize("width", [60, 80, 160])
async def test_o_orders_by_what_is_seen(commander: ScriptedCommander, width: int) -> None:
    async with dashboard(commander, size=(width, 24)) as rig:
        await rig.shows("sft-sh")
        table = rig.app.screen.query_one("#runs", Table)
        header = next(line for line in rig.text.splitlines() if " status" in line)
        seen = set()
        for _ in table.shown:
            await rig.press("o")
            order = table._sorted_by
            assert order is not None
            seen.add(order[0])
        assert seen == set(table.shown)
        for name in ("lease", "eta", "rate", "hub", "store"):
            assert (name in seen) is (f" {name} " in f"{header} ")


async def test_without_a_total_there_is_neither_a_bar_nor_an_empty_share(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run("open", step=1_180, total=None, rate=9.89)])]
    async with dashboard(commander) as rig:
        await rig.shows(" 1180  ·  9.89/s")
        await rig.press("enter")
        await rig.shows(" 1180  ·  9.89/s")
        assert "┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄" not in rig.text
