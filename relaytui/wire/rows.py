"""Rows: what the API and the feed show of runs, attempts, checkpoints, workers and events. Text in them is clean.

Times are seconds since 1970 on the commander's clock; a reader who wants ages subtracts from the commander's `now`.
"""

from __future__ import annotations

from msgspec import Struct

from relaytui.wire.numbers import Number
from relaytui.wire.status import Gone, OrderKind, Outcome, RunStatus, TransferKind, TransferPhase, WorkerStatus


class TransferRow(Struct, frozen=True, omit_defaults=True):
    """The newest word on one kind of transfer of a run; sizes in bytes, `rate` in bytes per second."""

    kind: TransferKind
    epoch: int
    at: float
    step: int
    checkpoint: str | None = None
    phase: TransferPhase = TransferPhase.WAITING
    done: int = 0
    total: int = 0
    rate: float | None = None
    attempt: int = 1
    error: str | None = None
    synced: int | None = None  # last step on the other side


class RunRow(Struct, frozen=True, omit_defaults=True):
    run_id: str
    mode: str
    status: RunStatus
    epoch: int  # the highest one granted, 0 before the first
    created_at: float
    updated_at: float
    message: str = ""  # why it is in this status
    holder: str | None = None  # worker name
    incarnation: str | None = None
    lease_expires_at: float | None = None
    lease_seconds: float = 0.0
    draining_since: float | None = None
    step: int = 0
    total: int | None = None
    rate: float | None = None  # steps per second
    loss: Number | None = None
    first_loss: Number | None = None
    lr: Number | None = None
    reward: Number | None = None
    reported_at: float | None = None  # last telemetry
    newest_checkpoint: str | None = None
    newest_step: int | None = None
    checkpoints: int = 0  # published and not pruned
    published: int = 0  # ever
    attempts: int = 0
    stalled_in: str = ""  # phase that its trainer does not get on in: starting, loading, training, evaluating, saving
    stalled_at: float | None = None  # its last sign of life
    volume_lost_at: float | None = None  # since when its agent has no volume: what is saved is not published
    silent_since: float | None = None  # its holder is not connected, and was last heard of then: cut off, or dead
    transfers: list[TransferRow] = []  # the newest of each kind
    synced_step: int | None = None  # the last one on the Hub
    synced_repo: str = ""
    synced_revision: str = ""
    synced_at: float | None = None
    sync_error: str = ""  # why the last sync of this epoch failed; empty once one worked
    stored_step: int | None = None  # the newest one that is whole in the artifact store
    began_step: int | None = None  # its newest attempt was there after it was handed `handed_step`: no resume
    handed_step: int = 0
    restored_at: float | None = None  # the commander was, and its agent has not told since what is on the volume


class AttemptRow(Struct, frozen=True, omit_defaults=True):
    run_id: str
    epoch: int
    worker: str
    granted_at: float
    started_step: int = 0
    last_step: int = 0
    started_from: str | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None  # None: still going
    exit_code: int | None = None
    message: str = ""
    lines: int = 0
    ending: str = ""  # more closely than the outcome, by the agent's word: cuda_oom, import_error, …
    began_step: int | None = None  # it was there, and not at `started_step`: the resume did not take


class CheckpointRow(Struct, frozen=True, omit_defaults=True):
    run_id: str
    name: str
    step: int
    epoch: int
    bytes: int
    files: int
    manifest: str
    published_at: float
    pruned_at: float | None = None  # from the volume
    hub: str = ""  # its tag on the Hub; empty: it is not there


class OrderRow(Struct, frozen=True, omit_defaults=True):
    """What an operator ordered, and what its agent said to it."""

    id: int
    run_id: str
    epoch: int
    kind: OrderKind
    by: str
    why: str
    given_at: float
    accepted: bool | None = None  # it is being done; None: not answered
    message: str = ""  # the answer in words
    closed_at: float | None = None  # it is done with, answered or not


ORIGINAL = "original"
"""`version` of workers that hold no connection: they are known by their calls alone."""


class WorkerRow(Struct, frozen=True, omit_defaults=True):
    worker: str
    incarnation: str
    status: WorkerStatus
    seen_at: float
    connected_at: float
    host: str = ""
    version: str = ""
    gpu: str = "cpu"
    gpus: int = 0
    run_id: str | None = None
    epoch: int = 0
    waiting_for: str | None = None  # run it asked for and was denied
    gone: Gone | None = None  # offline, and nobody misses it


class EventRow(Struct, frozen=True, omit_defaults=True):
    id: int
    at: float
    kind: str  # dotted: lease.granted, run.completed, checkpoint.published, …
    actor: str  # who: a worker, an operator, the commander
    message: str
    run_id: str | None = None
    epoch: int = 0
    data: dict[str, str] = {}


class LogLine(Struct, frozen=True, omit_defaults=True):
    epoch: int
    n: int  # within the attempt, from 1
    t: float
    text: str
