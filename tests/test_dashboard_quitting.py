"""Leaving the dashboard: at once, or asked where its commander would end with it; and what ends it by itself."""

from __future__ import annotations

import pytest
from dashboard_fleet import commander
from dashboard_rig import dashboard
from scripted_commander import ScriptedCommander

from relaytui.dashboard.screens.quitting import QuitDialog
from relaytui.dashboard.session import Opened
from relaytui.wire.errors import RelayError

__all__ = ["commander"]


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
async def test_attached_quits_at_once(commander: ScriptedCommander, key: str) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        await rig.press(key)
    assert rig.app.return_value is not None
    assert rig.app.return_value.reason == "quit"


@pytest.mark.parametrize(
    "before", [(), ("f",), ("slash", "x"), ("question_mark",), ("enter",), ("ctrl+p",), ("ctrl+p", "x")]
)
async def test_ctrl_c_asks_what_q_asks_wherever_one_is(commander: ScriptedCommander, before: tuple[str, ...]) -> None:
    async with dashboard(commander, source=lambda: Opened(commander.endpoint, embedded=True)) as rig:
        await rig.shows("sft-sh")
        await rig.press(*before)
        if before == ("f",):
            await rig.shows("Force-acquire")
        await rig.press("ctrl+c")
        await rig.shows("Leave it running", without="Press ")


@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q"])
async def test_themes_are_left_by_quitting_too(commander: ScriptedCommander, key: str) -> None:
    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        rig.app.action_change_theme()
        await rig.shows("relay-light")
        await rig.press(key)
    assert rig.app.return_value is not None
    assert rig.app.return_value.reason == "quit"


async def test_what_an_operator_should_know_of_the_start_is_said(commander: ScriptedCommander) -> None:
    opened = Opened(commander.endpoint, embedded=True, warning="RELAY_SHARED_SECRET has 5 characters")
    async with dashboard(commander, source=lambda: opened) as rig:
        await rig.shows("RELAY_SHARED_SECRET has 5 characters")


@pytest.mark.parametrize(("button", "reason"), [("leave", "leave"), ("stop", "stop")])
async def test_an_embedded_commander_with_live_leases_is_not_stopped_unasked(
    commander: ScriptedCommander, button: str, reason: str
) -> None:
    async with dashboard(commander, source=lambda: Opened(commander.endpoint, embedded=True)) as rig:
        await rig.shows("sft-sh")
        await rig.press("q")
        await rig.shows("Leave it running", "3 runs are held by agents")
        assert rig.app.focused is not None
        assert rig.app.focused.id == "cancel"
        await rig.press("q", "ctrl+q", "ctrl+c")
        assert sum(isinstance(screen, QuitDialog) for screen in rig.app.screen_stack) == 1
        await rig.press("escape")
        await rig.shows("sft-sh", without="Leave it running")
        await rig.press("q")
        await rig.shows("Leave it running")
        rig.app.screen.query_one(f"#{button}").focus()
        await rig.press("enter")
    assert rig.app.return_value is not None
    assert rig.app.return_value.reason == reason


async def test_a_commander_that_cannot_be_opened_ends_it_with_that_error(commander: ScriptedCommander) -> None:
    def opening() -> Opened:
        raise RelayError("port_in_use", "port 8080 is taken", "choose another with --port")

    async with dashboard(commander, source=opening) as rig:
        await rig.becomes(lambda: rig.app.return_value is not None)
    assert rig.app.return_value is not None
    assert rig.app.return_value.reason == "failed"
    assert rig.app.return_value.error is not None
    assert rig.app.return_value.error.code == "port_in_use"
