"""The live picture in memory: what dashboards see at once. Only a cache of what is committed, plus last telemetry."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from relaytui.commander.model.lease import Lease, LeaseState
from relaytui.commander.model.records import ORIGINALS, Attempt, Worker, seen
from relaytui.commander.model.run import Run
from relaytui.commander.services.endings import Told
from relaytui.commander.store.telemetry import Last
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.clock import Clock
from relaytui.wire.numbers import Number
from relaytui.wire.rows import EventRow, RunRow, TransferRow, WorkerRow
from relaytui.wire.status import Gone, Outcome, RunStatus, WorkerStatus

KEPT_EVENTS = 200
SLOWEST, FASTEST = 1e-9, 1e9
"""Steps per second that are shown; beyond, a pod's clock or counter is off and no time left can be told from it."""
_STEP, _TOTAL = ".step", ".total"
"""Beside metrics, which begin with no dot."""
HTTP_WORKER_AWAY = 300.0
"""Seconds after which a worker that only calls (the original's) counts as offline."""


GONE_AFTER = dict.fromkeys(
    (Outcome.COMPLETED, Outcome.FAILED, Outcome.PREEMPTED, Outcome.DRAINED, Outcome.CANCELLED), Gone.LEFT
) | {Outcome.SUPERSEDED: Gone.SUPERSEDED}
"""How the last attempt of an agent ends that goes then by itself: said by its agent alone, or taken from it."""


class RunView:
    """One run as it is now, from what its attempts said and told.

    Each value is that of the newest attempt that had one (the first loss: of the oldest), whatever came first: a live
    picture and one made of the store at a start are the same.
    """

    __slots__ = ("_first_loss", "_last", "_said", "_told", "expires", "lease", "run", "stored", "transfers")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lease: Lease | None = None
        self.expires = 0.0
        self._said: Attempt | None = None  # the newest that said a step
        self._last: Last | None = None  # of the newest that told anything
        self._told: dict[str, tuple[int, Number, int | None]] = {}
        """Epoch, value and step of step, total and metrics."""
        self._first_loss: tuple[int, Number] | None = None
        self.transfers: dict[str, TransferRow] = {}  # by kind
        self.stored: dict[int, int] = {}  # steps that are whole in the artifact store, by the artifact's id

    def hear(self, last: Last) -> None:
        """Telemetry of an attempt, as far as it came."""
        if self._last is None or last.epoch >= self._last.epoch:
            self._last = last
        values = {**last.metrics, _STEP: last.step, _TOTAL: last.total}
        for name, value in values.items():
            if value is not None and (name not in self._told or last.epoch >= self._told[name][0]):
                self._told[name] = last.epoch, value, last.step
        for kind, row in last.transfers.items():
            if kind not in self.transfers or row.epoch >= self.transfers[kind].epoch:
                self.transfers[kind] = row
        if last.first_loss is not None and (self._first_loss is None or last.epoch < self._first_loss[0]):
            self._first_loss = last.epoch, last.first_loss

    def say(self, attempt: Attempt) -> None:
        """An attempt's record, as it is now."""
        if attempt.said_step is not None and (self._said is None or attempt.epoch >= self._said.epoch):
            self._said = attempt

    @property
    def ignored(self) -> Attempt | None:
        """The newest attempt, where its trainer did not go on from what it was handed."""
        said = self._said
        return said if said is not None and said.epoch == self.run.epoch and said.began_step is not None else None

    def told(self, name: str) -> Number | None:
        """The last value of a metric; None where that is of steps beyond the run's own, which an attempt before made:
        they are lost."""
        epoch, value, at = self._told.get(name, (0, None, None))
        said, step = self._said, self.step
        anew = max(self._told.get(_STEP, (0,))[0], said.epoch if said is not None else 0)
        if said is not None and said.epoch > epoch:
            step = min(step, said.started_step)  # from there on it is made anew
        return None if epoch < anew and at is not None and at > step else value

    @property
    def told_step(self) -> Told | None:
        """With the epoch of the attempt that told it."""
        epoch, step, _ = self._told.get(_STEP, (0, None, None))
        return None if step is None else (epoch, int(step))

    @property
    def step(self) -> int:
        epoch, step, _ = self._told.get(_STEP, (0, None, None))
        told = None if step is None else int(step)
        said = self._said
        if said is not None and said.epoch >= epoch:
            told = said.step_after(told if said.epoch == epoch else None)
        return told or 0

    @property
    def total(self) -> int | None:
        _, total, _ = self._told.get(_TOTAL, (0, None, None))
        return None if total is None else int(total)

    @property
    def rate(self) -> float | None:
        """Steps per second of the newest attempt heard of."""
        last, said = self._last, self._said
        if last is None or last.rate is None or (said is not None and said.epoch > last.epoch):
            return None
        return last.rate if SLOWEST <= last.rate <= FASTEST else None

    @property
    def first_loss(self) -> Number | None:
        return None if self._first_loss is None else self._first_loss[1]

    @property
    def reported_at(self) -> float | None:
        return None if self._last is None else self._last.reported_at


class WorkerView:
    __slots__ = ("connected", "gone", "here", "polls", "seen_at", "waiting_for", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.connected = False
        self.gone: Gone | None = None  # since its last attempt ended, where it waits for no other run
        self.here = False  # as last shown
        self.seen_at = worker.seen_at
        self.waiting_for: str | None = None
        self.polls = worker.incarnation.startswith(ORIGINALS)
        """An original worker: no socket, known by its calls only."""


def _gone(view: WorkerView) -> Gone | None:
    if view.worker.refused:
        return Gone.REFUSED
    return view.gone or (Gone.LEFT if view.worker.goodbye else None)


class Board:
    """Runs, workers and the newest events. Read and changed in the loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.runs: dict[str, RunView] = {}
        self.workers: dict[str, WorkerView] = {}
        self.events: deque[EventRow] = deque(maxlen=KEPT_EVENTS)
        self.events_ever = 0  # in the history: the newest of them are in `events`
        self.holding: dict[str, str] = {}
        """incarnation -> run it holds"""

    def save_run(self, run: Run) -> RunView:
        view = self.runs.get(run.run_id)
        if view is None:
            view = self.runs[run.run_id] = RunView(run)
        view.run = run
        return view

    def save_lease(self, lease: Lease) -> list[str]:
        """Incarnations whose rows changed with it."""
        view = self.runs[lease.run_id]
        before = view.lease
        view.lease = lease
        view.expires = lease.expires
        changed = [lease.incarnation]
        if before is not None and self.holding.get(before.incarnation) == lease.run_id:
            del self.holding[before.incarnation]
            changed.append(before.incarnation)
        if lease.state in (LeaseState.HELD, LeaseState.REVOKED):
            self.holding[lease.incarnation] = lease.run_id
            worker = self.workers.get(lease.incarnation)
            if worker is not None:
                worker.waiting_for = None
        return changed

    def hear_attempt(self, attempt: Attempt) -> None:
        view = self.runs.get(attempt.run_id)
        if view is not None:
            view.say(attempt)
        self._hear_last(attempt)

    def _hear_last(self, attempt: Attempt) -> None:
        """Of its worker."""
        worker = self.workers.get(attempt.incarnation)
        if worker is not None:
            worker.gone = GONE_AFTER.get(attempt.outcome) if attempt.outcome is not None else None

    def hear_event(self, row: EventRow) -> None:
        self.events.append(row)
        self.events_ever += 1

    def save_artifact(self, row: ArtifactRow) -> None:
        view = self.runs.get(row.run_id)
        if view is not None and row.kind is ArtifactKind.CHECKPOINT:
            self.drop_artifact(row)
            if row.step is not None and not row.damaged:
                view.stored[row.id] = row.step

    def drop_artifact(self, row: ArtifactRow) -> None:
        view = self.runs.get(row.run_id)
        if view is not None:
            view.stored.pop(row.id, None)

    def save_worker(self, worker: Worker) -> WorkerView:
        view = self.workers.get(worker.incarnation)
        if view is None:
            view = self.workers[worker.incarnation] = WorkerView(worker)
        view.worker = worker
        view.seen_at = max(view.seen_at, worker.seen_at)
        return view

    def told(self, run_id: str) -> Told | None:
        """The last step that was told of the run, by whichever attempt."""
        view = self.runs.get(run_id)
        return None if view is None else view.told_step

    def soonest_expiry(self) -> float | None:
        """Boot-clock time at which the first live lease runs out."""
        live = [
            view.expires
            for view in self.runs.values()
            if view.lease is not None and view.lease.state in (LeaseState.HELD, LeaseState.REVOKED)
        ]
        return min(live, default=None)

    # -- rows ----------------------------------------------------------------------------------------------------

    def run_row(self, view: RunView) -> RunRow:
        run, lease = view.run, view.lease
        # While a revoked lease runs its holder may still be training: it stays named until it is known to be gone.
        held = lease is not None and lease.state in (LeaseState.HELD, LeaseState.REVOKED)
        training = run.status in (RunStatus.RUNNING, RunStatus.DRAINING)
        ignored = view.ignored
        return RunRow(
            run_id=run.run_id,
            mode=run.mode,
            status=run.status,
            epoch=run.epoch,
            created_at=run.created_at,
            updated_at=run.updated_at,
            message=run.message,
            holder=lease.worker if held and lease is not None else None,
            incarnation=seen(lease.incarnation) if held and lease is not None else None,
            lease_expires_at=self._clock.wall() + view.expires - self._clock.boot() if held else None,
            lease_seconds=lease.length if lease is not None else 0.0,
            draining_since=run.draining_since,
            step=view.step,
            total=view.total,
            rate=view.rate if training else None,
            loss=view.told("loss"),
            first_loss=view.first_loss,
            lr=view.told("lr"),
            reward=view.told("reward"),
            reported_at=view.reported_at,
            newest_checkpoint=run.newest_checkpoint,
            newest_step=run.newest_step,
            checkpoints=run.checkpoints,
            published=run.published,
            attempts=run.attempts,
            stalled_in=run.stalled_in if training else "",
            stalled_at=run.stalled_at if training else None,
            volume_lost_at=run.volume_lost_at if run.status.active else None,
            silent_since=self._silent_since(view) if run.status.active else None,
            transfers=list(view.transfers.values()),
            synced_step=run.synced_step,
            synced_repo=run.synced_repo,
            synced_revision=run.synced_revision,
            synced_at=run.synced_at,
            sync_error=run.sync_error if run.synced_epoch == run.epoch else "",
            stored_step=view.stored[max(view.stored)] if view.stored else None,
            began_step=ignored.began_step if ignored is not None else None,
            handed_step=ignored.started_step if ignored is not None else 0,
            restored_at=run.restored_at,
        )

    def _silent_since(self, view: RunView) -> float | None:
        """When its holder was last heard of, where that is not connected. A worker's row is written as its connection
        begins and ends: of one that ended with the commander, telemetry and renewals say more."""
        lease = view.lease
        worker = None if lease is None else self.workers.get(lease.incarnation)
        if lease is None or worker is None or self.is_here(worker):
            return None
        now = self._clock.wall()
        renewed = now + view.expires - self._clock.boot() - lease.length - lease.grace
        return min(now, max(worker.seen_at, renewed, view.reported_at or 0.0))

    def worker_row(self, view: WorkerView) -> WorkerRow:
        worker = view.worker
        run_id = self.holding.get(worker.incarnation)
        run = self.runs[run_id] if run_id is not None else None
        there = run_id is not None or self.is_here(view)
        return WorkerRow(
            worker=worker.worker,
            incarnation=seen(worker.incarnation),
            status=self._worker_status(view, run),
            seen_at=self._clock.wall() if view.connected else view.seen_at,
            connected_at=worker.connected_at,
            host=worker.host,
            version=worker.version,
            gpu=worker.gpu,
            gpus=worker.gpus,
            run_id=run_id,
            epoch=run.lease.epoch if run is not None and run.lease is not None else 0,
            waiting_for=view.waiting_for if run_id is None else None,
            gone=None if there else _gone(view),
        )

    def is_here(self, view: WorkerView) -> bool:
        return view.connected or (view.polls and self._clock.wall() - view.seen_at < HTTP_WORKER_AWAY)

    def _worker_status(self, view: WorkerView, run: RunView | None) -> WorkerStatus:
        if not self.is_here(view):
            return WorkerStatus.OFFLINE
        if run is None:
            return WorkerStatus.IDLE
        return WorkerStatus.DRAINING if run.run.status is RunStatus.DRAINING else WorkerStatus.BUSY

    def run_rows(self) -> list[RunRow]:
        """Oldest first, whatever order they were read in."""
        views = sorted(self.runs.values(), key=lambda view: (view.run.created_at, view.run.run_id))
        return [self.run_row(view) for view in views]

    def worker_rows(self) -> list[WorkerRow]:
        return [self.worker_row(view) for view in self.workers.values()]

    # -- loading -------------------------------------------------------------------------------------------------

    def load(
        self,
        runs: Iterable[Run],
        leases: Iterable[Lease],
        workers: Iterable[Worker],
        events: Iterable[EventRow],
        attempts: Iterable[Attempt],
        telemetry: Iterable[Last],
        artifacts: Iterable[ArtifactRow] = (),
        events_ever: int = 0,
        by_worker: Iterable[Attempt] = (),
    ) -> None:
        """`attempts`: of every run the newest that said a step; `by_worker`: of every worker the newest."""
        self.events_ever = events_ever
        for run in runs:
            self.save_run(run)
        for lease in leases:
            self.save_lease(lease)
        for worker in workers:
            self.save_worker(worker)
        self.events.extend(events)
        for last in telemetry:
            view = self.runs.get(last.run_id)
            if view is not None and last.last_seq:  # one that was only opened told nothing
                view.hear(last)
        for attempt in attempts:
            self.hear_attempt(attempt)
        for attempt in by_worker:
            self._hear_last(attempt)
        for row in artifacts:
            self.save_artifact(row)
