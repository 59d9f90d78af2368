"""Agents that are connected, and those that were: one row per incarnation."""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from relaytui.commander.model.records import PendingOrder, Worker
from relaytui.commander.services.board import Board
from relaytui.commander.services.feed import Feed
from relaytui.commander.store import attempts, history
from relaytui.commander.store.writer import Tx, Writer
from relaytui.wire.clock import Clock
from relaytui.wire.messages import Hello, Order
from relaytui.wire.rows import ORIGINAL
from relaytui.wire.text import clean

FORGET_AFTER = 3_600.0
KEPT_OFFLINE = 1_000


class Session(Protocol):
    """A connected agent, as the services see it."""

    def send_order(self, order: Order) -> None: ...

    def tell_watched(self, on: bool) -> None:
        """Whether anybody follows the lines of its run; said where that is news."""

    def replace_by_other(self) -> None:
        """The same incarnation connected again: this socket is the dead one."""

    def welcome(self, namesake: str) -> None:
        """Another agent of the same name has connected, on that host."""


class Workers:
    def __init__(self, writer: Writer, board: Board, feed: Feed, clock: Clock) -> None:
        self._writer = writer
        self._board = board
        self._feed = feed
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def is_connected(self, incarnation: str) -> bool:
        return incarnation in self._sessions

    async def connect(self, hello: Hello, session: Session) -> list[PendingOrder]:
        """Orders that are still open for this agent."""
        now = self._clock.wall()
        worker = Worker(
            hello.incarnation, hello.worker, clean(hello.host, 255), clean(hello.version, 64),
            clean(hello.capability.gpu, 128), hello.capability.gpus, now, now,
        )  # fmt: skip
        earlier = self._sessions.get(hello.incarnation)
        self._sessions[hello.incarnation] = session
        if earlier is not None:
            earlier.replace_by_other()

        # One row a name, as far as its earlier ones are gone and hold nothing.
        earlier_rows = [
            incarnation
            for incarnation, view in self._board.workers.items()
            if view.worker.worker == worker.worker
            and incarnation != worker.incarnation
            and incarnation not in self._sessions
            and not (view.polls or incarnation in self._board.holding)
        ]

        hosts = [host for host, _ in self.namesakes(hello)]

        def unit(tx: Tx) -> list[PendingOrder]:
            for incarnation in earlier_rows:
                history.forget_worker(tx, incarnation)
            history.save_worker(tx, worker)
            history.add_event(tx, now, "worker.connected", worker.worker, worker.host or "connected")
            if hosts:
                words = f"{len(hosts) + 1} agents of this name are connected, on {', '.join([worker.host, *hosts])}"
                history.add_event(tx, now, "worker.namesake", worker.worker, clean(words, 500))
            return attempts.open_orders(tx, worker.incarnation)

        return await self._writer.run(unit)

    def namesakes(self, hello: Hello) -> list[tuple[str, Session]]:
        """Host and connection of other agents that have this one's name. A name is a label: none is refused for it."""
        return [
            (view.worker.host or "an unknown host", self._sessions[incarnation])
            for incarnation, view in self._board.workers.items()
            if incarnation in self._sessions and incarnation != hello.incarnation and view.worker.worker == hello.worker
        ]

    async def disconnect(self, incarnation: str, session: Session, *, left: bool = False) -> None:
        """`left`: it said good-bye."""
        if self._sessions.get(incarnation) is not session:
            return  # another socket of this incarnation lives on
        del self._sessions[incarnation]
        view = self._board.workers.get(incarnation)
        if view is None:
            return
        view.connected = False
        view.waiting_for = None
        view.seen_at = now = self._clock.wall()
        worker = replace(view.worker, seen_at=now, goodbye=left)

        def unit(tx: Tx) -> None:
            history.save_worker(tx, worker)
            history.add_event(tx, now, "worker.disconnected", worker.worker, worker.host or "disconnected")

        await self._writer.run(unit)

    def called(self, tx: Tx, incarnation: str, worker: str, gpu: str, gpus: int) -> None:
        """An original worker, known by its calls."""
        now = self._clock.wall()
        history.save_worker(tx, Worker(incarnation, worker, "", ORIGINAL, gpu, gpus, now, now))

    def touch(self, incarnation: str) -> None:
        view = self._board.workers.get(incarnation)
        if view is not None:
            view.seen_at = self._clock.wall()
            self._feed.worker(incarnation)

    def waiting(self, incarnation: str, run_id: str | None) -> None:
        view = self._board.workers.get(incarnation)
        if view is not None and view.waiting_for != run_id:
            view.waiting_for = run_id
            if run_id is not None:
                view.gone = None
            self._feed.worker(incarnation)

    async def refused(self, incarnation: str, refused: bool) -> None:
        """Whether it was denied for good what it asked for: it goes then, and is not missing."""
        view = self._board.workers.get(incarnation)
        if view is not None and view.worker.refused != refused:
            worker = replace(view.worker, refused=refused)
            await self._writer.run(lambda tx: history.save_worker(tx, worker))

    def deliver(self, order: PendingOrder) -> None:
        """To its agent, if it is here; else it gets the order when it comes back."""
        session = self._sessions.get(order.incarnation)
        if session is not None:
            session.send_order(wire_order(order))

    def tell_watched(self, incarnation: str) -> None:
        """To an agent, whether anybody follows the lines of the run it holds."""
        session = self._sessions.get(incarnation)
        run_id = self._board.holding.get(incarnation)
        if session is not None and run_id is not None:
            session.tell_watched(self._feed.watched(run_id))

    def tell_all_watched(self) -> None:
        for incarnation in self._board.holding:
            self.tell_watched(incarnation)

    def notice_silence(self) -> None:
        """Original workers have no socket to close: that one stopped calling is seen by looking."""
        for incarnation, view in self._board.workers.items():
            if view.polls and view.here != self._board.is_here(view):
                view.here = not view.here
                self._feed.worker(incarnation)
                if (run_id := self._board.holding.get(incarnation)) is not None:
                    self._feed.run(run_id)

    @property
    def crowded(self) -> bool:
        """Whether so many came and went that tidying cannot wait."""
        return len(self._board.workers) - len(self._sessions) > 2 * KEPT_OFFLINE

    async def tidy(self) -> None:
        """Forgets agents that are long gone and hold nothing."""
        now = self._clock.wall()
        away = [
            view
            for incarnation, view in self._board.workers.items()
            if not view.connected and incarnation not in self._board.holding
        ]
        away.sort(key=lambda view: view.seen_at, reverse=True)
        gone = [view for n, view in enumerate(away) if n >= KEPT_OFFLINE or now - view.seen_at > FORGET_AFTER]
        if not gone:
            return

        def unit(tx: Tx) -> None:
            for view in gone:
                history.forget_worker(tx, view.worker.incarnation)

        await self._writer.run(unit)


def wire_order(order: PendingOrder) -> Order:
    return Order(order_id=order.id, run_id=order.run_id, epoch=order.epoch, kind=order.kind, by=order.by, why=order.why)
