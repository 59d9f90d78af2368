"""The action table is the one source: bindings, bar, help, palette and docs say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaytui.dashboard.actions import ACTIONS, Danger, Place, docs_table, here
from relaytui.dashboard.app import DashboardApp
from relaytui.dashboard.widgets.log import LogView
from relaytui.dashboard.widgets.table import Table


def test_every_action_has_its_handler() -> None:
    for action in ACTIONS:
        name = f"action_{action.handler.partition('(')[0]}"
        owners: list[type] = [DashboardApp]
        if action.where <= {Place.LIST}:
            owners = [Table]
        elif action.where <= {Place.LOG}:
            owners = [LogView]
        assert all(hasattr(owner, name) for owner in owners), action.id


@pytest.mark.parametrize("place", [Place.RUNS, Place.WORKERS, Place.EVENTS, Place.RUN])
def test_no_key_means_two_things_in_one_place(place: Place) -> None:
    inside = Place.LOG if place is Place.RUN else Place.LIST
    keys = [key for action in here({place, inside}) for key in action.keys]
    assert len(keys) == len(set(keys))


def test_an_act_that_cannot_be_undone_has_no_unasked_twin() -> None:
    asked = {action.handler for action in ACTIONS if action.danger is not Danger.NONE}
    assert asked == {"drain", "cancel_run", "force_acquire", "requeue"}
    for handler in asked:
        assert sum(action.handler == handler for action in ACTIONS) == 1


def test_the_docs_have_the_table() -> None:
    page = (Path(__file__).parent.parent / "docs" / "dashboard.md").read_text(encoding="utf-8")
    assert docs_table() in page, "docs/dashboard.md: paste what `docs_table()` gives"
