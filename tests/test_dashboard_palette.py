"""The command palette offers what can be done with the run that is meant, and nothing else of the action table."""

from __future__ import annotations

import pytest
from dashboard_fleet import commander, run
from dashboard_rig import Rig, dashboard
from scripted_commander import NOW, ScriptedCommander, snapshot

from relaytui.client.answers import RunDetail
from relaytui.client.refusals import REFUSALS
from relaytui.dashboard.actions import BY_ID
from relaytui.dashboard.palette import commands
from relaytui.dashboard.widgets.table import Table
from relaytui.wire.feed import RunChanged
from relaytui.wire.status import RunStatus

__all__ = ["commander"]

NAME = "sft-shakespeare"


def offered(rig: Rig) -> set[str]:
    return {command.title for command in commands(rig.app, rig.app.screen_stack[-1])}


FITTING = {
    RunStatus.RUNNING: {"drain", "save", "sync", "cancel", "force-acquire"},
    RunStatus.LEASED: {"drain", "cancel", "force-acquire"},
    RunStatus.DRAINING: {"cancel", "force-acquire"},
    RunStatus.QUEUED: {"cancel", "force-acquire"},
    RunStatus.COMPLETED: {"requeue"},
    RunStatus.FAILED: {"requeue"},
}


@pytest.mark.parametrize("opened", [False, True])
async def test_it_offers_the_acts_that_fit_the_run(commander: ScriptedCommander, opened: bool) -> None:
    labels = {BY_ID[act].label for act in REFUSALS}
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        rig.app.screen.query_one("#runs", Table).select(NAME)
        await rig.press(*["enter"] if opened else [])
        for status, acts in FITTING.items():
            row = run(NAME, status, synced_repo="me/r")
            commander.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, row))
            await commander.tell(RunChanged(NOW, row))
            wanted = {BY_ID[act].label for act in acts}
            await rig.becomes(lambda wanted=wanted: offered(rig) & labels == wanted)  # type: ignore[misc]
            assert {"copy id", "filter", "quit", "theme", "open rl-rewrite"} <= offered(rig)
            assert ("runs" in offered(rig)) is opened, "the list that is shown is not offered"
            assert (f"open {NAME}" in offered(rig)) is not opened, "nor is the run that is"


async def test_without_a_run_it_offers_no_act(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([])]
    async with dashboard(commander) as rig:
        await rig.shows("no runs yet")
        assert not offered(rig) & {BY_ID[act].label for act in (*REFUSALS, "copy")}


async def test_what_is_searched_there_is_what_it_offers(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run(NAME, RunStatus.COMPLETED)])]
    async with dashboard(commander, size=(100, 40)) as rig:
        await rig.shows("sft-sh")
        await rig.press("ctrl+p")
        text = await rig.shows("Queue an ended run again")
        assert "Have the holder save" not in text
