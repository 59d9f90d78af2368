"""Acts on a run: what the dialogs say, what they ask for, and what happens when the run changed meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from dashboard_fleet import RUNS, run, scripted
from dashboard_rig import Rig, dashboard, screen_text
from scripted_commander import NOW, ScriptedCommander, snapshot, until
from textual.screen import Screen
from textual.widgets import Button

from relaytui.client.answers import RunDetail
from relaytui.dashboard.app import DashboardApp
from relaytui.dashboard.screens.asking import CancelDialog, DrainDialog, ForceDialog
from relaytui.dashboard.screens.dialogs import Dialog
from relaytui.dashboard.widgets.status import KeyBar
from relaytui.dashboard.widgets.table import Table
from relaytui.wire.codec import parse
from relaytui.wire.feed import RunChanged
from relaytui.wire.rows import RunRow
from relaytui.wire.status import RunStatus

NAME = "sft-shakespeare"
FORCE = ("POST", f"/api/runs/{NAME}/force-acquire")
DRAIN = ("POST", f"/api/runs/{NAME}/drain")
ENDED = "sft-baseline"
REQUEUE = ("POST", f"/api/runs/{ENDED}/requeue")
CANCEL = ("POST", f"/api/runs/{NAME}/cancel")
SAVE = ("POST", f"/api/runs/{NAME}/save")


@pytest.fixture
async def commander() -> AsyncIterator[ScriptedCommander]:
    made = await ScriptedCommander().start()
    scripted(made)
    made.answers[FORCE] = (200, {"run": RUNS[0], "epoch": 4})
    made.answers[DRAIN] = (200, {"run": RUNS[0], "order_id": 7})
    made.answers[CANCEL] = (200, {"run": RUNS[0], "order_id": 8})
    made.answers[SAVE] = (200, {"run": RUNS[0], "order_id": 9})
    made.answers[REQUEUE] = (200, {"run": run(ENDED, RunStatus.QUEUED, epoch=2)})
    yield made
    await made.stop()


async def ask(rig: Rig, key: str, run_id: str = NAME) -> None:
    await rig.shows("sft-")
    rig.app.screen.query_one("#runs", Table).select(run_id)
    await rig.press(key)


def posted(commander: ScriptedCommander) -> list[tuple[str, object]]:
    return [(path, parse(body)) for method, path, _, body in commander.requests if method == "POST"]


async def test_drain_names_target_holder_age_lease_and_consequence_and_begins_on_cancel(
    commander: ScriptedCommander,
) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "d")
        text = await rig.shows("Drain", NAME, "pod-a", "last report", "left", "SIGTERM", "queued again")
        assert "epoch 3" in text
        assert rig.app.focused is not None
        assert rig.app.focused.id == "cancel"
        await rig.press("enter")
        await rig.becomes(lambda: not isinstance(rig.app.screen, DrainDialog))
        assert posted(commander) == []


@pytest.mark.parametrize(
    ("key", "run_id", "last"),
    [
        ("d", NAME, "the next agent goes on from that"),
        ("c", NAME, "Once cancelled, no agent gets it again"),
        ("f", NAME, "Another agent may start when pod-a"),
        ("r", ENDED, "the next agent that asks goes on from"),
    ],
)
async def test_the_first_frame_of_a_dialog_says_all_of_it(
    commander: ScriptedCommander, monkeypatch: pytest.MonkeyPatch, key: str, run_id: str, last: str
) -> None:
    """What it would do is read before a hand can press anything, also over a slow line."""
    frames: list[str] = []
    display = DashboardApp._display

    def displayed(app: DashboardApp, screen: Screen[object], renderable: object) -> None:
        if isinstance(screen, Dialog) and renderable is not None:
            frames.append(screen_text(app))
        display(app, screen, renderable)  # type: ignore[arg-type]

    monkeypatch.setattr(DashboardApp, "_display", displayed)
    async with dashboard(commander) as rig:
        await ask(rig, key, run_id)
        await rig.becomes(lambda: len(frames) > 0)
        assert last in frames[0], frames[0]
        assert run_id in frames[0]
        assert ("esc keep it" if key == "c" else "esc cancel") in frames[0]


async def test_drain_is_sent_with_epoch_who_and_why(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "d")
        await rig.shows("Drain")
        rig.app.screen.query_one("#why").focus()
        await rig.press(*"rest", "enter", "enter")
        await rig.shows("drain ordered")
        assert posted(commander) == [(DRAIN[1], {"expected_epoch": 3, "why": "rest"})]
        sent = next(headers for method, _, headers, _ in commander.requests if method == "POST")
        assert sent["X-Relay-Actor"] == "ada"


async def test_force_on_a_live_lease_wants_the_name_typed(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("Force-acquire", "pod-a loses the run", f"type {NAME} to confirm")
        go = rig.app.screen.query_one("#go", Button)
        assert go.disabled
        rig.app.screen.query_one("#typed").focus()
        await rig.press(*"sft-")
        assert go.disabled
        await rig.press(*"shakespeare")
        assert not go.disabled
        await rig.press("enter", "enter")
        await rig.shows("taken at epoch 4", "the next agent")
        assert posted(commander) == [(FORCE[1], {"expected_epoch": 3, "why": "", "pod_gone": False})]


async def test_force_says_what_becomes_of_what_the_holder_saves(commander: ScriptedCommander) -> None:
    """It publishes nothing more itself; what lies there whole is its successor's, which resumes from it."""
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        lines = (await rig.shows("publishes nothing")).splitlines()
        text = " ".join(" ".join(line.split("│")[1] for line in lines if line.count("│") == 2).split())
        assert "saved whole when the next agent starts, that one takes up, if both have the same volume" in text
        assert "set aside" not in text


async def test_force_where_the_pod_is_gone_says_what_that_risks(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("[ ] the old pod is gone")
        rig.app.screen.query_one("#gone").focus()
        await rig.press("space")
        await rig.shows("[x] the old pod is gone", "trainers run for a while")
        rig.app.screen.query_one("#typed").focus()
        await rig.press(*NAME, "enter", "enter")
        await rig.shows("taken at epoch 4", "the next agent")
        assert posted(commander)[0][1] == {"expected_epoch": 3, "why": "", "pod_gone": True}


async def test_force_on_a_run_that_nobody_holds_needs_no_typing(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run(NAME, RunStatus.QUEUED)])]
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("Nobody holds this run")
        assert not rig.app.screen.query_one("#go", Button).disabled


async def test_a_run_that_changed_is_refused_shown_anew_and_decided_again(commander: ScriptedCommander) -> None:
    """The override carries the epoch it was decided on; the next try carries the one that was then shown."""
    anew: RunRow = run(NAME, epoch=5, holder="pod-z", attempts=5, updated_at=NOW + 9)
    commander.answers[FORCE] = (
        409,
        {"error": {"code": "epoch_changed", "message": f"{NAME} was granted anew (epoch 5)", "hint": "look again"}},
    )
    commander.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, anew))
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("pod-a loses the run")
        rig.app.screen.query_one("#typed").focus()
        await rig.press(*NAME, "enter", "enter")
        await rig.shows("granted anew", "pod-z loses the run", "epoch 5")
        assert rig.app.screen.query_one("#go", Button).disabled, "it has to be typed again"
        commander.answers[FORCE] = (200, {"run": anew, "epoch": 6})
        rig.app.screen.query_one("#typed").focus()
        await rig.press(*NAME, "enter", "enter")
        await rig.shows("taken at epoch 6")
        assert [body["expected_epoch"] for _, body in posted(commander)] == [3, 5]  # type: ignore[index]


async def test_a_change_seen_while_asking_is_said_before_confirming(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("pod-a loses the run")
        await commander.tell(RunChanged(NOW, run(NAME, epoch=9, holder="pod-q")))
        await rig.shows("changed meanwhile", "epoch 9, held by pod-q", "pod-q loses the run", without="pod-a loses")


async def test_a_failure_stays_in_the_dialog(commander: ScriptedCommander) -> None:
    commander.answers[DRAIN] = (
        409,
        {"error": {"code": "not_held", "message": "nobody holds it any more", "hint": "nothing to drain"}},
    )
    async with dashboard(commander) as rig:
        await ask(rig, "d")
        await rig.shows("Drain")
        await rig.press("tab", "enter")
        await rig.shows("nobody holds it any more")
        assert isinstance(rig.app.screen, DrainDialog)


async def test_what_cannot_be_done_is_said_and_not_asked(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "d", "sft-baseline")
        await rig.shows("sft-baseline is completed")
        await ask(rig, "d", "llama-ft-final-v2")
        await rig.shows("is draining already")
        assert not isinstance(rig.app.screen, DrainDialog | ForceDialog)
        assert posted(commander) == []


# -- cancel and save -----------------------------------------------------------------------------------------------


async def test_cancel_names_target_holder_age_and_consequence_and_begins_on_cancel(
    commander: ScriptedCommander,
) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "c")
        text = await rig.shows(
            "Cancel", NAME, "pod-a", "last report", "left", "SIGTERM", "publishes", "no agent gets it again", "requeue"
        )
        assert "epoch 3" in text
        assert rig.app.focused is not None
        assert rig.app.focused.id == "cancel"
        await rig.press("enter")
        await rig.becomes(lambda: not isinstance(rig.app.screen, CancelDialog))
        assert posted(commander) == []
        await ask(rig, "c")
        await rig.shows("Cancel the run")
        rig.app.screen.query_one("#why").focus()
        await rig.press(*"bad", "enter", "enter")
        await rig.shows("cancel ordered")
        assert posted(commander) == [(CANCEL[1], {"expected_epoch": 3, "why": "bad"})]


async def test_a_queued_run_is_cancelled_at_once_and_the_dialog_says_so(commander: ScriptedCommander) -> None:
    commander.greeting = [snapshot([run(NAME, RunStatus.QUEUED, holder=None)])]
    commander.answers[CANCEL] = (200, {"run": run(NAME, RunStatus.CANCELLED), "order_id": None})
    async with dashboard(commander) as rig:
        await ask(rig, "c")
        await rig.shows("Nobody trains it", "cancelled at once")
        await rig.press("tab", "enter")
        await rig.shows(f"{NAME}: cancelled")


async def test_what_is_over_is_neither_cancelled_nor_saved(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "c", ENDED)
        await rig.shows("there is nothing to cancel")
        await ask(rig, "s", ENDED)
        await rig.shows("only one that runs")
        assert not isinstance(rig.app.screen, Dialog)
        assert posted(commander) == []


async def test_save_asks_nothing_and_says_that_it_was_asked(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "s")
        await rig.shows("is asked for a checkpoint")
        assert not isinstance(rig.app.screen, Dialog)
        assert posted(commander) == [(SAVE[1], {"expected_epoch": 3, "why": ""})]


async def test_a_save_that_is_refused_says_why(commander: ScriptedCommander) -> None:
    words = "pod-a speaks the original protocol and takes no orders"
    commander.answers[SAVE] = (409, {"error": {"code": "cannot_save", "message": words, "hint": ""}})
    async with dashboard(commander) as rig:
        await ask(rig, "s")
        await rig.shows("is not asked to save", "takes no")


async def test_the_key_bar_at_80_columns_has_what_can_be_done(commander: ScriptedCommander) -> None:
    """What cannot be done with the run gives way to what can, and under a dialog nothing moves."""
    async with dashboard(commander) as rig:
        await ask(rig, "down")

        def bar() -> str:
            rig.app.paint_now()
            return rig.text.splitlines()[-1].rstrip()

        def select(run_id: str) -> None:
            rig.app.screen.query_one("#runs", Table).select(run_id)

        select(NAME)
        await rig.becomes(lambda: "f force" in bar())
        assert bar() == " ⏎ open  / filter  d drain  s save  f force  c cancel  ? help  o order  q quit"
        await rig.press("d")
        await rig.shows("SIGTERM")
        assert "requeue" not in bar()
        assert bar().endswith("q quit")
        await rig.press("escape")
        select(ENDED)
        await rig.becomes(lambda: "r requeue" in bar())
        assert "q quit" in bar()
        select(NAME)
        await rig.press("enter")
        await rig.becomes(lambda: "esc back" in bar())
        assert bar() == " esc back  / filter  d drain  s save  f force  c cancel  ? help  v view  q quit"


async def test_a_key_that_can_do_nothing_is_not_in_the_bar(commander: ScriptedCommander) -> None:
    async with dashboard(commander, size=(160, 24)) as rig:
        await ask(rig, "down")

        def bar() -> str:
            rig.app.paint_now()
            return rig.text.splitlines()[-1]

        for run_id, there, absent in (
            (NAME, ("d drain", "s save", "f force", "c cancel"), ("r requeue",)),
            (ENDED, ("r requeue",), ("d drain", "s save", "f force", "c cancel")),
        ):
            rig.app.screen.query_one("#runs", Table).select(run_id)
            await rig.becomes(lambda there=there: there[0] in bar())  # type: ignore[misc]
            assert all(key in bar() for key in there), bar()
            assert not any(key in bar() for key in absent), bar()
        await rig.press("slash", *"no such run", "enter")
        await rig.becomes(lambda: "⏎ open" not in bar())
        assert not any(key in bar() for key in ("d drain", "s save", "f force", "c cancel", "r requeue")), bar()


async def test_enter_with_the_first_picture_opens_what_is_selected(commander: ScriptedCommander) -> None:
    """Also where the picture is here and was not painted yet; before that, it is not a matter of selecting."""
    async with dashboard(commander) as rig:
        assert rig.app.why_not("open") in ("nothing is here yet: still connecting", "")
        await until(lambda: rig.app.mirror.loaded, 8.0)
        assert not rig.app.refused("open")


async def test_a_word_lies_on_top_and_not_on_the_newest(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "s")
        lines = (await rig.shows("is asked for a")).splitlines()
        assert any("is asked for a" in line for line in lines[:5]), "below are the newest lines and the selected run"


async def test_no_word_in_the_corner_covers_what_a_dialog_says(commander: ScriptedCommander) -> None:
    def whole() -> bool:
        return all(part in rig.text for part in ("asks gets it", "Force-acquire   │", "esc cancel ─╯"))

    async with dashboard(commander) as rig:
        await rig.shows("sft-sh")
        rig.app.NOTIFICATION_TIMEOUT = 60
        for word in ("one", "two"):
            rig.app.say(f"{word} is said before it was asked " * 4, severity="warning")
        await rig.shows("two is said before")
        await rig.press("f")
        await rig.becomes(whole)
        rig.app.say("three is said while it was asked " * 4)
        await rig.pilot.pause()
        assert whole(), rig.text
        await rig.press("escape")
        await rig.shows("three is said while", without="esc cancel")


async def test_requeue_is_for_ended_runs_and_says_what_goes_on_from_where(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "r", ENDED)
        await rig.shows("Requeue", ENDED, "completed", "queued again", "newest checkpoint")
        assert rig.app.focused is not None
        assert rig.app.focused.id == "cancel"
        rig.app.screen.query_one("#why").focus()
        await rig.press(*"more", "enter", "enter")
        await rig.shows(f"{ENDED}: queued again")
        assert posted(commander) == [(REQUEUE[1], {"expected_epoch": 2, "why": "more"})]


async def test_requeue_of_a_run_that_has_not_ended_is_refused_in_words(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "r")
        await rig.shows("only an ended run")
        assert not rig.app.can("requeue")
        assert posted(commander) == []


async def test_a_requeue_that_came_too_late_stays_in_the_dialog(commander: ScriptedCommander) -> None:
    commander.answers[REQUEUE] = (
        409,
        {"error": {"code": "not_ended", "message": f"run {ENDED} is queued", "hint": ""}},
    )
    commander.answers["GET", f"/api/runs/{ENDED}"] = (200, RunDetail(NOW, run(ENDED, RunStatus.QUEUED, epoch=2)))
    async with dashboard(commander) as rig:
        await ask(rig, "r", ENDED)
        await rig.shows("Requeue")
        await rig.press("tab", "enter")
        await rig.shows("is queued", "○ queued")


async def test_an_act_that_ends_after_its_dialog_is_gone_hurts_nothing(commander: ScriptedCommander) -> None:
    """The app is left, and the dialog's parts are gone, while the commander has yet to answer."""
    async with dashboard(commander) as rig:
        await ask(rig, "d")
        await rig.shows("SIGTERM")
        dialog = rig.app.screen
        assert isinstance(dialog, DrainDialog)
        await dialog.query("#facts").remove()
        dialog.paint()  # they go one after another
        await dialog.query("#dialog").remove()
        dialog.decide_again()
        dialog.paint()
        assert not dialog.there


async def test_a_dialog_says_its_keys_and_the_bar_below_is_not_active(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "d")
        await rig.shows("tab next · ⏎ press · esc cancel")
        bar = rig.app.screen_stack[0].query_one(KeyBar)
        await rig.becomes(lambda: not any(enabled for _, enabled in bar._actions))
        await rig.press("escape")
        await rig.becomes(lambda: any(enabled for _, enabled in bar._actions))


async def test_force_is_walked_through_from_why_to_the_button(commander: ScriptedCommander) -> None:
    async with dashboard(commander) as rig:
        await ask(rig, "f")
        await rig.shows("Force-acquire")
        order = [widget.id for widget in rig.app.screen.focus_chain]
        assert [i for i in order if i != "dialog"] == ["why", "typed", "gone", "cancel"], "go waits for the name"
        rig.app.screen.query_one("#why").focus()
        await rig.press(*"why", "enter")
        assert rig.app.focused is not None
        assert rig.app.focused.id == "typed"
        await rig.press("s", "enter")
        assert rig.app.focused.id == "typed", "not yet the name"
        await rig.press(*NAME[1:], "enter")
        assert rig.app.focused.id == "go"
