"""What a transaction changed, told to the live picture once it is committed."""

from __future__ import annotations

from msgspec import Struct

from relaytui.commander.model.lease import Lease
from relaytui.commander.model.records import Attempt, PendingOrder, Worker
from relaytui.commander.model.run import Run
from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.rows import CheckpointRow, EventRow


class RunSaved(Struct, frozen=True):
    run: Run


class LeaseSaved(Struct, frozen=True):
    lease: Lease


class LeaseExtended(Struct, frozen=True):
    run_id: str
    epoch: int
    expires: float


class AttemptSaved(Struct, frozen=True):
    attempt: Attempt


class CheckpointSaved(Struct, frozen=True):
    row: CheckpointRow


class ArtifactSaved(Struct, frozen=True):
    row: ArtifactRow


class ArtifactRemoved(Struct, frozen=True):
    row: ArtifactRow


class EventSaved(Struct, frozen=True):
    row: EventRow


class WorkerSaved(Struct, frozen=True):
    worker: Worker


class WorkerForgotten(Struct, frozen=True):
    incarnation: str


class OrderGiven(Struct, frozen=True):
    order: PendingOrder


Change = (
    RunSaved
    | LeaseSaved
    | LeaseExtended
    | AttemptSaved
    | CheckpointSaved
    | ArtifactSaved
    | ArtifactRemoved
    | EventSaved
    | WorkerSaved
    | WorkerForgotten
    | OrderGiven
)
