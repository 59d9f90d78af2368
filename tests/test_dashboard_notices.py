"""What the dashboard says where there is nothing to show, where the picture is not live, and of all runs at once."""

from __future__ import annotations

import msgspec
import pytest
from dashboard_fleet import commander, run
from dashboard_rig import dashboard
from scripted_commander import NOW, ScriptedCommander, snapshot

from relaytui.cli.demo import over
from relaytui.client.endpoint import Endpoint
from relaytui.dashboard.screens.run import RunScreen
from relaytui.dashboard.session import Opened
from relaytui.wire.feed import Beat, RunChanged
from relaytui.wire.status import RunStatus

__all__ = ["commander"]


async def test_an_empty_commander_says_what_to_do_next(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot()]
    async with dashboard(commander) as rig:
        wanted = (f"export COMMANDER_URL={commander.endpoint.url}", "RELAY_SHARED_SECRET=", "relay-tui token worker")
        await rig.shows("export RELAY_L1_ROOT=$HOME/relay-volume", "mkdir -p $RELAY_L1_ROOT;")  # works as it is pasted
        shown = await rig.shows("no runs yet", *wanted, "RUN_ID=first relay-agent", "relay-tui demo")
        assert "relay-agent run" not in shown, "there is no such command"
        assert "…" not in shown.replace("SECRET=…", "")
        await rig.press("2")
        shown = await rig.shows("no workers yet", *wanted, "relay-agent doctor")
        assert "…" not in shown.replace("SECRET=…", "")
        await rig.press("3")
        await rig.shows("nothing has happened yet")


async def test_what_to_do_next_is_about_this_commander(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot()]
    async with dashboard(commander, size=(120, 24), program="relay-tui --state /srv/x") as rig:
        await rig.shows("no runs yet", "# what relay-tui --state /srv/x token worker prints here")
    async with dashboard(commander, size=(120, 24), program="relay-tui --connect https://r.example.org") as rig:
        await rig.shows("no runs yet", "# what relay-tui token worker prints where the commander runs")
    async with dashboard(commander, program=None) as rig:
        await rig.shows("no runs yet", "The demo's agents are on their way.", without="relay-tui demo")
        await rig.press("2")
        await rig.shows("no workers yet", "The demo's agents are on their way.", without="COMMANDER_URL")


async def test_what_to_do_next_is_whole_in_a_narrow_terminal(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot()]
    async with dashboard(commander, size=(50, 24)) as rig:
        shown = await rig.shows("no runs yet", "this commander:", "token worker", "relay-tui demo")
        assert "…" not in shown.replace("SECRET=…", "")


async def test_before_anything_is_here_each_key_has_its_words(commander: ScriptedCommander) -> None:
    async with dashboard(commander, source=Endpoint("http://127.0.0.1:9", "t")) as rig:
        await rig.shows("◌ connecting")
        await rig.press("enter")
        await rig.shows("nothing is here yet: still connecting")
    commander.greeting = [snapshot()]
    async with dashboard(commander) as rig:
        await rig.shows("no runs yet")
        await rig.press("enter")
        await rig.shows("no run is selected")


async def test_connecting_says_to_whom_and_why_it_takes_long(commander: ScriptedCommander) -> None:
    async with dashboard(commander, source=Endpoint("http://127.0.0.1:9", "t")) as rig:
        await rig.shows("◌ connecting", "127.0.0.1:9", "no commander answers")


async def test_a_stranger_on_the_port_is_said(commander: ScriptedCommander) -> None:
    commander.proof_token = "someone else's"
    async with dashboard(commander, size=(120, 30)) as rig:
        await rig.shows("✗ refused", "did not prove to be your commander", "not connected")


async def test_after_a_restore_it_says_why_no_run_starts_and_for_how_long(commander: ScriptedCommander) -> None:
    commander.greeting = [msgspec.structs.replace(snapshot(), no_grants_until=NOW + 269)]
    async with dashboard(commander) as rig:
        await rig.shows("● live", "restored: no new grants for another 26")
        await commander.tell(Beat(NOW + 300))
        await rig.shows("● live", without="restored")


async def test_a_stale_picture_stays_and_says_since_when(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("● live", "340/400")
        await commander.stop()
        await rig.shows("◌ stale since", "340/400")


async def test_a_remark_on_the_runs_stands_there_as_long_as_it_holds(commander: ScriptedCommander) -> None:
    """The demo's end was not to be seen in the dashboard; and a run that is queued anew goes on."""
    commander.greeting = [snapshot([run("demo-sft"), run("demo-rl", RunStatus.COMPLETED)])]
    async with dashboard(commander, source=Opened(commander.endpoint, remark=over)) as rig:
        await rig.shows("● live", "demo-rl", without="the demo is over")
        await commander.tell(RunChanged(NOW, run("demo-sft", RunStatus.COMPLETED)))
        await rig.shows("the demo is over: demo-sft completed, demo-rl completed; q prints a summary ")
        await rig.press("enter")
        await rig.becomes(lambda: isinstance(rig.app.screen, RunScreen))
        await rig.shows("the demo is over")
        await commander.tell(RunChanged(NOW, run("demo-sft", RunStatus.QUEUED)))
        await rig.shows("queued", without="the demo is over")


async def test_where_it_is_narrow_failures_are_the_last_that_are_counted(commander: ScriptedCommander) -> None:
    """At 40 columns how many wait was still said, and no longer that four had failed."""
    counts = {RunStatus.FAILED: 4, RunStatus.QUEUED: 1, RunStatus.RUNNING: 2, RunStatus.COMPLETED: 9}
    rows = [run(f"{status}-{n}", status) for status, number in counts.items() for n in range(number)]
    commander.greeting = [snapshot(rows)]
    for width, shown, gone in (
        (60, ("● 2", "○ 1", "✗ 4", "✓ 9", "workers"), ()),
        (40, ("● 2", "✗ 4", "workers"), ("✓ 9",)),
        (30, ("● 2", "✗ 4"), ("○ 1", "✓ 9", "workers")),
        (23, ("✗ 4",), ("● 2", "○ 1", "✓ 9", "workers")),
    ):
        async with dashboard(commander, size=(width, 24)) as rig:
            await rig.shows("✗ 4")
            top = rig.text.splitlines()[0]
            assert all(word in top for word in shown), top
            assert not any(word in top for word in gone), top


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_what_is_said_in_the_corner_leaves_the_tabs_to_be_read(
    commander: ScriptedCommander, size: tuple[int, int]
) -> None:
    """It lay over what a filter left out, at the end of their line."""
    async with dashboard(commander, size=size) as rig:
        await rig.shows("sft-sh")
        await rig.press("slash", *"sweep")
        await rig.shows("2 of 9 with sweep")
        rig.app.say("a long word " * 6)
        lines = (await rig.shows("a long word")).splitlines()
        assert lines[1].rstrip().endswith("2 of 9 with sweep")


async def test_what_stands_in_the_corner_is_not_said_once_more_beside_it(commander: ScriptedCommander) -> None:
    """A search of events that is refused said so for each letter."""
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        for _ in "run.odd":
            rig.app.say("the commander refuses that")
        rig.app.say("another word")
        shown = await rig.shows("another word", "the commander refuses that")
        assert shown.count("the commander refuses that") == 1
