"""What becomes of an order: waited for, briefly, and said. The same in the dashboard and in the shell."""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from relaytui.wire.errors import RelayError
from relaytui.wire.rows import OrderRow, RunRow
from relaytui.wire.status import OrderKind, RunStatus
from relaytui.wire.status import Outcome as AttemptEnd
from relaytui.wire.text import clean

if TYPE_CHECKING:
    from relaytui.client.answers import Ordered, RunDetail
    from relaytui.client.api import CommanderClient

PATIENCE = 5.0
"""Seconds that an answer is waited for where nobody says otherwise; an agent that is there takes well under one."""
EVERY, SELDOM = 0.1, 1.0
"""Seconds between two looks, at first and later."""


class Answer(StrEnum):
    DONE = "done"  # nobody had to be asked, or nobody has to be any more
    TAKEN = "taken"  # its agent is at it
    REFUSED = "refused"
    UNANSWERED = "unanswered"  # it waits for its agent
    OVER = "over"  # the attempt ended first


class Outcome(NamedTuple):
    answer: Answer
    words: str
    order: OrderRow | None = None

    @property
    def in_vain(self) -> bool:
        return self.answer in (Answer.REFUSED, Answer.OVER)


async def outcome(client: CommanderClient, kind: OrderKind, given: Ordered, seconds: float) -> Outcome:
    """What its agent says to an order within `seconds`. It was given: a commander that cannot say more is no error."""
    order = None
    if given.order_id is not None:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + seconds, EVERY
        while (left := until - loop.time()) > 0:
            try:
                order = await client.order_row(given.run.run_id, given.order_id)
            except RelayError:
                break
            if order.accepted is not None or order.closed_at is not None:
                break
            await asyncio.sleep(min(pause, left))
            pause = min(SELDOM, 1.5 * pause)
    answer, status, lasts = _answer(given, order), given.run.status, kind in (OrderKind.DRAIN, OrderKind.CANCEL)
    if lasts and order is not None and order.closed_at is not None and answer is not Answer.REFUSED:
        # Its attempt has ended. One that took the order, or did as it says without a word, did not end for nothing.
        with contextlib.suppress(RelayError):
            detail = await client.run(given.run.run_id)
            if answer is Answer.TAKEN or _came_of(kind, order, detail):
                answer, status = Answer.DONE, detail.run.status
    return Outcome(answer, _words(answer, kind, given.run, status, order), order)


def _came_of(kind: OrderKind, order: OrderRow, detail: RunDetail) -> bool:
    """However its attempt ended, a cancel was in force: only a run that had reached its last step is completed."""
    if kind is OrderKind.CANCEL:
        return detail.run.status is RunStatus.CANCELLED
    return any(each.epoch == order.epoch and each.outcome is AttemptEnd.DRAINED for each in detail.attempts)


def _answer(given: Ordered, order: OrderRow | None) -> Answer:
    if given.order_id is None:
        return Answer.DONE
    if order is None or (order.accepted is None and order.closed_at is None):
        return Answer.UNANSWERED
    if order.accepted is None:
        return Answer.OVER
    return Answer.TAKEN if order.accepted else Answer.REFUSED


def _words(answer: Answer, kind: OrderKind, run: RunRow, status: RunStatus, order: OrderRow | None) -> str:
    """`run` as the order found it; `status` as it is."""
    holder, run_id = clean(run.holder or "its holder", 128), clean(run.run_id, 128)
    said = clean(order.message, 500) if order is not None else ""
    match answer:
        case Answer.DONE:
            ended = "" if order is None else f"the attempt of {holder} has ended: "
            return f"{ended}{run_id} is {status.value}"
        case Answer.REFUSED:
            return f"{holder} refuses to {kind} {run_id}: {said or 'no reason given'}"
        case Answer.OVER:
            return f"the attempt ended before {holder} answered; nothing came of this order to {kind} {run_id}"
        case Answer.UNANSWERED:
            return f"{holder} has not answered yet whether it can {kind} {run_id}"
    if kind is OrderKind.DRAIN:
        later = f"`relay-tui events {run_id}` shows what was saved"
        return f"{run_id} is draining: {holder} asks the trainer to save and stop, publishes that and lets go; {later}"
    if kind is OrderKind.CANCEL:
        return f"{run_id} is cancelled once its trainer, which {holder} asks to save and stop, has stopped"
    return f"{holder} answers: {said}" if said else f"{holder} does it"
