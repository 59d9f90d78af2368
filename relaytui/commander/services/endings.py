"""How attempts end and leases come back: shared by reports, force, sweep and acquire. Runs inside transactions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from relaytui.commander.model.lease import Lease, LeaseState, outcome_when_silent
from relaytui.commander.model.orders import LASTING, ORDERS
from relaytui.commander.model.records import Attempt
from relaytui.commander.model.run import CAUSE_OF, RULES, Cause, Run, change
from relaytui.commander.services import resumes
from relaytui.commander.store import attempts, history, runs
from relaytui.commander.store.writer import Tx
from relaytui.wire.status import OrderKind, Outcome, RunStatus
from relaytui.wire.text import in_none

COMMANDER = "commander"
Told = tuple[int, int]
"""Epoch of an attempt, and the last step that it told of."""


def end_attempt(
    tx: Tx,
    attempt: Attempt,
    outcome: Outcome,
    at: float,
    message: str,
    *,
    exit_code: int | None = None,
    step: int = 0,
    ending: str = "",
) -> Attempt:
    """Closes the attempt's record, with the alarm that there was, and the orders open for it."""
    attempts.close_orders(tx, attempt.run_id, attempt.epoch, at)
    return attempts.save(
        tx,
        replace(
            attempt,
            ended_at=at,
            outcome=outcome,
            message=resumes.with_alarm(attempt, message),
            exit_code=exit_code,
            last_step=max(attempt.last_step, step),
            said_step=step or attempt.said_step,
            ending=ending,
        ),
    )


def end_run(
    tx: Tx,
    run: Run,
    lease: Lease,
    attempt: Attempt,
    outcome: Outcome,
    at: float,
    message: str,
    *,
    actor: str,
    exit_code: int | None = None,
    step: int = 0,
    ending: str = "",
    state: LeaseState = LeaseState.RELEASED,
    ended_at: float | None = None,
) -> Run:
    """The attempt that holds the run is over: run, lease, attempt and history say so together. `ended_at`: when it
    ended, where that is heard of only now.

    However it ended, a run that was cancelled meanwhile is not queued again; only reaching its last step is more.
    """
    cause, message = CAUSE_OF[outcome], resumes.with_alarm(attempt, message)
    called_off = attempts.in_force(tx, run.run_id, attempt.epoch, OrderKind.CANCEL)
    if called_off is not None and cause not in (Cause.COMPLETED, Cause.CANCELLED):
        cause, message = Cause.CANCELLED, f"cancelled by {called_off.by}; its last attempt: {message or outcome}"
    rule = RULES[cause]
    if rule.after.ended:
        state = LeaseState.RELEASED  # nobody comes back to an ended run
    ended_at = at if ended_at is None else ended_at
    end_attempt(tx, attempt, outcome, ended_at, message, exit_code=exit_code, step=step, ending=ending)
    runs.save_lease(tx, replace(lease, state=state))
    seen = rule.through or (rule.after if rule.after.ended else None)
    said = message or str(outcome)
    plain = seen is None or rule.through is None or ending == "not_started"  # its pod was not taken away
    text = said if plain else f"{seen}: {said}"
    run = runs.save(tx, change(run, cause, at, text))
    data = {"outcome": str(outcome), "worker": attempt.worker}
    if exit_code is not None:
        data["exit_code"] = str(exit_code)
    if ending:
        data["ending"] = ending
    history.add_event(tx, ended_at, f"run.{seen or outcome}", actor, said, run.run_id, attempt.epoch, data)
    return run


def after_crash(tx: Tx, run: Run, epoch: int) -> str:
    """For the message of a run that is tried again: which attempt that is, and why the one before `epoch` ended."""
    before = next((one for one in attempts.latest(tx, run.run_id, 2) if one.epoch < epoch), None)
    if before is None or before.outcome is not Outcome.CRASHED:
        return ""
    return f"; attempt {run.attempts}, as the one before ended: {before.message}"[:600]


def call_off(tx: Tx, run: Run, by: str, at: float, why: str = "") -> Run:
    """A run that nobody trains is cancelled at once. A holder that was silent and comes back finds it over; so does
    one that books which were restored do not know, as the floor of epochs is above whatever it was granted."""
    lease = runs.get_lease(tx, run.run_id)
    if lease is not None and lease.state is LeaseState.EXPIRED:
        runs.save_lease(tx, replace(lease, state=LeaseState.RELEASED))
    called_off = change(run, Cause.CALLED_OFF, at, f"cancelled by {by}")
    run = runs.save(tx, replace(called_off, epoch=max(run.epoch, history.epoch_floor(tx))))
    history.add_event(tx, at, "run.cancelled", by, why or run.message, run.run_id, run.epoch)
    return run


def hold(tx: Tx, run: Run, tries: Sequence[Attempt], at: float) -> Run:
    """A run that gets no further costs nobody another try until an operator queues it again."""
    lease = runs.get_lease(tx, run.run_id)
    if lease is not None and lease.state is LeaseState.EXPIRED:
        runs.save_lease(tx, replace(lease, state=LeaseState.RELEASED))
    hours = sum((each.ended_at or at) - each.granted_at for each in tries) / 3600
    message = f"held: {len(tries)} attempts in a row without a new checkpoint or a further step, {hours:.1f} h in all"
    run = runs.save(tx, change(run, Cause.HELD, at, message))
    data = {"attempts": str(len(tries)), "hours": f"{hours:.2f}", "last": tries[0].message[:200]}
    history.add_event(tx, at, "run.held", COMMANDER, message, run.run_id, run.epoch, data)
    return run


def vanished(run: Run, attempt: Attempt, told: Told | None, message: str) -> str:
    """`message`, why an attempt ended of which nothing is heard any more, and which steps that may have cost."""
    reached = told[1] if told is not None and told[0] == attempt.epoch else attempt.said_step
    lost = in_none(reached or 0, run.newest_step)
    return f"{message}; {lost}, unless it saved them" if lost else message


def expire(tx: Tx, lease: Lease, at: float, told: Told | None = None) -> None:
    """Its holder was silent for as long as it had; where it was forced, that is what the next one waited for. `told`:
    the last step of the run that was heard of."""
    run, attempt = runs.get(tx, lease.run_id), attempts.get(tx, lease.run_id, lease.epoch)
    assert run is not None
    assert attempt is not None
    outcome = outcome_when_silent(lease.state)
    if lease.state is not LeaseState.REVOKED:
        message = vanished(run, attempt, told, f"{lease.worker} was silent for {lease.length:g} s")
        end_run(tx, run, lease, attempt, outcome, at, message, actor=COMMANDER, state=LeaseState.EXPIRED)
        return
    message = vanished(run, attempt, told, "the forced lease ran out without a word of its holder")
    end_attempt(tx, attempt, outcome, at, message)
    runs.save_lease(tx, replace(lease, state=LeaseState.RELEASED))
    if run.status is RunStatus.QUEUED:
        runs.save(tx, replace(run, updated_at=at, message="free: the old holder's time ran out"))
    history.add_event(tx, at, "lease.expired", COMMANDER, message, run.run_id, lease.epoch)


def revive(tx: Tx, run: Run, lease: Lease, attempt: Attempt, at: float, expires: float, boot_id: str) -> Run:
    """An expired lease that nobody else took goes back to its holder, in the same epoch."""
    lease = replace(lease, state=LeaseState.HELD, expires=expires, boot_id=boot_id, grace=0.0)
    run = change(run, Cause.REVIVED, at, f"{lease.worker} is back")
    if lease.started:
        run = change(run, Cause.STARTED, at, run.message)
    attempts.reopen_orders(tx, run.run_id, lease.epoch)
    for kind in LASTING:
        order = attempts.in_force(tx, run.run_id, lease.epoch, kind)
        asked = ORDERS[kind].asked
        if order is not None and asked is not None:
            run = change(run, asked, at, f"{asked} by {order.by}")
    runs.save(tx, run)
    runs.save_lease(tx, lease)
    attempts.save(tx, replace(attempt, ended_at=None, outcome=None, exit_code=None, message="", ending=""))
    history.add_event(
        tx, at, "lease.revived", lease.worker, "came back before anybody else took the run", run.run_id, lease.epoch
    )
    return run
