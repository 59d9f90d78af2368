"""Orders to agents, in one table: what of a run takes them, what it is then, and what the history calls it."""

from __future__ import annotations

from typing import NamedTuple

from relaytui.commander.model.run import RULES, Cause
from relaytui.wire.status import OrderKind, RunStatus


class OrderRule(NamedTuple):
    """`asked`, `refused`: what giving it and a refusal do to the run; `waiting`: what it does, at once and without an
    agent, to a run that nobody trains."""

    event: str
    words: str  # for the history, where the operator gave no reason
    before: frozenset[RunStatus]
    asked: Cause | None = None
    refused: Cause | None = None
    waiting: Cause | None = None

    @property
    def lasts(self) -> bool:
        """Until the attempt has ended, and not only until it is acknowledged: the next agent must hear of it, too."""
        return self.asked is not None


ORDERS: dict[OrderKind, OrderRule] = {
    OrderKind.DRAIN: OrderRule(
        "run.draining",
        "{worker} is asked to save and let go",
        RULES[Cause.DRAIN_ASKED].before,
        Cause.DRAIN_ASKED,
        Cause.DRAIN_REFUSED,
    ),
    OrderKind.CANCEL: OrderRule(
        "run.cancel_asked",
        "{worker} is asked to save and stop for good",
        RULES[Cause.CANCEL_ASKED].before,
        Cause.CANCEL_ASKED,
        Cause.CANCEL_REFUSED,
        Cause.CALLED_OFF,
    ),
    OrderKind.SAVE: OrderRule(
        "run.save_asked", "{worker} is asked for a checkpoint now", frozenset({RunStatus.RUNNING})
    ),
    OrderKind.SYNC: OrderRule(
        "run.sync_asked", "{worker} is asked to sync to the Hub now", frozenset({RunStatus.RUNNING})
    ),
}
"""What an operator can order. `OrderKind.STOP` is not among them: force-acquire gives it."""

LASTING = tuple(kind for kind, rule in ORDERS.items() if rule.lasts)
"""The weightier ones last."""
