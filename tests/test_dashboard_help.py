"""`?` tells what can be done here and now, what cannot and why, and what there is elsewhere."""

from __future__ import annotations

import pytest
from dashboard_fleet import commander
from dashboard_rig import Rig, dashboard
from scripted_commander import ScriptedCommander

from relaytui.dashboard.actions import ACTIONS, key_names
from relaytui.dashboard.widgets.table import Table

__all__ = ["commander"]

ENDED = "sft-baseline"


def parts(rig: Rig) -> dict[str, str]:
    """What stands under which title; under none comes first."""
    found, title = {"": ""}, ""
    for line in rig.text.splitlines():
        inner = line.split("│")[1].strip() if line.count("│") == 2 else ""
        if inner in ("In the list", "In the log", "Not now", "Elsewhere", "States"):
            title = inner
        found[title] = found.get(title, "") + inner + "\n"
    return found


async def test_what_can_be_done_is_told_apart_from_what_cannot_and_from_what_is_elsewhere(
    commander: ScriptedCommander,
) -> None:
    async with dashboard(commander, size=(100, 70)) as rig:
        await rig.shows(ENDED)
        rig.app.screen.query_one("#runs", Table).select(ENDED)
        await rig.press("question_mark")
        await rig.shows("Elsewhere", "States")
        said = parts(rig)
        assert "Queue an ended run again" in said[""]
        assert "asks first" in said[""]
        for words in (
            "save: sft-baseline is completed",
            "drain: sft-baseline is completed",
            "runs: it is shown already",
        ):
            assert words in said["Not now"]
        assert "back: one is at the beginning" in said["Not now"]
        assert "Next layout" in said["Elsewhere"]
        assert "on a run's screen" in said["Elsewhere"]
        assert "Wrap long lines, or cut them · in a log" in said["Elsewhere"]
        assert "Row up" in said["In the list"]
        assert "Wrap" not in said[""] + said["In the list"]
        for action in ACTIONS:
            if action.keys and action.where:
                assert key_names(action).split()[0] in rig.text, f"{action.id} is told of somewhere"


async def test_on_a_runs_screen_the_keys_are_those_of_what_is_shown(commander: ScriptedCommander) -> None:
    async with dashboard(commander, size=(100, 70)) as rig:
        await rig.shows(ENDED)
        rig.app.screen.query_one("#runs", Table).select("sft-shakespeare")
        await rig.press("enter")
        await rig.shows("log")
        await rig.press("question_mark")
        await rig.shows("In the log", "Elsewhere")
        assert "Wrap long lines" in parts(rig)["In the log"]
        assert "Order by the next column" in parts(rig)["Elsewhere"]
        await rig.press("escape", "v", "v", "question_mark")  # the curve alone
        text = await rig.shows("Elsewhere", without="In the log")
        assert "filter: the log is not shown" in text
        await rig.press("escape", "slash")
        await rig.shows("the log is not shown")
        assert not rig.app.screen.query("#filter")


@pytest.mark.parametrize("width", [30, 60, 80, 120])
async def test_the_way_to_help_and_out_is_in_the_key_bar_at_any_width(commander: ScriptedCommander, width: int) -> None:
    async with dashboard(commander, size=(width, 20)) as rig:
        await rig.becomes(lambda: rig.app.mirror.loaded)
        await rig.becomes(lambda: "? help" in rig.text.splitlines()[-1] and "q quit" in rig.text.splitlines()[-1])
