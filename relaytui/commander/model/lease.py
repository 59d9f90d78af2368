"""Leases as pure functions of (run, lease, now). No I/O: the store reads the rows, the services carry the answer out.

Deadlines are on the boot clock. Only the sweep expires a lease, so nobody is granted a run in the moment after the
commander slept, before its holder had its chance to renew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from relaytui.commander.model.run import Run
from relaytui.wire.status import Outcome

MAX_EPOCH_JUMP = 1_000_000
"""How far above our own epochs a volume's claims may lie; more is a damaged or hostile claim, not a lost database."""
RECONNECT_WINDOW = 90.0
"""Seconds that holders get at least after a restart or a long suspend of the commander, or L where that is less."""
MAX_GRACE = 4
"""Windows given to one lease without a renewal between: a crash loop keeps no dead holder alive for ever."""


class LeaseState(StrEnum):
    HELD = "held"
    REVOKED = "revoked"  # an operator forced the run; its holder may still be stopping
    EXPIRED = "expired"  # may be revived while nobody else was granted
    RELEASED = "released"


class Lease(Struct, frozen=True):
    """The newest lease of a run: one row of `leases`. `expires` is boot-clock seconds of boot `boot_id`."""

    run_id: str
    epoch: int
    token_hash: bytes
    worker: str
    incarnation: str
    request_id: str
    state: LeaseState
    length: float
    boot_id: str
    expires: float
    grace: float = 0.0  # seconds given by restarts since the last renewal
    started: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A new epoch. `supersedes`: the asker's own earlier attempt, ended by asking anew."""

    epoch: int
    supersedes: int | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """The answer to this request was lost: the same grant once more."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Deny:
    code: str
    reason: str
    retry_after: float
    final: bool = False


def decide_acquire(
    run: Run,
    lease: Lease | None,
    *,
    incarnation: str,
    request_id: str,
    mode: str | None,
    highest: int,
    now: float,
    floor: int = 0,
) -> Grant | Again | Deny:
    """`mode` None: whatever the run has (the original's workers do not say). `floor`: epochs are above it."""
    if run.status.ended:
        return ended(run)
    if mode is not None and mode != run.mode:
        return Deny("mode", f"run {run.run_id} is a {run.mode} run, not {mode}", 0.0, final=True)
    if highest > max(run.epoch, floor) + MAX_EPOCH_JUMP:
        return Deny("epoch", f"the volume claims epoch {highest}, the commander knows {run.epoch}", 0.0, final=True)
    highest = max(highest, floor)
    if lease is None or lease.state is LeaseState.RELEASED:
        return grant(run, highest)
    mine = lease.incarnation == incarnation
    if lease.state is LeaseState.REVOKED:
        return Deny("revoked", f"{lease.worker} (epoch {lease.epoch}) is still stopping", _retry(lease, now))
    if mine and lease.request_id == request_id and lease.epoch == run.epoch:
        return Again(lease.epoch)
    if mine or lease.state is LeaseState.EXPIRED:
        return grant(run, highest, lease)
    return Deny("held", f"{lease.worker} holds it (epoch {lease.epoch})", _retry(lease, now))


def ended(run: Run) -> Deny:
    again = f"`relay-tui requeue {run.run_id}` queues it again"
    return Deny("ended", f"run {run.run_id} is {run.status}: {again}", 0.0, final=True)


def grant(run: Run, highest: int, mine: Lease | None = None) -> Grant:
    """A new epoch above all that are known. `mine`: the asker's own lease, or one that ran out.

    One incarnation is one process: it asks anew only after it gave up what it held.
    """
    held = mine is not None and mine.state is LeaseState.HELD
    return Grant(max(run.epoch, highest) + 1, supersedes=mine.epoch if held and mine is not None else None)


def decide_register(
    run: Run | None, lease: Lease | None, epoch: int, mode: str, *, known: bool, floor: int = 0, proven: bool = False
) -> Refuse | None:
    """A holder of `epoch` whom these books do not know; `known`: they have that epoch. None: it may be entered.

    `proven`: its token says that it was granted. Where that was after all that these books know of the run, what they
    say of lower epochs is out of date: who holds one lost it since, and an end was not the last word.
    """
    highest = max(run.epoch if run is not None else 0, floor)
    if epoch < 1 or (epoch > highest + MAX_EPOCH_JUMP and not proven):
        return Refuse("not_holder", f"no commander can have granted epoch {epoch}, this one knows {highest}")
    if run is None:
        return None
    later = proven and epoch > run.epoch
    if known or (run.status.ended and not later):
        return Refuse("not_holder" if known else "released", f"run {run.run_id} is {run.status}")
    if mode != run.mode:
        return Refuse("not_holder", f"run {run.run_id} is a {run.mode} run, not {mode}")
    if epoch <= run.epoch:
        return Refuse("superseded", f"epoch {run.epoch} was granted since")
    if lease is not None and lease.state in (LeaseState.HELD, LeaseState.REVOKED) and not later:
        return Refuse("superseded", f"{lease.worker} holds it (epoch {lease.epoch})")
    return None


def _retry(lease: Lease, now: float) -> float:
    return min(5.0, max(lease.expires - now, 0.0) + 0.5)


@dataclass(frozen=True, slots=True)
class Refuse:
    code: str
    message: str


class Renewal(StrEnum):
    EXTEND = "extend"
    REVIVE = "revive"


def decide_renew(run: Run | None, lease: Lease | None, epoch: int, *, known: bool, right: bool) -> Renewal | Refuse:
    """`known`: such an attempt exists; `right`: the token is that attempt's."""
    if run is None or (not known and epoch >= run.epoch):
        return Refuse("unknown", "no such lease here")
    if not known:
        return Refuse("superseded", f"epoch {run.epoch} took over")
    if not right:
        return Refuse("not_holder", "this token does not hold the lease")
    if epoch < run.epoch:
        return Refuse("superseded", f"epoch {run.epoch} took over")
    if lease is None or lease.epoch != epoch or lease.state is LeaseState.RELEASED or run.status.ended:
        return Refuse("released", "the lease was released")
    if lease.state is LeaseState.EXPIRED:
        return Renewal.REVIVE
    return Renewal.EXTEND


def after_restart(lease: Lease, *, now: float, boot_id: str, gap: float = math.inf) -> tuple[float, float]:
    """(expires, grace) of a lease that nobody could renew for `gap` seconds until now (a restart: nobody knows).

    Never shorter than it was; the gap is given back, up to the reconnect window from now, but not for ever. Another
    boot's clock says nothing here, so the holder gets its full length.
    """
    window = min(lease.length, RECONNECT_WINDOW)
    if lease.boot_id != boot_id:
        if lease.grace >= MAX_GRACE * lease.length:
            return now, lease.grace
        return now + lease.length, lease.grace + lease.length
    live = max(lease.expires, now)
    given = min(live + gap, now + window) - live
    if given <= 0:
        return lease.expires, lease.grace
    given = min(given, max(MAX_GRACE * window - lease.grace, 0.0))
    return live + given if given else lease.expires, lease.grace + given


def outcome_when_silent(state: LeaseState) -> Outcome:
    """How an attempt ended whose lease ran out without a word."""
    return Outcome.SUPERSEDED if state is LeaseState.REVOKED else Outcome.LOST
