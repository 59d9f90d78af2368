"""What an agent answers to an order comes back to whoever gave it, in the corner of the screen."""

from __future__ import annotations

import pytest
from dashboard_fleet import RUNS, commander
from dashboard_rig import dashboard
from scripted_commander import NOW, ScriptedCommander
from test_dashboard_acts import NAME, ask

from relaytui.dashboard import acts
from relaytui.dashboard.screens.dialogs import Dialog
from relaytui.wire.rows import OrderRow
from relaytui.wire.status import OrderKind

__all__ = ["commander"]


@pytest.mark.parametrize(("key", "kind"), [("u", "sync"), ("s", "save"), ("d", "drain"), ("c", "cancel")])
async def test_what_the_agent_says_to_an_order_is_said(commander: ScriptedCommander, key: str, kind: str) -> None:
    """A run without a repository refuses to sync at once; the person was told that it was asked, and no more."""
    commander.answers["POST", f"/api/runs/{NAME}/{kind}"] = (200, {"run": RUNS[0], "order_id": 7})
    order = OrderRow(7, NAME, 3, OrderKind(kind), "ada", "", NOW, accepted=False, message="HF_REPO is not set")
    commander.answers["GET", f"/api/runs/{NAME}/orders/7"] = (200, {"order": order})
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
