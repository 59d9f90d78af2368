"""What each route of the commander answers, typed."""

from __future__ import annotations

from msgspec import Struct

from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.numbers import Number
from relaytui.wire.proof import Role
from relaytui.wire.rows import AttemptRow, CheckpointRow, EventRow, LogLine, OrderRow, RunRow, WorkerRow


class Health(Struct, frozen=True):
    ok: bool
    name: str = ""
    version: str = ""
    proof: dict[str, str] = {}


class WhoAmI(Struct, frozen=True):
    role: Role
    commander: str
    now: float
    version: str
    lease_seconds: float
    no_grants_until: float | None = None  # the state was restored; None where agents are granted runs as ever


class Runs(Struct, frozen=True):
    now: float
    runs: list[RunRow]
    no_grants_until: float | None = None


class RunDetail(Struct, frozen=True):
    now: float
    run: RunRow
    attempts: list[AttemptRow] = []
    checkpoints: list[CheckpointRow] = []
    artifacts: list[ArtifactRow] = []


class Log(Struct, frozen=True):
    lines: list[LogLine]


class Series(Struct, frozen=True):
    """Points are (epoch, step, value)."""

    metric: str
    points: list[tuple[int, int, Number]]


class Workers(Struct, frozen=True):
    now: float
    workers: list[WorkerRow]


class Events(Struct, frozen=True):
    now: float
    events: list[EventRow]


class Forced(Struct, frozen=True):
    run: RunRow
    epoch: int  # burned: what was granted up to it is superseded


class Ordered(Struct, frozen=True):
    run: RunRow
    order_id: int | None = None  # none: it is done, and no agent had to be asked


class Order(Struct, frozen=True):
    order: OrderRow


class Requeued(Struct, frozen=True):
    run: RunRow


class Fault(Struct, frozen=True):
    code: str
    message: str
    hint: str = ""


class FaultBody(Struct, frozen=True):
    error: Fault
