"""Statuses, outcomes and orders. An unknown one on the wire is an error, never a guess."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    QUEUED = "queued"  # waits for an agent
    LEASED = "leased"  # granted; the trainer has not started yet
    RUNNING = "running"  # the trainer runs
    DRAINING = "draining"  # asked to save and release
    COMPLETED = "completed"  # reached its last step
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"  # its pod was taken away; goes back to queued
    LOST = "lost"  # lease expired, holder silent; goes back to queued

    @property
    def ended(self) -> bool:
        return self in ENDED

    @property
    def active(self) -> bool:
        """Whether an agent holds the run."""
        return self in ACTIVE


ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
ACTIVE = frozenset({RunStatus.LEASED, RunStatus.RUNNING, RunStatus.DRAINING})


class WorkerStatus(StrEnum):
    CONNECTING = "connecting"
    IDLE = "idle"  # connected, waits for a lease
    BUSY = "busy"  # holds a lease
    DRAINING = "draining"
    OFFLINE = "offline"


class Gone(StrEnum):
    """Why nobody misses a worker that is offline."""

    LEFT = "left"  # its attempt ended by its own word
    SUPERSEDED = "superseded"  # another epoch took its run over
    REFUSED = "refused"  # it asked for a run that it will not be granted, however often it asks


class Outcome(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    PREEMPTED = "preempted"  # the pod got a stop signal
    DRAINED = "drained"  # saved and released on an operator's word
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # another epoch took over
    CRASHED = "crashed"  # it failed, or was stopped as it hung, and is tried again: the run goes back to queued
    LOST = "lost"  # only the commander says this: the lease ran out in silence


class OrderKind(StrEnum):
    DRAIN = "drain"  # save, publish, release
    CANCEL = "cancel"  # the same for good: the run is not queued again
    SAVE = "save"  # a checkpoint now; training goes on
    SYNC = "sync"  # the newest checkpoint to the Hub now; training goes on
    STOP = "stop"  # superseded: stop the trainer, publish nothing


class TransferKind(StrEnum):
    """Where checkpoints go to, or come from."""

    HUB = "hub"  # to the Hugging Face Hub
    ARTIFACT = "artifact"  # to the commander's artifact store
    RESTORE = "restore"  # from either of them to the volume


class TransferPhase(StrEnum):
    """How far a transfer is. The last three are how it ended."""

    WAITING = "waiting"  # for its turn, or to try again
    HASHING = "hashing"
    UPLOADING = "uploading"
    COMMIT = "commit"
    TAG = "tag"
    PRUNING = "pruning"  # older ones go on the other side
    DOWNLOADING = "downloading"
    DONE = "done"
    FAILED = "failed"
    DRY = "dry"  # everything but sent: HF_DRY_RUN

    @property
    def over(self) -> bool:
        return self in OVER


OVER = frozenset({TransferPhase.DONE, TransferPhase.FAILED, TransferPhase.DRY})


class Stream(StrEnum):
    """The two streams of reports; each has its own sequence and lands in one database."""

    STATE = "state"  # lifecycle, checkpoints, events: never dropped
    TELEMETRY = "telemetry"  # steps, metrics, log lines: bounded
