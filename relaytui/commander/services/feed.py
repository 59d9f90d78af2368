"""The live feed: who listens, and what goes to whom. Queues are bounded: a slow listener is dropped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from relaytui.commander.model.records import seen
from relaytui.commander.services.board import Board
from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.clock import Clock
from relaytui.wire.codec import encode
from relaytui.wire.feed import (
    ArtifactChanged,
    ArtifactGone,
    CheckpointChanged,
    EventAdded,
    Lines,
    LinesGap,
    Point,
    Points,
    RunChanged,
    ServerFeed,
    WorkerChanged,
    WorkerGone,
)
from relaytui.wire.rows import CheckpointRow, EventRow

QUEUE_BYTES = 8 << 20
QUEUE_LENGTH = 20_000
ROOM = 1 << 20
"""Bytes that may wait where more is offered than anybody could read at once; beyond, who offers waits."""
RUN_INTERVAL = 0.1  # seconds between two pictures of one run
WORKER_INTERVAL = 0.25


class Subscriber:
    """One listener's queue. `dropped` once it was too slow: it connects again and gets a new snapshot."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self.queue: deque[bytes] = deque()
        self.ready = asyncio.Event()
        self.dropped = False
        self.every = False
        self.watched: set[str] = set()
        self._size = 0
        self._drained = asyncio.Event()
        self._held: dict[str, list[tuple[int, int, bytes]]] = {}
        self._held_size = 0

    def offer(self, data: bytes) -> None:
        if self.dropped:
            return
        self._size += len(data)
        if self._size > QUEUE_BYTES or len(self.queue) >= QUEUE_LENGTH:
            self._drop()
        else:
            self.queue.append(data)
            self.ready.set()

    def _drop(self) -> None:
        self.dropped = True
        self.queue.clear()
        self._held.clear()
        self._drained.set()
        self._give_up()

    def take(self) -> bytes:
        data = self.queue.popleft()
        self._size -= len(data)
        if self._size <= ROOM:
            self._drained.set()
        return data

    async def room(self) -> None:
        """Until little waits, or the listener is dropped."""
        while self._size > ROOM and not self.dropped:
            self._drained.clear()
            await self._drained.wait()

    def wants(self, run_id: str) -> bool:
        return self.every or run_id in self.watched

    def offer_lines(self, run_id: str, epoch: int, n: int, data: bytes) -> None:
        """Lines from number `n` of an attempt; kept back while the run's backlog is being read."""
        held = self._held.get(run_id)
        if held is None:
            self.offer(data)
            return
        held.append((epoch, n, data))
        self._held_size += len(data)
        # Once released all of it has to fit into the queue, beside what waits there already.
        if self._held_size > QUEUE_BYTES // 2 or len(held) > QUEUE_LENGTH // 2:
            self._drop()

    def hold(self, run_id: str) -> None:
        self._held.setdefault(run_id, [])

    def release(self, run_id: str, epoch: int, n: int) -> None:
        """The backlog is out up to line `n` of `epoch`: what came since follows, once."""
        for held_epoch, held_n, data in self._held.pop(run_id, []):
            self._held_size -= len(data)
            if (held_epoch, held_n) > (epoch, n):
                self.offer(data)


class Feed:
    """Turns changes of the board into feed messages. Everything here runs in the loop."""

    def __init__(self, board: Board, clock: Clock) -> None:
        self._board = board
        self._clock = clock
        self._subscribers: set[Subscriber] = set()
        self._watchers: dict[str, int] = {}
        self._every = 0
        self.on_watch: Callable[[], None] = lambda: None
        """Called where `watched` may answer otherwise than before."""
        self._pending: set[tuple[str, str]] = set()
        self._sent: dict[tuple[str, str], float] = {}

    # -- listeners -----------------------------------------------------------------------------------------------

    def subscribe(self, give_up: Callable[[], None]) -> Subscriber:
        """`give_up` is called when the listener is too slow: its sending side may be stuck, so it is cut off."""
        subscriber = Subscriber(give_up)
        self._subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self.watch(subscriber, ())
        self._subscribers.discard(subscriber)
        if not self._subscribers:
            self._sent.clear()

    def watch(self, subscriber: Subscriber, runs: Iterable[str]) -> None:
        """The runs whose lines and points the subscriber wants from now on; `*` is all."""
        wanted = set(runs)
        for run_id in subscriber.watched:
            self._watchers[run_id] -= 1
            if not self._watchers[run_id]:
                del self._watchers[run_id]
        self._every -= subscriber.every
        subscriber.every = "*" in wanted
        subscriber.watched = wanted - {"*"}
        self._every += subscriber.every
        for run_id in subscriber.watched:
            self._watchers[run_id] = self._watchers.get(run_id, 0) + 1
        self.on_watch()

    def watched(self, run_id: str) -> bool:
        """Whether anybody follows its lines."""
        return self._every > 0 or run_id in self._watchers

    # -- what happened -------------------------------------------------------------------------------------------

    def lines(self, run_id: str, epoch: int, n: int, t: float, lines: list[str]) -> None:
        self._to_watchers(run_id, epoch, n, Lines(run_id=run_id, epoch=epoch, n=n, t=t, lines=lines))

    def lines_gap(self, run_id: str, epoch: int, n: int, count: int) -> None:
        self._to_watchers(run_id, epoch, n, LinesGap(run_id=run_id, epoch=epoch, n=n, count=count))

    def points(self, run_id: str, metric: str, points: list[Point]) -> None:
        data = encode(Points(run_id=run_id, metric=metric, points=points))
        for subscriber in self._subscribers:
            if subscriber.wants(run_id):
                subscriber.offer(data)

    def _to_watchers(self, run_id: str, epoch: int, n: int, message: Lines | LinesGap) -> None:
        data = encode(message)
        for subscriber in self._subscribers:
            if subscriber.wants(run_id):
                subscriber.offer_lines(run_id, epoch, n, data)

    def run(self, run_id: str) -> None:
        """The run changed: shown at once when it was quiet, at most ten times a second when not."""
        self._soon("run", run_id, RUN_INTERVAL, self._show_run)

    def worker(self, incarnation: str) -> None:
        self._soon("worker", incarnation, WORKER_INTERVAL, self._show_worker)

    def event(self, row: EventRow) -> None:
        self._broadcast(EventAdded(row))

    def checkpoint(self, row: CheckpointRow) -> None:
        self._broadcast(CheckpointChanged(row))

    def artifact(self, row: ArtifactRow) -> None:
        self._broadcast(ArtifactChanged(row))

    def artifact_gone(self, row: ArtifactRow) -> None:
        self._broadcast(ArtifactGone(run_id=row.run_id, id=row.id))

    def worker_gone(self, incarnation: str) -> None:
        self._sent.pop(("worker", incarnation), None)
        self._broadcast(WorkerGone(seen(incarnation)))

    def _broadcast(self, message: ServerFeed) -> None:
        if self._subscribers:
            data = encode(message)
            for subscriber in self._subscribers:
                subscriber.offer(data)

    def _soon(self, kind: str, name: str, interval: float, show: Callable[[str], None]) -> None:
        if not self._subscribers:
            return
        key = (kind, name)
        if key in self._pending:
            return
        self._pending.add(key)
        loop = asyncio.get_running_loop()
        due = self._sent.get(key, 0.0) + interval

        def fire() -> None:
            self._pending.discard(key)
            self._sent[key] = loop.time()
            show(name)

        if due <= loop.time():
            loop.call_soon(fire)
        else:
            loop.call_at(due, fire)

    def _show_run(self, run_id: str) -> None:
        view = self._board.runs.get(run_id)
        if view is not None:
            self._broadcast(RunChanged(now=self._clock.wall(), run=self._board.run_row(view)))

    def _show_worker(self, incarnation: str) -> None:
        view = self._board.workers.get(incarnation)
        if view is not None:
            self._broadcast(WorkerChanged(now=self._clock.wall(), worker=self._board.worker_row(view)))
