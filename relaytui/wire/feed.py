"""Messages on `/ws/feed`: a snapshot, then what changes. Everything the dashboard shows comes this way.

A client that loses the socket connects again and gets a new snapshot. Log lines and steps come only for runs that
it watches; after `watch` the newest lines come first (`backlog`), then live ones. (epoch, n) tells a line from
another, so a client that has seen a line before drops it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.ids import IdOrAll
from relaytui.wire.numbers import Number
from relaytui.wire.rows import CheckpointRow, EventRow, RunRow, WorkerRow

Point = tuple[int, int, Number]
"""(epoch, step, value)"""


class FeedMessage(Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


# -- commander to client -----------------------------------------------------------------------------------------


class Snapshot(FeedMessage, frozen=True, tag="snapshot"):
    now: float
    commander: str
    version: str
    lease_seconds: float
    runs: list[RunRow]
    workers: list[WorkerRow]
    events: list[EventRow]  # the newest 200, oldest first
    events_before: int = 0  # how many older ones there are
    no_grants_until: float | None = None  # after a restore: whoever held a run has until then to come back


class RunChanged(FeedMessage, frozen=True, tag="run"):
    now: float
    run: RunRow


class WorkerChanged(FeedMessage, frozen=True, tag="worker"):
    now: float
    worker: WorkerRow


class WorkerGone(FeedMessage, frozen=True, tag="worker_gone"):
    incarnation: str


class EventAdded(FeedMessage, frozen=True, tag="event"):
    event: EventRow


class CheckpointChanged(FeedMessage, frozen=True, tag="checkpoint"):
    checkpoint: CheckpointRow


class ArtifactChanged(FeedMessage, frozen=True, tag="artifact"):
    artifact: ArtifactRow


class ArtifactGone(FeedMessage, frozen=True, tag="artifact_gone"):
    run_id: str
    id: int


class Lines(FeedMessage, frozen=True, tag="lines"):
    """Log lines of a watched run: `n` numbers the first within the attempt."""

    run_id: str
    epoch: int
    n: int
    t: float
    lines: list[str]
    backlog: bool = False


class LinesGap(FeedMessage, frozen=True, tag="lines_gap"):
    run_id: str
    epoch: int
    n: int
    count: int


class Points(FeedMessage, frozen=True, tag="points"):
    """New points of the `loss` curve of a watched run."""

    run_id: str
    metric: str
    points: list[Point]


class Beat(FeedMessage, frozen=True, tag="beat"):
    """Sent every second or so when nothing else was: the picture is current."""

    now: float


ServerFeed = (
    Snapshot
    | RunChanged
    | WorkerChanged
    | WorkerGone
    | EventAdded
    | CheckpointChanged
    | ArtifactChanged
    | ArtifactGone
    | Lines
    | LinesGap
    | Points
    | Beat
)


# -- client to commander -----------------------------------------------------------------------------------------


class Watch(FeedMessage, frozen=True, tag="watch"):
    """The runs whose lines and points this client wants from now on, instead of those before; `["*"]` is all."""

    runs: Annotated[list[IdOrAll], Meta(max_length=1_000)]
    backlog: Annotated[int, Meta(ge=0, le=10_000)] = 500


ClientFeed = Watch
