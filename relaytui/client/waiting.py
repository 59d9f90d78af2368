"""What the start of a run waits for, as far as its commander knows: the same in the dashboard and in the shell."""

from __future__ import annotations

from collections.abc import Iterable

from relaytui.client.words import duration, held_off, sentence
from relaytui.wire.rows import ORIGINAL, EventRow, RunRow, WorkerRow
from relaytui.wire.status import RunStatus, WorkerStatus
from relaytui.wire.text import clean, counted

NAMED = 3
"""Agents that are told by their names; of more, how many they are."""


def waits(
    run: RunRow,
    workers: Iterable[WorkerRow],
    events: Iterable[EventRow],
    now: float,
    no_grants_until: float | None = None,
) -> str:
    """A sentence; empty where nothing waits. `events`: newest first."""
    if run.status.ended:
        return ""
    if run.status is RunStatus.LEASED:
        doing = _told(run, events) or "it looks through its volume for what to go on from"
        return f"{_holder(run)} prepares the trainer's start, {duration(now - run.updated_at)} so far: {doing}"
    here = list(workers)
    asked = sorted(row.worker for row in here if row.waiting_for == run.run_id)
    if run.status.active:
        if not asked:
            return ""
        if run.silent_since is not None and run.lease_expires_at is not None:
            return f"{_names(asked)}: free in {duration(run.lease_expires_at - now)}, unless {_holder(run)} comes back"
        return f"{_names(asked)} until {_holder(run)} lets go of it"
    if run.holder is not None:  # it lost the run, and may be training
        left = run.lease_expires_at
        at_last = "" if left is None else f", in {duration(left - now)} at the latest"
        return f"{_names(asked) or 'the next agent waits'} until {_holder(run)}'s trainer is dead{at_last}"
    if asked:
        return f"{_names(asked)}: {held_off(no_grants_until, now) or 'it is granted in seconds, when one asks again'}"
    still = sum(map(not_asked, here))
    beside = f"; {counted(still, 'agent has', 'agents have')} asked for none yet" if still else ""
    return f"no agent that is here has asked for it{beside}"


def not_asked(row: WorkerRow) -> bool:
    """Whether it is here and has asked for no run yet: before that an agent looks at its volume, and where nothing is
    claimed there it asks the Hub."""
    return (
        row.status is WorkerStatus.IDLE and row.version != ORIGINAL and row.run_id is None and row.waiting_for is None
    )


def _told(run: RunRow, events: Iterable[EventRow]) -> str:
    """The newest word of its holder in this attempt."""
    for event in events:
        if event.run_id == run.run_id and event.epoch == run.epoch and event.actor == run.holder:
            return "" if event.kind == "lease.granted" else sentence(event)
    return ""


def _names(workers: list[str]) -> str:
    if not workers:
        return ""
    named = ", ".join(clean(name, 128) for name in workers) if len(workers) <= NAMED else f"{len(workers)} agents"
    return f"{named} {'waits' if len(workers) == 1 else 'wait'}"


def _holder(run: RunRow) -> str:
    return clean(run.holder or "its holder", 128)
