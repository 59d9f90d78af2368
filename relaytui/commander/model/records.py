"""The other rows of the store: attempts, checkpoints, workers, events, orders."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from relaytui.wire.ids import shown
from relaytui.wire.status import OrderKind, Outcome

ORIGINALS = "http-"
"""Begins the incarnations of workers of the original protocol: made of their names, so no agent may say one."""


def seen(incarnation: str) -> str:
    """As others may see it."""
    return incarnation if incarnation.startswith(ORIGINALS) else shown(incarnation)


class Attempt(Struct, frozen=True):
    """One try at a run. `salt` and the state key make its token again; the token itself is stored nowhere."""

    run_id: str
    epoch: int
    worker: str
    incarnation: str
    request_id: str
    token_hash: bytes
    salt: bytes
    granted_at: float
    config_hash: str = ""
    started_step: int = 0
    last_step: int = 0
    started_from: str | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    message: str = ""
    said_step: int | None = None  # by its state reports, the last time; None until the first
    ending: str = ""  # by its agent's word
    began_step: int | None = None  # where its trainer was, below `started_step`: the resume did not take

    def step_after(self, told: int | None) -> int | None:
        """The step it is at, where its telemetry told of one: what it published and what it said at its end count where
        they are further. Not the step that it was handed: it may count anew."""
        said = self.said_step
        if told is None or said is None:
            return said if told is None else told
        counts = said > self.started_step or (self.ended_at is not None and said != self.started_step)
        return max(told, said) if counts else told

    def has_made(self, step: int) -> Attempt:
        """With a checkpoint of that step, which it published."""
        return replace(self, last_step=max(self.last_step, step), said_step=max(self.said_step or 0, step))


TRIED_AGAIN = frozenset({Outcome.LOST, Outcome.PREEMPTED, Outcome.CRASHED})
"""Outcomes after which a run goes on although nobody asked for it."""


def is_stuck(tries: Sequence[Attempt]) -> bool:
    """Whether these attempts in a row, all of `TRIED_AGAIN`, brought no new checkpoint and no further step."""
    if not tries or any(attempt.outcome not in TRIED_AGAIN for attempt in tries):
        return False
    started = [attempt for attempt in tries if attempt.last_step or attempt.started_from]
    return not started or max(each.last_step for each in started) <= min(each.started_step for each in started)


class Worker(Struct, frozen=True):
    """One incarnation of an agent, as it introduced itself."""

    incarnation: str
    worker: str
    host: str
    version: str
    gpu: str
    gpus: int
    connected_at: float
    seen_at: float
    refused: bool = False  # the run it asked for last, for good
    goodbye: bool = False  # said as its connection ended


class PendingOrder(Struct, frozen=True):
    """An order and the incarnation it is for."""

    id: int
    run_id: str
    epoch: int
    incarnation: str
    kind: OrderKind
    by: str
    why: str
    created_at: float
