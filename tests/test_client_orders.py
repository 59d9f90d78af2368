"""What is said of an order whose attempt ended before its agent answered."""

from __future__ import annotations

from typing import cast

import pytest
from dashboard_fleet import run
from scripted_commander import NOW

from relaytui.client.answers import Ordered, RunDetail
from relaytui.client.api import CommanderClient
from relaytui.client.orders import Answer, outcome
from relaytui.wire.errors import RelayError
from relaytui.wire.rows import OrderRow, RunRow
from relaytui.wire.status import OrderKind, RunStatus

HELD = run("r1", RunStatus.DRAINING, holder="pod-a")


class Commander:
    """Closed the order, unanswered; `after` is the run then, None where it cannot be had."""

    def __init__(self, kind: OrderKind, after: RunRow | None) -> None:
        self._kind = kind
        self._after = after

    async def order_row(self, run_id: str, order_id: int) -> OrderRow:
        return OrderRow(order_id, run_id, 3, self._kind, "ada", "", NOW, closed_at=NOW)

    async def run(self, run_id: str) -> RunDetail:
        if self._after is None:
            raise RelayError("unreachable", "gone")
        return RunDetail(NOW, self._after)


@pytest.mark.parametrize(
    ("kind", "status", "answer", "words"),
    [
        (OrderKind.CANCEL, RunStatus.CANCELLED, Answer.DONE, "r1 is cancelled"),
        (OrderKind.CANCEL, RunStatus.COMPLETED, Answer.OVER, "nothing came of this order to cancel r1"),
        (OrderKind.CANCEL, None, Answer.OVER, "before pod-a answered"),
        (OrderKind.DRAIN, RunStatus.CANCELLED, Answer.OVER, "nothing came of this order to drain r1"),
        (OrderKind.SAVE, RunStatus.QUEUED, Answer.OVER, "nothing came of this order to save r1"),
    ],
)
async def test_a_cancel_holds_although_nobody_answered_it(
    kind: OrderKind, status: RunStatus | None, answer: Answer, words: str
) -> None:
    """However its last attempt ends, a run that was to be cancelled is: `nothing came of it`, the shell said."""
    commander = Commander(kind, None if status is None else run("r1", status))
    came = await outcome(cast("CommanderClient", commander), kind, Ordered(HELD, 7), 5.0)
    assert came.answer is answer
    assert words in came.words
    assert came.in_vain == (answer is Answer.OVER)
