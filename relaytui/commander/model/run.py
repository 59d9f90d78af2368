"""A run and the one table of what may happen to it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from relaytui.wire.status import ACTIVE, ENDED, Outcome, RunStatus


class Run(Struct, frozen=True):
    """One row of `runs`. Times are wall seconds; `epoch` is the highest one granted or burned, 0 before the first."""

    run_id: str
    mode: str
    status: RunStatus
    epoch: int
    created_at: float
    updated_at: float
    message: str = ""
    draining_since: float | None = None
    newest_checkpoint: str | None = None
    newest_step: int | None = None
    checkpoints: int = 0
    published: int = 0
    attempts: int = 0
    stalled_in: str = ""  # the phase that its trainer does not get on in, by its agent's word; empty: it does
    stalled_at: float | None = None  # its last sign of life
    synced_step: int | None = None  # the last one on the Hub, by the word of attempt `synced_epoch`, as what follows
    synced_repo: str = ""
    synced_revision: str = ""
    synced_at: float | None = None
    synced_epoch: int = 0
    sync_error: str = ""  # why the last sync failed; empty once one worked
    volume_lost_at: float | None = None  # by the word of the newest attempt's agent; None: it has it
    restored_at: float | None = None  # the books were, and no agent has told since what is on the volume


class Cause(StrEnum):
    """What happened to a run."""

    GRANTED = "granted"
    STARTED = "started"
    DRAIN_ASKED = "drain asked"
    DRAIN_REFUSED = "drain refused"
    CANCEL_ASKED = "cancel asked"
    CANCEL_REFUSED = "cancel refused"
    HELD = "held"  # lost or preempted again and again without getting further
    CALLED_OFF = "called off"  # cancelled while nobody trained it
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    SUPERSEDED = "superseded"
    CRASHED = "crashed"  # and is tried again
    EXPIRED = "expired"
    REVIVED = "revived"
    FORCED = "forced"
    REQUEUED = "requeued"


class Rule(NamedTuple):
    """From one of `before`, by way of `through` (said in the history, not stayed in), to `after`."""

    before: frozenset[RunStatus]
    after: RunStatus
    through: RunStatus | None = None


_QUEUED = frozenset({RunStatus.QUEUED})

RULES: dict[Cause, Rule] = {
    Cause.GRANTED: Rule(_QUEUED, RunStatus.LEASED),
    # A second `started` in one epoch is a trainer started again; in `draining` it changes nothing.
    Cause.STARTED: Rule(frozenset({RunStatus.LEASED, RunStatus.RUNNING}), RunStatus.RUNNING),
    Cause.DRAIN_ASKED: Rule(frozenset({RunStatus.LEASED, RunStatus.RUNNING}), RunStatus.DRAINING),
    Cause.DRAIN_REFUSED: Rule(frozenset({RunStatus.DRAINING}), RunStatus.RUNNING),
    Cause.CANCEL_ASKED: Rule(ACTIVE, RunStatus.DRAINING),
    Cause.CANCEL_REFUSED: Rule(frozenset({RunStatus.DRAINING}), RunStatus.RUNNING),
    Cause.HELD: Rule(_QUEUED, RunStatus.FAILED),
    Cause.CALLED_OFF: Rule(_QUEUED, RunStatus.CANCELLED),
    Cause.COMPLETED: Rule(ACTIVE, RunStatus.COMPLETED),
    Cause.FAILED: Rule(ACTIVE, RunStatus.FAILED),
    Cause.CANCELLED: Rule(ACTIVE, RunStatus.CANCELLED),
    Cause.PREEMPTED: Rule(ACTIVE, RunStatus.QUEUED, RunStatus.PREEMPTED),
    Cause.DRAINED: Rule(ACTIVE, RunStatus.QUEUED),
    Cause.SUPERSEDED: Rule(ACTIVE, RunStatus.QUEUED),
    Cause.CRASHED: Rule(ACTIVE, RunStatus.QUEUED),
    Cause.EXPIRED: Rule(ACTIVE, RunStatus.QUEUED, RunStatus.LOST),
    Cause.REVIVED: Rule(_QUEUED, RunStatus.RUNNING),
    Cause.FORCED: Rule(ACTIVE | _QUEUED, RunStatus.QUEUED),
    Cause.REQUEUED: Rule(ENDED, RunStatus.QUEUED),
}

CAUSE_OF: dict[Outcome, Cause] = {
    Outcome.COMPLETED: Cause.COMPLETED,
    Outcome.FAILED: Cause.FAILED,
    Outcome.CANCELLED: Cause.CANCELLED,
    Outcome.PREEMPTED: Cause.PREEMPTED,
    Outcome.DRAINED: Cause.DRAINED,
    Outcome.SUPERSEDED: Cause.SUPERSEDED,
    Outcome.CRASHED: Cause.CRASHED,
    Outcome.LOST: Cause.EXPIRED,
}


def allowed(status: RunStatus, cause: Cause) -> bool:
    return status in RULES[cause].before


def change(run: Run, cause: Cause, at: float, message: str) -> Run:
    """The run after `cause`; ValueError where the table does not allow it (a defect, never an answer)."""
    rule = RULES[cause]
    if run.status not in rule.before:
        raise ValueError(f"run {run.run_id} is {run.status}: it cannot be {cause}")
    draining_since = at if rule.after is RunStatus.DRAINING else None
    return msgspec.structs.replace(
        run, status=rule.after, updated_at=at, message=message, draining_since=draining_since, stalled_in="",
        stalled_at=None, volume_lost_at=None if cause is Cause.GRANTED else run.volume_lost_at,
    )  # fmt: skip
