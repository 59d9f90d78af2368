"""The client's picture of a commander: what the feed told, kept in plain memory. Pure; no I/O.

Every part has a counter in `versions` that grows when the part changes, so that views repaint only then.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relaytui.client.curve import Curve
from relaytui.client.link import Link, LinkState
from relaytui.client.logbuffer import LogBuffer
from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.feed import (
    ArtifactChanged,
    ArtifactGone,
    Beat,
    CheckpointChanged,
    EventAdded,
    Lines,
    LinesGap,
    Points,
    RunChanged,
    ServerFeed,
    Snapshot,
    WorkerChanged,
    WorkerGone,
)
from relaytui.wire.rows import AttemptRow, CheckpointRow, EventRow, RunRow, WorkerRow

if TYPE_CHECKING:
    from relaytui.client.answers import RunDetail

MAX_EVENTS = 2_000
MOST_EVENTS = 10_000
"""Kept of those that came, and of those that were asked for besides."""
MAX_LOGS = 8
"""Runs whose logs and curves are kept; the one looked at longest ago gives way."""
MAX_CHANGES = 100
"""What the feed said last of one run's checkpoints and artifacts: as much as may come while its details are read."""

Change = CheckpointChanged | ArtifactChanged | ArtifactGone


@dataclass
class Versions:
    link: int = 0
    runs: int = 0
    workers: int = 0
    events: int = 0


@dataclass
class RunPicture:
    """What is known of one run beyond its row: filled when it is opened, then by the feed."""

    log: LogBuffer = field(default_factory=LogBuffer)
    curves: dict[str, Curve] = field(default_factory=dict)
    attempts: dict[int, AttemptRow] = field(default_factory=dict)
    checkpoints: dict[str, CheckpointRow] = field(default_factory=dict)
    artifacts: dict[int, ArtifactRow] = field(default_factory=dict)
    version: int = 0  # of attempts, checkpoints and artifacts
    loaded: bool = False
    changes: deque[tuple[float, Change]] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    """With when they came."""

    def curve(self, metric: str) -> Curve:
        return self.curves.setdefault(metric, Curve())

    def take(self, change: Change) -> None:
        match change:
            case CheckpointChanged(row):
                self.checkpoints[row.name] = row
            case ArtifactChanged(artifact):
                self.artifacts[artifact.id] = artifact
            case ArtifactGone():
                self.artifacts.pop(change.id, None)
        self.version += 1


class Mirror:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.link = Link(LinkState.CONNECTING, clock())
        self.versions = Versions()
        self.loaded = False
        self.commander = ""
        self.version = ""
        self.lease_seconds = 0.0
        self.no_grants_until: float | None = None
        self.runs: dict[str, RunRow] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.events: deque[EventRow] = deque()
        self.events_before = 0
        """How many older ones the commander has."""
        self._events_room = MAX_EVENTS
        self._pictures: dict[str, RunPicture] = {}
        self._now = 0.0
        self._now_at = clock()

    # -- time -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The commander's wall clock as far as this client can tell; ages are taken from it."""
        return self._now + (self.clock() - self._now_at)

    @property
    def heard_ago(self) -> float:
        """Seconds since the picture was last known to be current; 0 while the link is live."""
        return max(0.0, self.clock() - self.link.since) if self.link.state is not LinkState.LIVE else 0.0

    def _tell_time(self, now: float) -> None:
        # A message that waited in a socket's buffer says an earlier time: the picture's clock never runs backwards
        # by that, but follows a commander whose clock was set.
        if now >= self.now or self.now - now > 5.0:
            self._now, self._now_at = now, self.clock()

    # -- feeding --------------------------------------------------------------------------------------------------

    def set_link(self, link: Link) -> None:
        self.link = link
        self.versions.link += 1

    def apply(self, message: ServerFeed) -> None:
        match message:
            case Lines():
                self.picture(message.run_id).log.add(message.epoch, message.n, message.t, message.lines)
            case Points():
                self.picture(message.run_id).curve(message.metric).add(message.points)
            case RunChanged():
                self._tell_time(message.now)
                self.runs[message.run.run_id] = message.run
                self.versions.runs += 1
            case Beat():
                self._tell_time(message.now)
            case EventAdded():
                self._add_events([message.event])
            case WorkerChanged():
                self._tell_time(message.now)
                self.workers[message.worker.incarnation] = message.worker
                self.versions.workers += 1
            case WorkerGone():
                if self.workers.pop(message.incarnation, None) is not None:
                    self.versions.workers += 1
            case CheckpointChanged(checkpoint):
                self._take(checkpoint.run_id, message)
            case ArtifactChanged(artifact):
                self._take(artifact.run_id, message)
            case ArtifactGone():
                self._take(message.run_id, message)
            case LinesGap():
                self.picture(message.run_id).log.add_gap(message.epoch, message.n, message.count)
            case Snapshot():
                self._start_over(message)

    def _start_over(self, snapshot: Snapshot) -> None:
        if self.commander and snapshot.commander != self.commander:
            # Another history: what was kept of runs belongs to other attempts with the same numbers.
            self._pictures.clear()
            self.events.clear()
        self.commander = snapshot.commander
        self.version = snapshot.version
        self.lease_seconds = snapshot.lease_seconds
        self.no_grants_until = snapshot.no_grants_until
        self._now, self._now_at = snapshot.now, self.clock()
        self.runs = {row.run_id: row for row in snapshot.runs}
        self.workers = {row.incarnation: row for row in snapshot.workers}
        self._meet(snapshot)
        self.loaded = True
        self.versions.runs += 1
        self.versions.workers += 1

    def _meet(self, snapshot: Snapshot) -> None:
        """What is here goes on with what the snapshot has; where some are missing between, that begins anew."""
        first = snapshot.events[0].id if snapshot.events else 0
        if self.events and self.events[-1].id + 1 < first:
            self.events.clear()
            self.versions.events += 1
        self._add_events(snapshot.events)
        self.events_before = max(0, snapshot.events_before - sum(event.id < first for event in self.events))

    def make_room(self, count: int) -> None:
        """For so many older events that are asked for: what comes meanwhile pushes none out that they go on to."""
        self._events_room = max(self._events_room, len(self.events) + count)

    def add_older(self, events: Sequence[EventRow], before: int, all_of_them: bool) -> bool:
        """Those right before the one of id `before`, oldest first. `all_of_them`: the commander has none older. False
        where that one is not the oldest here any more, or none of them is older: nothing is taken then."""
        older = [event for event in events if event.id < before]
        if not self.events or self.events[0].id != before or not (older or all_of_them):
            return False
        self.events.extendleft(reversed(older))
        self._events_room = max(self._events_room, len(self.events))
        self.events_before = 0 if all_of_them else max(1, self.events_before - len(older))
        self.versions.events += 1
        return True

    def _add_events(self, events: Iterable[EventRow]) -> None:
        newest = self.events[-1].id if self.events else -1
        for event in events:
            if event.id > newest:
                self.events.append(event)
                newest = event.id
                self.versions.events += 1
        while len(self.events) > self._events_room:
            self.events.popleft()
            self.events_before += 1

    # -- one run --------------------------------------------------------------------------------------------------

    def picture(self, run_id: str) -> RunPicture:
        """The run's details, begun where there are none; the one looked at longest ago gives way."""
        found = self._pictures.pop(run_id, None) or RunPicture()
        self._pictures[run_id] = found
        while len(self._pictures) > MAX_LOGS:
            del self._pictures[next(iter(self._pictures))]
        return found

    def _take(self, run_id: str, change: Change) -> None:
        picture = self._pictures.get(run_id)  # a run that was never opened is read when it is
        if picture is not None:
            picture.changes.append((self.clock(), change))
            picture.take(change)

    def load_detail(self, detail: RunDetail, asked: float = math.inf) -> None:
        """What the API says of one run, whole; the feed goes on from there. `asked`: when it was, by `clock`: what the
        feed said since may be newer than the answer, and holds."""
        picture = self.picture(detail.run.run_id)
        picture.attempts = {row.epoch: row for row in detail.attempts}
        picture.checkpoints = {row.name: row for row in detail.checkpoints}
        picture.artifacts = {row.id: row for row in detail.artifacts}
        for _, change in [one for one in picture.changes if one[0] >= asked]:
            picture.take(change)
        picture.loaded = True
        picture.version += 1
        self._tell_time(detail.now)
        known = self.runs.get(detail.run.run_id)
        if known is None or known.updated_at <= detail.run.updated_at:
            self.runs[detail.run.run_id] = detail.run
            self.versions.runs += 1
