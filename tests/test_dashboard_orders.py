"""What an agent answers to an order comes back to whoever gave it, in the corner of the screen."""

from __future__ import annotations

import pytest
from dashboard_fleet import RUNS, commander
from dashboard_rig import dashboard
from msgspec.structs import replace
from scripted_commander import NOW, ScriptedCommander, snapshot
from test_dashboard_acts import NAME, ask

from relaytui.client.acts import cancels, drains
from relaytui.dashboard import acts
from relaytui.dashboard.screens.dialogs import Dialog
from relaytui.wire.rows import OrderRow
from relaytui.wire.status import OrderKind, RunStatus

__all__ = ["commander"]


@pytest.mark.parametrize(("key", "kind"), [("u", "sync"), ("s", "save"), ("d", "drain"), ("c", "cancel")])
async def test_what_the_agent_says_to_an_order_is_said(commander: ScriptedCommander, key: str, kind: str) -> None:
    """A run without a repository refuses to sync at once; the person was told that it was asked, and no more."""
    commander.answers["POST", f"/api/runs/{NAME}/{kind}"] = (200, {"run": RUNS[0], "order_id": 7})
    order = OrderRow(7, NAME, 3, OrderKind(kind), "ada", "", NOW, accepted=False, message="HF_REPO is not set")
    commander.answers["GET", f"/api/runs/{NAME}/orders/7"] = (200, {"order": order})
    commander.greeting = [snapshot([replace(RUNS[0], synced_repo="me/r")])]
    async with dashboard(commander, size=(120, 30)) as rig:
        await ask(rig, key)
        if key in "dc":
            await rig.becomes(lambda: isinstance(rig.app.screen, Dialog))
            await rig.press("tab", "enter")
        await rig.shows(f"pod-a refuses to {kind}", "HF_REPO")
        if key in "us":
            taken = OrderRow(7, NAME, 3, OrderKind(kind), "ada", "", NOW, accepted=True, message="at it, step 300")
            commander.answers["GET", f"/api/runs/{NAME}/orders/7"] = (200, {"order": taken})
            await rig.press(key)
            said = await rig.shows("pod-a answers: at it, step 300")
            assert "is asked" not in said, "one word for one key"


async def test_an_order_that_nobody_answers_is_said_after_a_while(
    commander: ScriptedCommander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "FOLLOWED_FOR", 0.02)
    monkeypatch.setattr(acts, "AT_ONCE", 0.02)
    commander.answers["POST", f"/api/runs/{NAME}/save"] = (200, {"run": RUNS[0], "order_id": 7})
    order = OrderRow(7, NAME, 3, OrderKind.SAVE, "ada", "", NOW)
    commander.answers["GET", f"/api/runs/{NAME}/orders/7"] = (200, {"order": order})
    async with dashboard(commander) as rig:
        await ask(rig, "s")
        await rig.shows("is asked for a checkpoint now", "pod-a has not answered yet")


@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("kind", list(acts.ASKED))
@pytest.mark.parametrize("status", list(RunStatus))
def test_what_is_said_meanwhile_is_true_of_the_run_as_it_is(kind: OrderKind, status: RunStatus, stalled: bool) -> None:
    row = replace(RUNS[0], status=status, stalled_at=NOW - 60 if stalled else None)
    said = acts.meanwhile(kind, row)
    assert bool(said) == status.active, "nobody is asked any more"
    assert ("training goes on" in said) == (status is RunStatus.RUNNING and not stalled)
    if status.active:
        assert said.startswith(f"{NAME}: pod-a is asked ")
        assert said.endswith(("training goes on", "the run is stalled", f"the run is {status.value}"))


@pytest.mark.parametrize("status", list(RunStatus))
def test_what_an_act_would_do_is_said_of_the_run_as_it_is(status: RunStatus) -> None:
    row = RUNS[0] if status.active else replace(RUNS[0], holder=None, lease_expires_at=None)
    row = replace(row, status=status)
    drain, cancel = " ".join(drains(row)), " ".join(cancels(row))
    trains = status in (RunStatus.RUNNING, RunStatus.DRAINING)
    for said in (drain, cancel):
        assert ("SIGTERM" in said) == ("publishes what it saves" in said) == trains
    assert ("has started no trainer yet" in drain) == (status is RunStatus.LEASED) == ("no trainer yet" in cancel)
    assert ("Nobody holds this run" in drain) == (not status.active) == ("Nobody trains it" in cancel)
    # One that lost it may still be at it, for as long as it has to stop.
    lost = " ".join(cancels(replace(RUNS[0], status=RunStatus.QUEUED)))
    assert "pod-a has lost this run already and was told to stop: it is cancelled at once" in lost
    assert "Nobody trains it" not in lost
