"""The state stream: lifecycle, checkpoints and events of an attempt, applied once and in order."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from relaytui.commander.model.kinds import filed
from relaytui.commander.model.lease import LeaseState, Refuse
from relaytui.commander.model.records import Attempt
from relaytui.commander.model.run import Cause, allowed, change
from relaytui.commander.services import endings, listing, resumes, stalls, syncs, volumes
from relaytui.commander.services.leases import Leases
from relaytui.commander.store import attempts, checkpoints, history, runs
from relaytui.commander.store.writer import UNIT, Done, Tx, Writer
from relaytui.wire.bounds import fitting
from relaytui.wire.clock import Clock
from relaytui.wire.errors import RelayError
from relaytui.wire.proof import token_hash
from relaytui.wire.reports import (
    AnyReport,
    Ended,
    Event,
    Gap,
    Listed,
    Log,
    Pruned,
    Published,
    Started,
    StateReport,
    Step,
    Transfer,
)
from relaytui.wire.rows import CheckpointRow
from relaytui.wire.status import Outcome, RunStatus
from relaytui.wire.text import clean, counted

REPORT = 16 << 10
"""What a report of this stream counts beside its bytes: it is small on the wire and a dozen statements in the database,
on the writer that renewals use."""
LISTING, ON_VOLUME = 256 << 10, 4 << 10
"""What a listing counts beside that, for which all rows of the run are read, and each one in it: a statement."""


def weight_of(reports: Sequence[AnyReport], size: int) -> int:
    """Of reports of `size` bytes, where what waits for the disk is bounded."""
    listed = next((report for report in reversed(reports) if isinstance(report, Listed)), None)  # no other one counts
    listing = LISTING + (len(listed.line) + len(listed.beside)) * ON_VOLUME if listed is not None else 0
    return UNIT + size + len(reports) * REPORT + listing


@dataclass(frozen=True, slots=True)
class Applied:
    seq: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Reports before this frame did not arrive."""

    expected: int


class StateReports:
    def __init__(self, writer: Writer, leases: Leases, clock: Clock) -> None:
        self._writer = writer
        self._leases = leases
        self._clock = clock

    def submit(
        self,
        run_id: str,
        epoch: int,
        token: str,
        first_seq: int,
        reports: Sequence[AnyReport],
        size: int,
        done: Done,
        behind: float | None = None,
    ) -> None:
        """`size`: what they weigh (`weight_of`). `done(Applied | Missing | Refuse)` is called after the commit.
        `behind`: how many seconds the agent's clock is, None where that is not known.

        RelayError where a report is of the other stream.
        """
        states: list[StateReport] = []
        for report in reports:
            if isinstance(report, Step | Log | Gap | Transfer):
                raise wrong_stream(report, "state")
            states.append(report)
        hashed = token_hash(token)
        self._writer.submit(lambda tx: self._apply(tx, run_id, epoch, hashed, first_seq, states, behind), done, size)

    def _apply(
        self,
        tx: Tx,
        run_id: str,
        epoch: int,
        hashed: bytes,
        first_seq: int,
        reports: list[StateReport],
        behind: float | None,
    ) -> Applied | Missing | Refuse:
        attempt = attempts.get(tx, run_id, epoch)
        if attempt is None:
            return Refuse("unknown", "no such lease here")
        if not hmac.compare_digest(attempt.token_hash, hashed):
            return Refuse("not_holder", "this token does not hold the lease")
        applied = attempts.last_seq(tx, run_id, epoch)
        last = first_seq + len(reports) - 1
        if first_seq > applied + 1:
            return Missing(applied + 1)
        if last > applied:
            listing_at = max((seq for seq, one in enumerate(reports, first_seq) if isinstance(one, Listed)), default=0)
            for seq, report in enumerate(reports[applied + 1 - first_seq :], applied + 1):
                if isinstance(report, Listed) and seq != listing_at:
                    continue  # a later one of the same frame says all that there is
                self.apply_in(tx, attempt, report, happened(report.t, behind, attempt.granted_at, self._clock.wall()))
                attempt = attempts.get(tx, run_id, epoch) or attempt
            attempts.set_last_seq(tx, run_id, epoch, last)
        return Applied(max(last, applied))

    def skip(self, run_id: str, epoch: int, token: str, first_seq: int, last_seq: int, why: str, done: Done) -> None:
        """State reports up to `last_seq` will not come. `done(Applied | Missing | Refuse)` after the commit."""
        hashed = token_hash(token)

        def apply(tx: Tx) -> Applied | Missing | Refuse:
            attempt = attempts.get(tx, run_id, epoch)
            if attempt is None:
                return Refuse("unknown", "no such lease here")
            if not hmac.compare_digest(attempt.token_hash, hashed):
                return Refuse("not_holder", "this token does not hold the lease")
            applied = attempts.last_seq(tx, run_id, epoch)
            if first_seq > applied + 1:
                return Missing(applied + 1)
            if last_seq > applied:
                self._count_lost(tx, attempt, "state", last_seq - applied, why)
                attempts.set_last_seq(tx, run_id, epoch, last_seq)
            return Applied(max(last_seq, applied))

        self._writer.submit(apply, done)

    def lost(self, run_id: str, epoch: int, count: int, why: str) -> None:
        """Telemetry reports that will not come: said in an event."""

        def apply(tx: Tx) -> None:
            attempt = attempts.get(tx, run_id, epoch)
            if attempt is not None:
                self._count_lost(tx, attempt, "telemetry", count, why)

        self._writer.submit(apply, lambda _, error: None)

    def _count_lost(self, tx: Tx, attempt: Attempt, stream: str, count: int, why: str) -> None:
        message = f"up to {counted(count, f'{stream} report is', f'{stream} reports are')} lost"
        if why:
            message += f": {clean(why, 200)}"
        history.add_event(
            tx, self._clock.wall(), "run.reports_lost", attempt.worker, message, attempt.run_id, attempt.epoch,
            {"stream": stream, "count": str(count)},
        )  # fmt: skip

    def apply_in(self, tx: Tx, attempt: Attempt, report: StateReport, at: float | None = None) -> None:
        """One report of the attempt: to the run where the attempt holds it, to the history where it does not. `at`:
        when it happened, on the commander's clock; now, where that is None."""
        at = self._clock.wall() if at is None else at
        run = runs.get(tx, attempt.run_id)
        lease = runs.get_lease(tx, attempt.run_id)
        assert run is not None
        assert lease is not None
        if isinstance(report, Event):
            self._event(tx, attempt, report, at)
            return
        newest = attempt.epoch == run.epoch == lease.epoch
        if newest and lease.state is LeaseState.EXPIRED:
            run = self._leases.revive_in(tx, run, lease, attempt)
            lease = runs.get_lease(tx, attempt.run_id) or lease
            attempt = attempts.get(tx, attempt.run_id, attempt.epoch) or attempt
        if newest and lease.state is LeaseState.HELD and run.status.active:
            self._to_run(tx, attempt, report, at)
        else:
            self._to_history(tx, attempt, report, at)

    # -- the holder's --------------------------------------------------------------------------------------------

    def _to_run(
        self, tx: Tx, attempt: Attempt, report: Started | Published | Pruned | Listed | Ended, at: float
    ) -> None:
        match report:
            case Started():
                self._started(tx, attempt, report, at)
            case Published():
                self._published(tx, attempt, report, at)
            case Pruned():
                self._pruned(tx, attempt, report, at)
            case Listed():
                listing.heed(tx, attempt, report, at)
            case Ended():
                self._ended(tx, attempt, report, at)

    def _started(self, tx: Tx, attempt: Attempt, report: Started, at: float) -> None:
        run, lease = runs.get(tx, attempt.run_id), runs.get_lease(tx, attempt.run_id)
        assert run is not None
        assert lease is not None
        attempts.save(
            tx,
            replace(
                attempt,
                started_step=report.step,
                last_step=report.step,
                said_step=report.step,
                started_from=report.checkpoint,
            ),
        )
        message = f"from {report.checkpoint} at step {report.step}" if report.checkpoint else "from the beginning"
        message += endings.after_crash(tx, run, attempt.epoch)
        if allowed(run.status, Cause.STARTED):
            run = change(run, Cause.STARTED, self._clock.wall(), message)
        runs.save(tx, replace(run, volume_lost_at=None))
        runs.save_lease(tx, replace(lease, started=True))
        data = {"step": str(report.step), "pid": str(report.pid)}
        history.add_event(tx, at, "run.started", attempt.worker, message, run.run_id, attempt.epoch, data)

    def _published(self, tx: Tx, attempt: Attempt, report: Published, at: float) -> None:
        known = checkpoints.get(tx, attempt.run_id, report.name)
        if known is not None and known.pruned_at is None and known.manifest == report.manifest:
            return
        newest = checkpoints.newest(tx, attempt.run_id)
        if newest is not None:  # the order is that of their coming, whatever a pod's clock says
            at = max(at, min(newest.published_at, self._clock.wall()))
        longer = checkpoints.add(
            tx,
            CheckpointRow(
                attempt.run_id, report.name, report.step, attempt.epoch, report.bytes, report.files, report.manifest, at
            ),
        )
        run = runs.get(tx, attempt.run_id)
        assert run is not None
        if (run.published + 1) % checkpoints.TRIM_EVERY == 0:
            longer -= checkpoints.trim(tx, run.run_id)
        runs.save(
            tx,
            replace(
                run, checkpoints=run.checkpoints + longer, published=run.published + 1, newest_checkpoint=report.name,
                newest_step=report.step,
            ),
        )  # fmt: skip
        attempts.save(tx, attempt.has_made(report.step))
        message = f"{report.name} at step {report.step}, {counted(report.files, 'file')}"
        data = {"name": report.name, "step": str(report.step), "bytes": str(report.bytes)}
        history.add_event(tx, at, "checkpoint.published", attempt.worker, message, attempt.run_id, attempt.epoch, data)

    def _pruned(self, tx: Tx, attempt: Attempt, report: Pruned, at: float) -> None:
        if checkpoints.prune(tx, attempt.run_id, report.name, at):
            run = runs.get(tx, attempt.run_id)
            assert run is not None
            newest = checkpoints.newest(tx, run.run_id)
            name, step = (newest.name, newest.step) if newest is not None else (None, None)
            runs.save(tx, replace(run, checkpoints=run.checkpoints - 1, newest_checkpoint=name, newest_step=step))
            history.add_event(
                tx, at, "checkpoint.pruned", attempt.worker, report.name, attempt.run_id, attempt.epoch,
                {"name": report.name},
            )  # fmt: skip

    def _ended(self, tx: Tx, attempt: Attempt, report: Ended, at: float) -> None:
        run, lease = runs.get(tx, attempt.run_id), runs.get_lease(tx, attempt.run_id)
        assert run is not None
        assert lease is not None
        endings.end_run(
            tx, run, lease, attempt, report.outcome, self._clock.wall(), clean(report.message),
            actor=attempt.worker, exit_code=report.exit_code, step=report.step, ending=report.ending, ended_at=at,
        )  # fmt: skip

    # -- history -------------------------------------------------------------------------------------------------

    def _event(self, tx: Tx, attempt: Attempt, report: Event, at: float) -> None:
        data = fitting({clean(name, 128) or "?": clean(value, 1_024) for name, value in report.data.items()})
        message = clean(report.message)
        history.add_event(
            tx, at, filed(report.kind), attempt.worker, message, attempt.run_id, attempt.epoch, data
        )  # fmt: skip
        if report.kind in syncs.KINDS:
            syncs.heed(tx, attempt, report.kind, message, data, at)
        if report.kind == resumes.IGNORED:
            resumes.heed(tx, attempt, report)
        if stalls.concerns(report):
            stalls.heed(tx, attempt, report, at)
        if volumes.concerns(report):
            volumes.heed(tx, attempt, report, at)

    def _to_history(
        self, tx: Tx, attempt: Attempt, report: Started | Published | Pruned | Listed | Ended, at: float
    ) -> None:
        """What an attempt says that no longer holds its run: kept, and never applied."""
        match report:
            case Started():
                attempts.save(tx, replace(attempt, started_step=report.step, started_from=report.checkpoint))
            case Published():
                message = f"{report.name} of an attempt that does not hold the run: not part of its line"
                history.add_event(
                    tx, at, "checkpoint.orphan", attempt.worker, message, attempt.run_id, attempt.epoch,
                    {"name": report.name, "step": str(report.step)},
                )  # fmt: skip
            case Pruned():
                message = f"{report.name} pruned by an attempt that does not hold the run"
                history.add_event(
                    tx, at, "checkpoint.orphan", attempt.worker, message, attempt.run_id, attempt.epoch,
                    {"name": report.name},
                )  # fmt: skip
            case Listed():
                pass  # of a volume that another attempt has by now
            case Ended():
                self._ended_late(tx, attempt, report, at)

    def _ended_late(self, tx: Tx, attempt: Attempt, report: Ended, at: float) -> None:
        if attempt.outcome is not None and attempt.outcome is not Outcome.LOST:
            return  # the first word on how it ended stays
        said = clean(report.message)
        if report.outcome is not Outcome.SUPERSEDED:
            said = f"{report.outcome} after it was superseded" + (f": {said}" if said else "")
        endings.end_attempt(
            tx, attempt, Outcome.SUPERSEDED, at, said, exit_code=report.exit_code, step=report.step,
            ending=report.ending,
        )  # fmt: skip
        lease = runs.get_lease(tx, attempt.run_id)
        run = runs.get(tx, attempt.run_id)
        if lease is not None and lease.epoch == attempt.epoch and lease.state is LeaseState.REVOKED:
            runs.save_lease(tx, replace(lease, state=LeaseState.RELEASED))
            if run is not None and run.status is RunStatus.QUEUED:
                runs.save(
                    tx, replace(run, updated_at=self._clock.wall(), message=f"free: {attempt.worker} has stopped")
                )
        history.add_event(
            tx, at, "run.superseded", attempt.worker, said or "its trainer is stopped", attempt.run_id, attempt.epoch,
            {"outcome": str(report.outcome), "worker": attempt.worker},
        )  # fmt: skip


def happened(t: float, behind: float | None, since: float, now: float) -> float:
    """When a report that came `now` was made, on the commander's clock. A pod's clock is not trusted: where it says a
    time outside of its attempt, or nobody knows how far it is off, it counts as made now."""
    at = now if behind is None else t + behind
    return at if since <= at <= now else now


def wrong_stream(report: object, stream: str) -> RelayError:
    name = type(report).__name__.lower()
    return RelayError("bad_field", f"{name} does not belong to the {stream} stream", "see the wire", status=422)
