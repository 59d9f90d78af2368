"""Leases: acquire, renew, the sweep, and what a restart does. The rules are in the model; here they are carried out."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec.structs import replace

from relaytui.commander.model.lease import (
    Again,
    Deny,
    Lease,
    LeaseState,
    Refuse,
    Renewal,
    after_restart,
    decide_acquire,
    decide_register,
    decide_renew,
    ended,
    grant,
)
from relaytui.commander.model.records import Attempt, is_stuck
from relaytui.commander.model.run import Cause, Run, change
from relaytui.commander.services import endings
from relaytui.commander.services.board import Board
from relaytui.commander.services.tokens import SALT, LeaseTokens
from relaytui.commander.store import attempts, checkpoints, history, runs
from relaytui.commander.store.writer import Done, Gather, Tx, Writer
from relaytui.wire.clock import Clock
from relaytui.wire.messages import CheckpointRef
from relaytui.wire.proof import token_hash
from relaytui.wire.status import OrderKind, Outcome, RunStatus
from relaytui.wire.text import counted

HOLD_OFF = "hold_off"
"""Key of `meta`, with a value while a restored state waits for its holders."""
SAID_FROM = 5.0
"""Seconds that nobody could renew from which on the history says so, where no lease was at its end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for a run. `mode` None: whatever the run has, `sft` for a new one."""

    run_id: str
    worker: str
    incarnation: str
    request_id: str
    mode: str | None
    highest_epoch: int = 0
    config_hash: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    epoch: int
    token: str
    length: float
    newest: CheckpointRef | None


@dataclass(frozen=True, slots=True)
class Extended:
    length: float


class Leases:
    def __init__(
        self,
        writer: Writer,
        board: Board,
        clock: Clock,
        state_key: bytes,
        length: float,
        max_runs: int = 10_000,
        max_no_progress: int = 5,
    ) -> None:
        self._writer = writer
        self._max_runs = max_runs
        self._max_no_progress = max_no_progress
        self._board = board
        self._clock = clock
        self._tokens = LeaseTokens(state_key)
        self.boot_id = clock.boot_id()
        self.length = length
        self.interval = min(1.0, length / 20)
        """Seconds between two sweeps."""
        self.tolerance = 2 * self.interval
        """How late a sweep may come. A holder that lives renews every L/10: none is ever that near its end."""
        self._well = clock.boot()
        """When the commander was last seen awake and its disk taking what it was given."""
        self._refusals = 0
        self._sweeping = asyncio.Lock()  # two at a time would give the same time back twice
        # One object, so that renewals that wait are known as alike.
        self._renewals: Gather[runs.Claim, Extended | Refuse] = self._renew_in
        self._takes_unproven = False
        """Whether there may be leases that this key cannot prove."""
        self._held_off_until: float | None = None
        """After a restore, on the boot clock: until then nobody is granted what others may hold."""

    # -- acquire -------------------------------------------------------------------------------------------------

    async def acquire(self, ask: Ask) -> Given | Deny:
        return await self._writer.run(lambda tx: self.acquire_in(tx, ask))

    def acquire_in(self, tx: Tx, ask: Ask) -> Given | Deny:
        at, now = self._clock.wall(), self._clock.boot()
        run = runs.get(tx, ask.run_id)
        created = run is None
        if run is None:
            if runs.count(tx) >= self._max_runs:
                reason = f"the commander knows {self._max_runs} runs and takes in no more (RELAY_MAX_RUNS)"
                return Deny("full", reason, 0.0, final=True)
            run = Run(ask.run_id, ask.mode or "sft", RunStatus.QUEUED, 0, at, at)
        lease = runs.get_lease(tx, ask.run_id)
        decision = decide_acquire(
            run, lease, incarnation=ask.incarnation, request_id=ask.request_id, mode=ask.mode,
            highest=ask.highest_epoch, now=now, floor=history.epoch_floor(tx),
        )  # fmt: skip
        if isinstance(decision, Deny):
            return decision
        if isinstance(decision, Again):
            assert lease is not None
            given = self._again(tx, run, lease, at, now)
            if given is not None:
                return given
            decision = grant(run, max(ask.highest_epoch, history.epoch_floor(tx)), lease)
        if self._held_off_until is not None and now < self._held_off_until:
            left = self._held_off_until - now
            why = f"the state was restored: whoever held a run before has {left:.0f} s to come back"
            return Deny("recovering", why, min(5.0, left + 0.5))
        if lease is not None and lease.state is LeaseState.EXPIRED:
            called_off = attempts.in_force(tx, run.run_id, lease.epoch, OrderKind.CANCEL)
            if called_off is not None:  # of books that were restored: its last holder was to be the last
                return ended(endings.call_off(tx, run, called_off.by, at))
        if self._max_no_progress and run.attempts >= self._max_no_progress and run.status is RunStatus.QUEUED:
            tries = attempts.latest(tx, run.run_id, self._max_no_progress)
            if len(tries) == self._max_no_progress and is_stuck(tries):
                return ended(endings.hold(tx, run, tries, at))
        if decision.supersedes is not None:
            assert lease is not None
            run = self._supersede(tx, run, lease, at, lease.worker, f"{lease.worker} asked anew")
            if run.status.ended:
                return ended(run)
        if created:
            # Before the attempt and the event: both refer to it.
            runs.save(tx, run)
            history.add_event(tx, at, "run.created", ask.worker, f"a new {run.mode} run", run.run_id)
        return self._grant(tx, run, ask, decision.epoch, at, now)

    def _grant(self, tx: Tx, run: Run, ask: Ask, epoch: int, at: float, now: float) -> Given:
        salt = secrets.token_bytes(SALT)
        token = self._tokens.make(salt, run.run_id, epoch)
        hashed = token_hash(token)
        if (run.attempts + 1) % attempts.TRIM_EVERY == 0:
            attempts.trim(tx, run.run_id)
        # The step shown stays what the run reached until this attempt says where it starts.
        attempts.save(
            tx,
            Attempt(
                run.run_id, epoch, ask.worker, ask.incarnation, ask.request_id, hashed, salt, at,
                config_hash=ask.config_hash,
            ),
        )  # fmt: skip
        changed = change(run, Cause.GRANTED, at, f"granted to {ask.worker}")
        changed = replace(changed, epoch=epoch, attempts=run.attempts + 1)
        changed = replace(changed, message=changed.message + endings.after_crash(tx, changed, epoch))
        runs.save(tx, changed)
        lease = Lease(
            run.run_id, epoch, hashed, ask.worker, ask.incarnation, ask.request_id, LeaseState.HELD, self.length,
            self.boot_id, now + self.length,
        )  # fmt: skip
        runs.save_lease(tx, lease)
        newest = checkpoints.reference(tx, run.run_id)
        message = f"granted for {self.length:g} s" + (f", newest checkpoint {newest.name}" if newest else "")
        history.add_event(tx, at, "lease.granted", ask.worker, message, run.run_id, epoch)
        return Given(epoch, token, self.length, newest)

    def _again(self, tx: Tx, run: Run, lease: Lease, at: float, now: float) -> Given | None:
        """The same grant once more; None where its token cannot be made again, as the state key is another one."""
        attempt = attempts.get(tx, run.run_id, lease.epoch)
        assert attempt is not None
        token = self._tokens.make(attempt.salt, run.run_id, lease.epoch)
        if not hmac.compare_digest(token_hash(token), lease.token_hash):
            return None
        expires = now + lease.length
        if lease.state is LeaseState.EXPIRED:
            endings.revive(tx, run, lease, attempt, at, expires, self.boot_id)
        else:
            runs.extend(tx, run.run_id, lease.epoch, lease.token_hash, self.boot_id, expires)
        newest = checkpoints.reference(tx, run.run_id)
        return Given(lease.epoch, token, lease.length, newest)

    def _supersede(self, tx: Tx, run: Run, lease: Lease, at: float, by: str, why: str) -> Run:
        """Ended where its holder was told to cancel: with that lease the run was to end."""
        attempt = attempts.get(tx, run.run_id, lease.epoch)
        assert attempt is not None
        if lease.state is LeaseState.HELD:
            return endings.end_run(tx, run, lease, attempt, Outcome.SUPERSEDED, at, why, actor=by)
        endings.end_attempt(tx, attempt, Outcome.SUPERSEDED, at, why)
        return run

    # -- renew ---------------------------------------------------------------------------------------------------

    def renew(
        self,
        run_id: str,
        epoch: int,
        token: str,
        done: Done,
    ) -> None:
        """`done(Extended | Refuse)` is called after the commit; all ordinary renewals that wait are one statement."""
        self._writer.submit_to(self._renewals, (run_id, epoch, token_hash(token)), done, first=True)

    def _renew_in(self, tx: Tx, claims: list[runs.Claim]) -> list[Extended | Refuse | BaseException]:
        expires = self._clock.boot() + self.length
        renewed = runs.extend_many(tx, claims, self.boot_id, expires)
        plain = Extended(self.length)
        return [plain if claim in renewed else self._renew_closely(tx, *claim, expires) for claim in claims]

    def _renew_closely(self, tx: Tx, run_id: str, epoch: int, hashed: bytes, expires: float) -> Extended | Refuse:
        """What is no ordinary renewal: a lease to revive, or an answer why not."""
        run = runs.get(tx, run_id)
        lease = runs.get_lease(tx, run_id)
        attempt = attempts.get(tx, run_id, epoch)
        right = attempt is not None and hmac.compare_digest(attempt.token_hash, hashed)
        decision = decide_renew(run, lease, epoch, known=attempt is not None, right=right)
        if isinstance(decision, Refuse):
            return decision
        if decision is Renewal.REVIVE:
            assert run is not None
            assert lease is not None
            assert attempt is not None
            endings.revive(tx, run, lease, attempt, self._clock.wall(), expires, self.boot_id)
        else:  # registered once more: it counts on this as on any other answer
            runs.extend(tx, run_id, epoch, hashed, self.boot_id, expires)
        return Extended(self.length)

    def revive_in(self, tx: Tx, run: Run, lease: Lease, attempt: Attempt) -> Run:
        """For a holder that comes back with reports before it renews."""
        expires = self._clock.boot() + self.length
        return endings.revive(tx, run, lease, attempt, self._clock.wall(), expires, self.boot_id)

    # -- register ------------------------------------------------------------------------------------------------

    async def register(self, ask: Ask, token: str) -> Extended | Refuse:
        """A holder of epoch `ask.highest_epoch` that these books do not know is entered as it is.

        With a token that this key made it was granted after whatever they know, and comes before any lower epoch.
        """
        salt = self._tokens.salt_of(token, ask.run_id, ask.highest_epoch)
        return await self._writer.run(lambda tx: self._register_in(tx, ask, token_hash(token), salt))

    def _register_in(self, tx: Tx, ask: Ask, hashed: bytes, salt: bytes | None) -> Extended | Refuse:
        at, expires, epoch = self._clock.wall(), self._clock.boot() + self.length, ask.highest_epoch
        run, lease, attempt = (
            runs.get(tx, ask.run_id),
            runs.get_lease(tx, ask.run_id),
            attempts.get(tx, ask.run_id, epoch),
        )
        if attempt is not None and hmac.compare_digest(attempt.token_hash, hashed):
            return self._renew_closely(tx, ask.run_id, epoch, hashed, expires)
        mode = ask.mode or "sft"
        floor = history.epoch_floor(tx)
        refused = decide_register(
            run, lease, epoch, mode, known=attempt is not None, floor=floor, proven=salt is not None
        )
        if refused is not None:
            return refused
        if attempts.by_token(tx, hashed) is not None:
            return Refuse("not_holder", "this token is another lease's")
        if salt is None:
            if self._held_off_until is not None and self._clock.boot() < self._held_off_until:
                return Refuse("recovering", "the state was restored: whoever can prove a lease comes first")
            if not self._takes_unproven:
                return Refuse("unknown", f"the key of this commander granted nobody epoch {epoch} with that token")
        if run is None:
            if runs.count(tx) >= self._max_runs:
                return Refuse("unknown", f"the commander knows {self._max_runs} runs and takes in no more")
            run = Run(ask.run_id, mode, RunStatus.QUEUED, 0, at, at)
            runs.save(tx, run)
        message = f"{ask.worker} was granted it before the books were lost: entered with epoch {epoch}"
        if lease is not None and lease.state in (LeaseState.HELD, LeaseState.REVOKED):
            why = f"{ask.worker} holds epoch {epoch}, granted after epoch {lease.epoch}"
            before, run = run, self._supersede(tx, run, lease, at, ask.worker, why)
            if run.status.ended and not before.status.ended:
                return Refuse("released", run.message)
            message += f", in place of {lease.worker} with epoch {lease.epoch}"
        if lease is not None and lease.state is LeaseState.EXPIRED and run.status is RunStatus.QUEUED:
            called_off = attempts.in_force(tx, run.run_id, lease.epoch, OrderKind.CANCEL)
            if called_off is not None:
                return Refuse("released", endings.call_off(tx, run, called_off.by, at).message)
        if run.status.ended:  # at a lower epoch: it was queued again since
            run = change(run, Cause.REQUEUED, at, message)
        attempts.save(
            tx,
            Attempt(
                ask.run_id, epoch, ask.worker, ask.incarnation, ask.request_id, hashed, salt or b"", at,
                config_hash=ask.config_hash,
            ),
        )  # fmt: skip
        granted = change(run, Cause.GRANTED, at, message)
        doubted = history.restored_at(tx)  # whatever another attempt told of its volume
        runs.save(tx, replace(granted, epoch=epoch, attempts=run.attempts + 1, restored_at=doubted))
        runs.save_lease(
            tx,
            Lease(
                ask.run_id, epoch, hashed, ask.worker, ask.incarnation, ask.request_id, LeaseState.HELD, self.length,
                self.boot_id, expires,
            ),
        )  # fmt: skip
        history.add_event(tx, at, "lease.registered", ask.worker, message, ask.run_id, epoch)
        return Extended(self.length)

    # -- time ----------------------------------------------------------------------------------------------------

    def load_in(self, tx: Tx, *, unproven: bool = False) -> None:
        """`unproven`: leases that this key cannot prove may be registered, as it is new.

        After a restore nobody is granted a run before those who may hold it had a lease's time to come back."""
        self._takes_unproven = unproven
        if history.meta(tx, HOLD_OFF):
            self._held_off_until = self._clock.boot() + max([self.length, *(x.length for x in runs.all_leases(tx))])

    def no_grants_until(self, wall: float) -> float | None:
        """As `wall` goes, until when nobody is granted a run because the state was restored; None: no longer."""
        until, now = self._held_off_until, self._clock.boot()
        return wall + until - now if until is not None and now < until else None

    def has_run_out(self, lease: Lease) -> bool:
        """By the clock, where the commander was awake to be renewed; the sweep sees to it before it ends one."""
        now = self._clock.boot()
        return lease.expires <= (now if now - self._well <= self.tolerance else self._well)

    async def recover(self, why: str, gap: float = math.inf) -> None:
        """Nobody could renew for `gap` seconds (a restart: nobody knows how long): holders get that time back."""
        now, refusals = self._clock.boot(), self._writer.refusals
        await self._writer.run(lambda tx: self._recover_in(tx, why, gap))
        self._well, self._refusals = now, refusals
        if self._held_off_until is not None and self._held_off_until < now + min(gap, self.length):
            self._held_off_until = now + min(gap, self.length)

    def _recover_in(self, tx: Tx, why: str, gap: float = math.inf) -> None:
        now = self._clock.boot()
        extended = 0
        notable = gap >= SAID_FROM
        for lease in runs.live_leases(tx):
            expires, grace = after_restart(lease, now=now, boot_id=self.boot_id, gap=gap)
            if (expires, grace, self.boot_id) != (lease.expires, lease.grace, lease.boot_id):
                runs.save_lease(tx, replace(lease, expires=expires, grace=grace, boot_id=self.boot_id))
                extended += 1
                notable = notable or lease.expires <= now
        if extended and notable:
            message = f"{why}: {counted(extended, 'lease')} extended so that holders can come back"
            history.add_event(tx, self._clock.wall(), "commander.recovered", endings.COMMANDER, message)

    async def sweep(self) -> None:
        """Expires what ran out. Called every `interval`.

        Time in which nobody could renew (a tick that comes late: suspend, SIGSTOP, a stalled loop; a disk that did not
        take something since the last tick) is given back before anything expires.
        """
        async with self._sweeping:
            await self._sweep()

    async def _sweep(self) -> None:
        now = self._clock.boot()
        gap = now - self._well
        if self._writer.refusals != self._refusals:
            await self.recover(f"the disk took nothing for {gap:.1f} s", gap)
        elif gap > self.tolerance:
            await self.recover(f"no sweep for {gap:.1f} s", gap)
        self._well = now
        if self._held_off_until is not None and self._held_off_until <= now:
            await self._writer.run(lambda tx: history.set_meta(tx, HOLD_OFF, ""))
            self._held_off_until = None
        soonest = self._board.soonest_expiry()
        if soonest is not None and soonest <= now:
            # By the time of deciding: while this waits for the disk, so do renewals.
            told = {run_id: view.told_step for run_id, view in self._board.runs.items() if view.expires <= now}
            await self._writer.run(lambda tx: self._sweep_in(tx, now, told))

    def _sweep_in(
        self, tx: Tx, now: float | None = None, told: Mapping[str, endings.Told | None] = MappingProxyType({})
    ) -> None:
        at = self._clock.wall()
        for lease in runs.due_leases(tx, self._clock.boot() if now is None else now):
            endings.expire(tx, lease, at, told.get(lease.run_id))
