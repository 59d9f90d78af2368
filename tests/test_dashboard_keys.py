"""Keys that come in one burst do what they would do one by one."""

from __future__ import annotations

from dashboard_fleet import commander
from dashboard_rig import Rig, dashboard
from scripted_commander import ScriptedCommander
from textual import events
from textual.widgets import Input

__all__ = ["commander"]

NAMES = {"/": "slash"}


def burst(rig: Rig, *keys: str) -> None:
    """As the terminal's reader posts what came in one read."""
    for key in keys:
        event = events.Key(NAMES.get(key, key), key if len(key) == 1 else None)
        event.set_sender(rig.app)
        rig.app.post_message(event)


def filter_text(rig: Rig) -> str:
    box = rig.app.screen.query("#filter")
    return box.first(Input).value if box else ""


async def test_a_filter_in_one_burst_is_a_filter_and_quits_nothing(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        burst(rig, "/", "q", "w")
        await rig.becomes(lambda: filter_text(rig) == "qw" or not rig.app.is_running)
        assert rig.app.is_running
        assert not rig.app._quitting


async def test_corrections_in_one_burst_keep_their_order(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        burst(rig, "/")
        await rig.becomes(lambda: bool(rig.app.screen.query("#filter")))
        burst(rig, "x", "backspace", "a", "b", "backspace", "c", "left", "z")
        await rig.becomes(lambda: len(filter_text(rig)) == 3)
        assert filter_text(rig) == "azc"


async def test_a_dialog_in_one_burst_gets_the_keys_after_it(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        burst(rig, "/", *"shake", "enter", "enter", "d")
        await rig.shows("Drain", "sft-shakespeare", "SIGTERM")


async def test_a_key_whose_target_vanished_holds_the_others_up_only_briefly(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        burst(rig, "/", "a", "escape", "escape", "2", "1", "3")
        await rig.shows("lease.granted")
