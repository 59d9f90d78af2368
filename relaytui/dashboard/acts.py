"""What the operator does to a run: refused where it makes no sense, asked about where it cannot be undone, and followed
until its agent has answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relaytui.client.orders import Answer, outcome
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import RunRow
from relaytui.wire.status import OrderKind

if TYPE_CHECKING:
    from relaytui.client.answers import Ordered
    from relaytui.dashboard.app import DashboardApp

FOLLOWED_FOR = 15.0
"""Seconds after which it is said that an order was not answered."""
AT_ONCE = 1.0
"""Seconds within which the answer is all that is said."""
ASKED = {
    OrderKind.SAVE: "is asked for a checkpoint now",
    OrderKind.SYNC: "is asked to sync to the Hub now",
}
"""Orders that cost nothing, and are not asked about."""


def acting(action_id: str) -> Callable[[DashboardApp], None]:
    """The handler of an act on the run that is meant."""

    def act(app: DashboardApp) -> None:
        if not app.refused(action_id) and (row := app.target()) is not None:
            _do(app, action_id, row)

    return act


def _do(app: DashboardApp, action_id: str, row: RunRow) -> None:
    if action_id in ASKED:
        app.spawn(_order_now(app, row, OrderKind(action_id)))
    elif action_id == "copy":
        app.copy_to_clipboard(row.run_id)
        app.say(f"{row.run_id} sent to the terminal's clipboard")
    elif action_id == "open":
        from relaytui.dashboard.screens.run import RunScreen

        app.push_screen(RunScreen(row.run_id))
    else:
        from relaytui.dashboard.screens.asking import DIALOGS

        app.push_screen(DIALOGS[action_id](row))


async def _order_now(app: DashboardApp, row: RunRow, kind: OrderKind) -> None:
    try:
        client = await app.session.client()
        given = await client.order(kind, row.run_id, expected_epoch=row.epoch)
    except RelayError as error:
        app.say(f"{row.run_id} is not asked to {kind}: {error}", severity="warning")
        return
    asked = f"{row.run_id}: {row.holder or 'its holder'} {ASKED[kind]}; training goes on"
    await follow(app, kind, given, meanwhile=asked)


async def follow(app: DashboardApp, kind: OrderKind, given: Ordered, *, meanwhile: str = "") -> None:
    """Says what becomes of an order, where the screen does not show it anyway; `meanwhile` if that takes a while."""
    client = await app.session.client()
    came = await outcome(client, kind, given, AT_ONCE)
    if came.answer is Answer.UNANSWERED:
        if meanwhile:
            app.say(meanwhile)
        came = await outcome(client, kind, given, FOLLOWED_FOR)
    if came.answer is Answer.TAKEN and kind in ASKED:
        app.say(f"{given.run.run_id}: {came.words}")
    elif came.answer not in (Answer.TAKEN, Answer.DONE):
        app.say(came.words, severity="warning")
