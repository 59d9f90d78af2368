"""Reports: what an agent tells. Each belongs to (run, epoch, stream, seq); a frame carries a run of them.

Times are seconds since 1970 on the agent's clock. They are shown where they can be true, and decide nothing.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from relaytui.wire.bounds import (
    MAX_CHECKPOINTS,
    MAX_LINES,
    MAX_METRICS,
    Data,
    Ending,
    ExitCode,
    Name,
    Sha256,
    ShortText,
    Text,
    Time,
)
from relaytui.wire.ids import Count, Epoch, Id
from relaytui.wire.numbers import Number
from relaytui.wire.status import Outcome, TransferKind, TransferPhase


class Report(Struct, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    # Reports come by the hundred thousand and cannot be in a cycle: the collector need not look at them.
    t: Time


# -- telemetry ---------------------------------------------------------------------------------------------------


class Step(Report, frozen=True, tag="step"):
    """Progress seen in the trainer's output. `rate` is steps per second over the last few steps."""

    step: Count
    total: Count | None = None
    metrics: Annotated[dict[Name, Number], Meta(max_length=MAX_METRICS)] = {}
    rate: float | None = None


class Log(Report, frozen=True, tag="log"):
    """Lines the trainer printed, without their ends. `n` numbers the first one within the attempt, from 1."""

    n: Count
    lines: Annotated[list[Text], Meta(max_length=MAX_LINES)]


class Gap(Report, frozen=True, tag="gap"):
    """Lines that gave way: `count` of them, the first numbered `n`. Counted, never silent."""

    n: Count
    count: Count


class Transfer(Report, frozen=True, tag="transfer"):
    """How far a checkpoint is on its way to the other side, or back. Only the newest of each kind is of interest: a
    spool that is full keeps that one. What came of it is an event of the state stream, too.

    `done`, `total`: bytes, of this checkpoint; `rate`: bytes per second; `error`: why it failed, or why it waits to be
    tried again; `synced`: the last step that is on the other side whole.
    """

    kind: TransferKind
    step: Count
    checkpoint: Id | None = None
    phase: TransferPhase = TransferPhase.WAITING
    done: Count = 0
    total: Count = 0
    rate: float | None = None
    attempt: Count = 1
    error: ShortText | None = None
    synced: Count | None = None


# -- state -------------------------------------------------------------------------------------------------------


class Started(Report, frozen=True, tag="started"):
    """The trainer runs. `step` is where it resumed from; `checkpoint` the name it resumed from, if any."""

    step: Count = 0
    checkpoint: Id | None = None
    pid: Count = 0


class Published(Report, frozen=True, tag="published"):
    """A checkpoint was sealed and read back. `manifest` is the manifest's own SHA-256, hex."""

    name: Id
    step: Count
    bytes: Count
    files: Count
    manifest: Sha256


class Pruned(Report, frozen=True, tag="pruned"):
    name: Id


class OnVolume(Struct, frozen=True, gc=False):
    """One of them. `at`: when it was sealed, on the clock of the pod that did."""

    name: Id
    step: Count
    epoch: Epoch
    bytes: Count
    files: Count
    manifest: Sha256
    at: Time


class Listed(Report, frozen=True, tag="listed"):
    """All checkpoints that lie published on the volume, oldest first: those of the run's line, and what is not on it.
    Told as an attempt begins, and to a commander that forgot what it was told before."""

    line: Annotated[list[OnVolume], Meta(max_length=MAX_CHECKPOINTS)]
    beside: Annotated[list[OnVolume], Meta(max_length=MAX_CHECKPOINTS)] = []


class Event(Report, frozen=True, tag="event"):
    """`kind` is dotted and from a fixed table of the agent's, such as `checkpoint.torn`."""

    kind: Id
    message: ShortText
    data: Data = {}


class Ended(Report, frozen=True, tag="ended"):
    """The attempt is over and its trainer's tree is dead: this releases the lease. `ending`: more closely, how."""

    outcome: Outcome
    exit_code: ExitCode | None = None
    step: Count = 0
    message: ShortText = ""
    ending: Ending = ""

    def __post_init__(self) -> None:
        if self.outcome is Outcome.LOST:
            raise ValueError("outcome lost: only the commander says that, of an attempt that went silent")


TelemetryReport = Step | Log | Gap | Transfer
StateReport = Started | Published | Pruned | Listed | Event | Ended
AnyReport = TelemetryReport | StateReport
