"""Dialogs over a run that changes while they are read, and where a hand may type at once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from dashboard_fleet import run, scripted
from dashboard_rig import dashboard
from scripted_commander import NOW, ScriptedCommander, snapshot
from test_dashboard_acts import CANCEL, DRAIN, FORCE, NAME, ask, posted
from textual.widgets import Button, Input

from relaytui.client.acts import forces
from relaytui.dashboard.screens.asking import CancelDialog, DrainDialog, ForceDialog
from relaytui.wire.feed import RunChanged
from relaytui.wire.status import RunStatus


@pytest.fixture
async def commander() -> AsyncIterator[ScriptedCommander]:
    made = await ScriptedCommander().start()
    scripted(made)
    made.answers[FORCE] = (200, {"run": run(NAME, RunStatus.QUEUED, epoch=4), "epoch": 4})
    made.answers[DRAIN] = (200, {"run": run(NAME), "order_id": 7})
    made.answers[CANCEL] = (200, {"run": run(NAME), "order_id": 8})
    yield made
    await made.stop()


async def test_the_name_that_a_force_wants_can_be_typed_at_once(commander: ScriptedCommander) -> None:
    """What was typed went nowhere, and the Enter after it pressed Cancel."""
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("pod-a loses the run")
        await rig.press("enter", *NAME[:4], "enter")
        assert isinstance(rig.app.screen, ForceDialog), "half a name is neither a yes nor a no"
        assert posted(commander) == []
        await rig.press(*NAME[4:], "enter", "enter")
        await rig.shows("now at epoch 4")
        assert posted(commander) == [(FORCE[1], {"expected_epoch": 3, "why": "", "pod_gone": False})]


async def test_a_force_says_what_enter_did(commander: ScriptedCommander) -> None:
    """A wrong name and the right one looked alike, and the Enter after that took the run."""
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("pod-a loses the run", without="That is not")
        await rig.press("enter")
        await rig.shows(f"Type {NAME} to go on")
        await rig.press(*"wrong", "enter")
        await rig.shows(f"That is not {NAME}")
        await rig.press("backspace")
        await rig.shows("wron", without="That is not")
        await rig.press(*["backspace"] * 4, *NAME)
        await rig.shows(NAME, without="Enter takes")
        await rig.press("enter")
        await rig.shows("Enter takes the run from pod-a")
        assert rig.app.focused is rig.app.screen.query_one("#go")
        await rig.press("shift+tab")
        await rig.shows(NAME, without="Enter takes")
        assert posted(commander) == []


async def test_what_changed_meanwhile_hides_no_word_about_a_wrong_name(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.press(*"wrong", "enter")
        await rig.shows(f"That is not {NAME}")
        await commander.tell(RunChanged(NOW, run(NAME, epoch=4, holder="pod-b")))
        await rig.shows("changed meanwhile", f"That is not {NAME}")
        await rig.press(*"other")
        await rig.shows("changed meanwhile", without="That is not")
        await rig.press("enter")
        await rig.shows("changed meanwhile", f"That is not {NAME}")
        await rig.press(*["backspace"] * 5, *NAME)
        await rig.shows("changed meanwhile", without="That is not")


async def test_a_force_that_wants_no_name_begins_on_cancel(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run(NAME, RunStatus.QUEUED)])]
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("Nobody holds this run")
        assert rig.app.focused is not None
        assert rig.app.focused.id == "cancel"


async def test_the_buttons_of_cancel_cannot_be_mistaken_for_each_other(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "c")
        text = await rig.shows("Cancel the run", "esc keep it")
        labels = [str(button.label) for button in rig.app.screen.query(Button)]
        assert labels == ["Keep it", "Cancel the run"]
        assert "esc cancel" not in text
        await rig.press("enter")
        await rig.becomes(lambda: not isinstance(rig.app.screen, CancelDialog))
        assert posted(commander) == []


async def test_a_run_whose_holder_is_lost_while_one_is_asked_has_nothing_to_drain(
    commander: ScriptedCommander,
) -> None:
    """The head said `holder nobody` above `its holder stops the trainer`."""
    async with dashboard(commander) as rig:
        await ask(rig, "d")
        await rig.shows("pod-a stops the trainer")
        await rig.press("tab")
        assert rig.app.focused is rig.app.screen.query_one("#go")
        await commander.tell(RunChanged(NOW, run(NAME, RunStatus.QUEUED)))
        text = await rig.shows("nobody", f"nobody holds {NAME}", without="stops the trainer")
        assert "its holder" not in text
        assert rig.app.screen.query_one("#go", Button).disabled
        await rig.becomes(lambda: rig.app.focused is rig.app.screen.query_one("#cancel"))


async def test_a_takeover_while_one_is_asked_is_shown_at_once_and_decided_anew(commander: ScriptedCommander) -> None:
    """Head, consequence and foot are of one state; a hand that is on its way to Enter finds Cancel."""
    async with dashboard(commander) as rig:
        await ask(rig, "d")
        await rig.shows("pod-a stops the trainer")
        await rig.press("tab")
        await commander.tell(RunChanged(NOW, run(NAME, epoch=4, holder="pod-c")))
        await rig.shows("changed meanwhile", "epoch 4", "pod-c stops the trainer", without="pod-a stops")
        await rig.becomes(lambda: rig.app.focused is rig.app.screen.query_one("#cancel"))
        await rig.press("tab", "enter")
        await rig.becomes(lambda: not isinstance(rig.app.screen, DrainDialog))
        assert posted(commander) == [(DRAIN[1], {"expected_epoch": 4, "why": ""})]


async def test_a_name_that_was_typed_for_another_holder_is_typed_again(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("pod-a loses the run")
        await rig.press(*NAME)
        await commander.tell(RunChanged(NOW, run(NAME, epoch=4, holder="pod-c")))
        await rig.shows("pod-c loses the run", "changed meanwhile")
        assert rig.app.screen.query_one("#typed", Input).value == ""
        assert rig.app.screen.query_one("#go", Button).disabled


def test_who_was_told_to_stop_and_may_still_train_is_named() -> None:
    row = run(NAME, RunStatus.QUEUED, holder="pod-a")
    (said,) = forces(row, None, pod_gone=False)
    assert said.startswith("pod-a has lost this run already")
    assert "Nobody holds" not in said


# -- words in the corner -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_words_lie_neither_on_the_head_of_a_run_nor_on_the_selected_one(
    commander: ScriptedCommander, size: tuple[int, int]
) -> None:
    """Name, state, holder and epoch were covered just when an order had been given."""
    async with dashboard(commander, size=size) as rig:
        await ask(rig, "down")
        await rig.shows(NAME[:8])

        def seen(*widgets: str) -> list[tuple[str, str]]:
            """Of these, what the terminal shows in their place, and what they drew."""
            lines, shown = rig.text.splitlines(), []
            for widget in map(rig.app.screen.query_one, widgets):
                region = widget.region
                drawn = [strip.text.rstrip() for strip in widget.render_lines(region.reset_offset)]
                shown.append(("\n".join(line.rstrip() for line in lines[region.y : region.bottom]), "\n".join(drawn)))
            return shown

        for widgets, keys in ((["#peek"] if size[1] >= 24 else [], "down"), (["#head"], "enter")):
            await rig.press(keys)
            rig.app.NOTIFICATION_TIMEOUT = 60
            await rig.becomes(lambda widgets=widgets: all(rig.app.screen.query(name) for name in widgets))  # type: ignore[misc]
            rig.app.say("a word that is long enough for several lines " * 3)
            rig.app.say("and another one that is long enough for some " * 3)
            text = await rig.shows("and another")
            assert text
            await rig.becomes(lambda widgets=widgets: all(a == b for a, b in seen(*widgets)))  # type: ignore[misc]
            await rig.shows("and another")


@pytest.mark.parametrize("width", [60, 80])
async def test_what_is_to_be_pasted_runs_no_word_of_a_comment(commander: ScriptedCommander, width: int) -> None:
    commander.greeting = [snapshot([])]
    program = "relay-tui --state /srv/a/folder/with-a-name/that-is-long/state"
    for key in "12":
        async with dashboard(commander, size=(width, 30), program=program) as rig:
            await rig.press(key)
            lines = [line.strip() for line in (await rig.shows("RELAY_SHARED_SECRET", "COMMANDER_URL")).splitlines()]
            at = next(number for number, line in enumerate(lines) if line.startswith("# what"))
            while "RELAY_SHARED_SECRET" not in lines[at]:
                assert lines[at].startswith("# "), lines[at]
                at += 1
            assert not any("export" in line and "#" in line for line in lines)
