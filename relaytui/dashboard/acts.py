"""What the operator does to a run: refused where it makes no sense, asked about where it cannot be undone, and followed
until its agent has answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relaytui.client.orders import Answer, outcome
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import RunRow
from relaytui.wire.status import OrderKind, RunStatus

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


def meanwhile(kind: OrderKind, row: RunRow) -> str:
    """What is said of such an order while its answer takes a while; `row` as it is then. Empty where nobody is asked
    any more: what came of it is said then."""
    if not row.status.active:
        return ""
    wrong = "silent" if row.silent_since is not None else "stalled" if row.stalled_at is not None else ""
    going_on = row.status is RunStatus.RUNNING and not wrong
    goes = "training goes on" if going_on else f"the run is {wrong or row.status.value}"
    return f"{row.run_id}: {row.holder or 'its holder'} {ASKED[kind]}; {goes}"


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
    await follow(app, kind, given)


async def follow(app: DashboardApp, kind: OrderKind, given: Ordered) -> None:
    """Says what becomes of an order, where the screen does not show it anyway."""
    client = await app.session.client()
    came = await outcome(client, kind, given, AT_ONCE)
    if came.answer is Answer.UNANSWERED:
        now = app.mirror.runs.get(given.run.run_id, given.run)
        if kind in ASKED and (said := meanwhile(kind, now)):
            app.say(said)
        came = await outcome(client, kind, given, FOLLOWED_FOR)
    if came.answer is Answer.TAKEN and kind in ASKED:
        app.say(f"{given.run.run_id}: {came.words}")
    elif came.answer not in (Answer.TAKEN, Answer.DONE):
        app.say(came.words, severity="warning")
