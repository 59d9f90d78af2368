"""The original commander's calls, carried out by the same leases, reports and orders."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
import secrets
from typing import Any, NoReturn

from msgspec.structs import replace

from relaytui.commander.model.lease import Deny, Lease, LeaseState, ended
from relaytui.commander.model.records import ORIGINALS, Attempt
from relaytui.commander.services import syncs
from relaytui.commander.services.core import Core
from relaytui.commander.services.leases import Ask, Given
from relaytui.commander.services.orders import conflict
from relaytui.commander.store import attempts, checkpoints, history, runs
from relaytui.commander.store.writer import Tx
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import is_id
from relaytui.wire.original import AcquireAnswer, AcquireBody, RenewBody, ReportBody
from relaytui.wire.proof import token_hash
from relaytui.wire.reports import Ended, Started
from relaytui.wire.rows import CheckpointRow
from relaytui.wire.status import Outcome, RunStatus
from relaytui.wire.text import clean

ENDS = {"PREEMPTED": Outcome.PREEMPTED, "FAILED": Outcome.FAILED, "COMPLETED": Outcome.COMPLETED}
DRY_RUN = "dry-run"
"""Begins the revision of a sync that sent nothing."""
_STEP = re.compile(r"(\d{1,15})")
_SYNCED = re.compile(r"(?:step|ckpt|checkpoint)[_-]?(\d{1,15})\b")
"""What names a checkpoint, and not the time of day."""


def incarnation_of(worker: str) -> str:
    """These workers have no incarnation: one row a name, told apart from agents by its prefix."""
    return ORIGINALS + hashlib.sha256(worker.encode()).hexdigest()[:16]


def not_holder(message: str, hint: str) -> RelayError:
    return RelayError("not_holder", message, hint, status=403)


class Original:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def acquire(self, body: AcquireBody) -> AcquireAnswer:
        core = self._core
        incarnation = incarnation_of(body.worker_id)
        gpu, gpus = _capability(body.cap)
        # Every call is a holder of its own: a worker's name is a label, and two pods may carry the same.
        ask = Ask(body.run_id, body.worker_id, incarnation, f"{ORIGINALS}{secrets.token_hex(8)}", None)

        told = core.board.told(body.run_id)

        def unit(tx: Tx) -> Given | Deny:
            run = runs.get(tx, body.run_id)
            lease = runs.get_lease(tx, body.run_id)
            if lease is not None and lease.state is LeaseState.HELD and not body.force:
                return Deny("held", "active lease exists", 5.0)
            if body.force and lease is not None and self._is_an_agents(lease):
                # A worker's word; to take a run from an agent, whose trainer may go on, is the operator's.
                how = f"`relay-tui force-acquire {body.run_id}` takes it over"
                return Deny("held", f"the agent of {lease.worker} has its lease: {how}", 5.0)
            if run is not None and run.status is RunStatus.CANCELLED:
                return ended(run)  # an operator said that it is over
            before = tx.mark()
            if run is not None and run.status.ended:
                # The original granted an ended run to whoever asked; its workers ask for ever, on a pod that bills.
                core.orders.requeue_in(tx, run, body.worker_id, "acquired again")
            elif body.force and run is not None:
                core.orders.force_in(tx, run, body.worker_id, "force=true in its acquire", pod_gone=True, told=told)
            asked = dataclasses.replace(ask, mode=body.mode) if run is None else ask
            given = core.leases.acquire_in(tx, asked)
            if isinstance(given, Given):
                core.workers.called(tx, incarnation, body.worker_id, gpu, gpus)
            elif body.force or (run is not None and run.status.ended):
                tx.undo(before)  # a denial takes nothing from anybody, and queues nothing
            return given

        given = await core.relay.run(unit)
        core.workers.touch(incarnation)
        if isinstance(given, Deny):
            return AcquireAnswer(status="denied", reason=given.reason)
        return AcquireAnswer(
            status="granted",
            lease_token=given.token,
            lease_expires_in_sec=int(given.length),
            config=core.config(body.run_id),
            epoch=given.epoch,
        )

    async def renew(self, body: RenewBody) -> dict[str, Any]:
        core = self._core
        hashed = token_hash(body.lease_token)

        def unit(tx: Tx) -> float:
            attempt, lease = self._held(tx, hashed)
            if attempt.worker != body.worker_id:
                raise not_holder("the lease is another worker's", "send the worker_id of acquire")
            self._extend(tx, lease)
            return lease.length

        length = await core.relay.run(unit)
        core.workers.touch(incarnation_of(body.worker_id))
        return {"ok": True, "lease_expires_in_sec": int(length)}

    async def report(self, body: ReportBody) -> dict[str, Any]:
        core = self._core
        hashed = token_hash(body.lease_token)

        def unit(tx: Tx) -> str:
            attempt, lease = self._held(tx, hashed)
            if attempt.run_id != body.run_id:
                raise not_holder(f"the lease is of run {attempt.run_id}", "report the run that was acquired")
            self._extend(tx, lease)
            self._apply(tx, attempt, lease, body)
            return attempt.incarnation

        core.workers.touch(await core.relay.run(unit))
        return {"ok": True}

    # -- inside transactions -------------------------------------------------------------------------------------

    def _is_an_agents(self, lease: Lease) -> bool:
        """Whether an agent holds it, or is still stopping, within its time."""
        live = lease.state in (LeaseState.HELD, LeaseState.REVOKED) and not self._core.leases.has_run_out(lease)
        return live and not lease.incarnation.startswith(ORIGINALS)

    def _held(self, tx: Tx, hashed: bytes) -> tuple[Attempt, Lease]:
        """The attempt of this token and its live lease; 409 where it is over, 403 where the token is nobody's."""
        attempt = attempts.by_token(tx, hashed)
        if attempt is None:
            if runs.any_held(tx):
                raise not_holder("this token holds no lease", "acquire again")
            raise conflict("no_lease", "there is no such lease", "acquire again")
        run = runs.get(tx, attempt.run_id)
        lease = runs.get_lease(tx, attempt.run_id)
        held = (
            run is not None
            and lease is not None
            and lease.state is LeaseState.HELD
            and lease.epoch == attempt.epoch == run.epoch
            and hmac.compare_digest(lease.token_hash, hashed)
        )
        # This worker cannot be told apart from a dead one that comes late, so an expired lease is not revived for it.
        if not held or lease is None or self._core.leases.has_run_out(lease):
            self._gone(attempt)
        return attempt, lease

    def _gone(self, attempt: Attempt) -> NoReturn:
        raise conflict("no_lease", f"the lease of epoch {attempt.epoch} expired or was released", "acquire again")

    def _extend(self, tx: Tx, lease: Lease) -> None:
        leases, now = self._core.leases, self._core.clock.boot()
        runs.extend(tx, lease.run_id, lease.epoch, lease.token_hash, leases.boot_id, now + lease.length)

    def _apply(self, tx: Tx, attempt: Attempt, lease: Lease, body: ReportBody) -> None:
        core = self._core
        at = core.clock.wall()
        run = runs.get(tx, attempt.run_id)
        assert run is not None
        if run.status is RunStatus.LEASED:
            core.reports.apply_in(tx, attempt, Started(t=at, step=body.step))
        elif body.step:
            attempt = attempts.save(tx, replace(attempt, last_step=body.step, said_step=body.step))
        if body.latest_ckpt:
            self._checkpoint(tx, attempt, body.latest_ckpt, at)
        if body.hf is not None and (body.hf.revision or body.hf.last_synced):
            self._hub(tx, attempt, body, at)
        outcome = ENDS.get(body.status)
        if outcome is not None:
            attempt = attempts.get(tx, attempt.run_id, attempt.epoch) or attempt
            core.reports.apply_in(
                tx, attempt, Ended(t=at, outcome=outcome, step=body.step, message=clean(body.msg or "", 1_024))
            )

    def _checkpoint(self, tx: Tx, attempt: Attempt, said: str, at: float) -> None:
        """`latest_ckpt` is a name or a path; only its last part names a checkpoint."""
        name = said.rstrip("/").rpartition("/")[2]
        if not is_id(name):
            return
        run = runs.get(tx, attempt.run_id)
        assert run is not None
        known = checkpoints.get(tx, run.run_id, name)
        if run.newest_checkpoint == name or (known is not None and known.manifest):
            return
        digits = _STEP.search(name)
        step = int(digits[1]) if digits else 0
        kept = run.checkpoints
        kept += checkpoints.add(tx, CheckpointRow(run.run_id, name, step, attempt.epoch, 0, 0, "", at))
        if (run.published + 1) % checkpoints.TRIM_EVERY == 0:
            kept -= checkpoints.trim(tx, run.run_id)
        runs.save(
            tx,
            replace(
                run, newest_checkpoint=name, newest_step=step, checkpoints=kept, published=run.published + 1,
                restored_at=None,  # such a worker tells of no other
            ),
        )  # fmt: skip
        history.add_event(
            tx, at, "checkpoint.published", attempt.worker, f"{name} (said by an original worker)", run.run_id,
            attempt.epoch, {"name": name, "step": str(step)},
        )  # fmt: skip

    def _hub(self, tx: Tx, attempt: Attempt, body: ReportBody, at: float) -> None:
        """One event a revision, not one a report."""
        assert body.hf is not None
        hf = body.hf
        said = clean(f"{hf.repo or '?'}@{hf.revision or hf.last_synced or '?'}", 512)
        key = f"hub {attempt.run_id}"
        if history.meta(tx, key) == said:
            return
        history.set_meta(tx, key, said)
        step = _SYNCED.match((hf.last_synced or "").rstrip("/").rpartition("/")[2])
        data = {"repo": hf.repo or "", "revision": hf.revision or "", "step": step[1] if step else ""}
        data = {key: clean(value, 256) for key, value in data.items() if value}
        history.add_event(tx, at, "hub.synced", attempt.worker, said, attempt.run_id, attempt.epoch, data)
        if not data.get("revision", "").startswith(DRY_RUN):
            syncs.heed(tx, attempt, syncs.SYNCED, said, data, at)


def _capability(cap: dict[str, Any] | None) -> tuple[str, int]:
    """(gpu, count) of whatever the worker sent."""
    gpu, count = (cap or {}).get("gpu"), (cap or {}).get("count")
    name = clean(gpu, 128) if isinstance(gpu, str) else "cpu"
    number = count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 1_024 else 0
    return name, number
