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
from relaytui.wire.rows import AttemptRow, OrderRow, RunRow
from relaytui.wire.status import OrderKind, Outcome, RunStatus

HELD = run("r1", RunStatus.DRAINING, holder="pod-a")


class Commander:
    """Closed the order, unanswered or with an answer; `after` is the run then, None where it cannot be had, and
    `outcome` how the attempt ended that it was for."""

    def __init__(
        self, kind: OrderKind, after: RunRow | None, accepted: bool | None = None, outcome: Outcome = Outcome.FAILED
    ) -> None:
        self._kind = kind
        self._after = after
        self._accepted = accepted
        self._outcome = outcome

    async def order_row(self, run_id: str, order_id: int) -> OrderRow:
        return OrderRow(order_id, run_id, 3, self._kind, "ada", "", NOW, self._accepted, closed_at=NOW)

    async def run(self, run_id: str) -> RunDetail:
        if self._after is None:
            raise RelayError("unreachable", "gone")
        tries = [AttemptRow(run_id, 2, "pod-x", NOW - 9, outcome=Outcome.DRAINED)]
        return RunDetail(NOW, self._after, [*tries, AttemptRow(run_id, 3, "pod-a", NOW, outcome=self._outcome)])


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


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.CANCELLED, RunStatus.COMPLETED, RunStatus.LEASED])
@pytest.mark.parametrize("kind", [OrderKind.DRAIN, OrderKind.CANCEL])
async def test_what_was_taken_by_an_attempt_that_has_ended_is_not_going_on(kind: OrderKind, status: RunStatus) -> None:
    """`r1 is draining: pod-a asks the trainer to save`, it said of a run that somebody else had by then."""
    commander = Commander(kind, run("r1", status), accepted=True)
    came = await outcome(cast("CommanderClient", commander), kind, Ordered(HELD, 7), 5.0)
    assert (came.answer, came.words) == (Answer.DONE, f"the attempt of pod-a has ended: r1 is {status.value}")


async def test_a_drain_that_was_done_and_not_answered_came_to_something() -> None:
    commander = Commander(OrderKind.DRAIN, run("r1", RunStatus.QUEUED), outcome=Outcome.DRAINED)
    came = await outcome(cast("CommanderClient", commander), OrderKind.DRAIN, Ordered(HELD, 7), 5.0)
    assert (came.answer, came.words) == (Answer.DONE, "the attempt of pod-a has ended: r1 is queued")


@pytest.mark.parametrize("kind", [kind for kind in OrderKind if kind is not OrderKind.STOP])
async def test_a_refusal_stays_one(kind: OrderKind) -> None:
    commander = Commander(kind, run("r1", RunStatus.CANCELLED), accepted=False)
    came = await outcome(cast("CommanderClient", commander), kind, Ordered(HELD, 7), 5.0)
    assert (came.answer, came.in_vain) == (Answer.REFUSED, True)
