"""One writing connection in a thread of its own: group commit without a timer.

Whatever waits goes into the next transaction, so the time of one fsync is the window that fills the next batch. A unit
that fails is undone alone: each has a savepoint, or the transaction to itself. Answers go out after COMMIT, with one
wake-up of the loop a batch. What is to come first (renewals) waits for one batch at most, however much else waits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from relaytui.commander.store.changes import Change
from relaytui.wire.errors import Exit, RelayError

T = TypeVar("T")
Item = TypeVar("Item")
log = logging.getLogger(__name__)

MAX_BATCH = 2_000
"""Units in one transaction, at most: bounds how long a renewal waits behind others."""
MAX_BATCH_BYTES = 16 << 20
MAX_WAITING = 32 << 20
"""Bytes that may wait for the disk, of all connections together. Who would add to them waits, and nothing is lost."""
UNIT = 1 << 10
"""What a unit counts that does not say how large it is."""
MAX_FIRST = 16_384
"""Items that may wait ahead of all others, whatever else waits."""
CLOSE_WITHIN = 0.5
"""Seconds in which the last units are committed; what is left then was acknowledged to nobody, and is given up."""


class Tx:
    """A transaction as units see it: SQL, and a record of what changed."""

    __slots__ = ("changes", "execute")

    def __init__(self, db: sqlite3.Connection) -> None:
        self.execute = db.execute
        self.changes: list[Change] = []

    def mark(self) -> int:
        """For `undo`, which may follow in the same unit."""
        self.execute("SAVEPOINT mark")
        return len(self.changes)

    def undo(self, mark: int) -> None:
        """Whatever the unit did since."""
        self.execute("ROLLBACK TO mark")
        del self.changes[mark:]


Unit = Callable[[Tx], T]
Gather = Callable[[Tx, list[Item]], list[T | BaseException]]
"""Does for many items at once what would take a unit each; one result or error an item, in order."""
Done = Callable[[Any, BaseException | None], None]
_Answer = tuple[Done, Any, BaseException | None]


class _Work(NamedTuple):
    unit: Unit[Any] | None
    gather: Gather[Any, Any] | None
    item: Any
    done: Done
    size: int
    first: bool = False


_LOOK = object()
"""In the queue: something waits among the first."""


class Writer:
    """Runs units of work in order. `on_commit` gets the changes of each batch, in the loop, before its answers."""

    def __init__(
        self, db: sqlite3.Connection, name: str, on_commit: Callable[[list[Change]], None] = lambda changes: None
    ) -> None:
        self._db = db
        self._name = name
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Work | object | None] = queue.SimpleQueue()
        self._first: deque[_Work] = deque()
        self._coming: list[_Work] = []
        self._closed = False
        self._close_by = 0.0
        self._waiting = 0
        self._drained = asyncio.Event()
        self.refusals = 0
        """How often the disk did not take something: full, failing, read-only."""
        self._thread = threading.Thread(target=self._work, name=f"relay-{name}", daemon=True)
        self._thread.start()

    def submit(self, unit: Unit[T], done: Done, size: int = UNIT) -> None:
        """`done(result, None)` or `done(None, error)` is called in the loop, after the commit or the failure."""
        self._put(_Work(unit, None, None, done, size))

    def submit_to(
        self, gather: Gather[Item, Any], item: Item, done: Done, size: int = UNIT, *, first: bool = False
    ) -> None:
        """As `submit`, with whatever else waits for the same `gather` in one go: few statements for many items.
        `first`: ahead of all that is not being written yet.

        Each statement lets go of the interpreter lock and has to win it back from the loop, so under load their
        number counts more than their work.
        """
        self._put(_Work(None, gather, item, done, size, first))

    def _put(self, work: _Work) -> None:
        if self._closed:
            raise _stopping()
        self._waiting += work.size
        if work.first:
            self._coming.append(work)
            if len(self._coming) == 1:
                self._loop.call_soon(self._hand_over)
        else:
            self._queue.put(work)

    def _hand_over(self) -> None:
        """What is to come first, of one turn of the loop: one wake-up of the thread, one transaction at best."""
        if self._coming:
            self._first += self._coming
            self._coming.clear()
            self._queue.put(_LOOK)

    @property
    def takes_first(self) -> bool:
        """Whether what is to come first may be added although the writer is full."""
        return len(self._first) + len(self._coming) < MAX_FIRST

    @property
    def waiting(self) -> int:
        """Bytes on their way to the disk."""
        return self._waiting

    @property
    def full(self) -> bool:
        return self._waiting >= MAX_WAITING and not self._closed

    async def room(self) -> None:
        """Until something may be added; each who waits looks again, so that they come in one by one."""
        while self.full:
            self._drained.clear()
            await self._drained.wait()

    async def run(self, unit: Unit[T]) -> T:
        """The unit's result, committed. Cancelling the wait does not undo the unit."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.submit(unit, done)
        return await future

    async def close(self) -> None:
        """Commits what was submitted, as far as that takes no longer than `CLOSE_WITHIN`; then closes the database."""
        if not self._closed:
            self._closed = True
            self._close_by = time.monotonic() + CLOSE_WITHIN
            self._hand_over()
            self._queue.put(None)
            self._drained.set()
        await asyncio.to_thread(self._thread.join)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        take, more = self._queue.get, self._queue.get_nowait
        last = False
        while not last:
            item = take()
            batch = [self._first.popleft() for _ in range(min(len(self._first), MAX_BATCH))]
            size = sum(work.size for work in batch)
            try:
                while True:
                    if item is None:
                        last = True
                        break
                    if isinstance(item, _Work):
                        batch.append(item)
                        size += item.size
                    if len(batch) >= MAX_BATCH or size >= MAX_BATCH_BYTES:
                        break
                    item = more()
            except queue.Empty:
                pass
            if last:
                batch += self._first
                self._first.clear()
            if not batch:
                continue
            size = sum(work.size for work in batch)
            answers, changes = (_refused(batch), list[Change]()) if self._late else self._commit(batch)
            try:
                self._loop.call_soon_threadsafe(self._deliver, answers, changes, size)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                break
        self._db.close()

    @property
    def _late(self) -> bool:
        """Whether it is closing and has had its time."""
        return self._closed and time.monotonic() > self._close_by

    def _commit(self, batch: list[_Work]) -> tuple[list[_Answer], list[Change]]:
        tx = Tx(self._db)
        answers: list[_Answer] = []
        jobs = list(_jobs(batch))
        try:
            tx.execute("BEGIN IMMEDIATE")
            for body, works in jobs:
                if self._late:
                    answers.extend(_refused(works))
                    continue
                self._guarded(tx, body, works, answers, alone=len(jobs) == 1)
            if self._db.in_transaction:
                tx.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - nothing of this batch is stored, and each waiter is told
            return self._give_up(batch, error), []
        return answers, tx.changes

    def _guarded(
        self, tx: Tx, body: Unit[list[Any]], works: list[_Work], answers: list[_Answer], *, alone: bool
    ) -> None:
        """Runs `body`; what fails is undone to where it began."""
        mark = len(tx.changes)
        if not alone:
            tx.execute("SAVEPOINT unit")
        try:
            results = body(tx)
        except Exception as error:
            if not self._db.in_transaction:
                raise  # SQLite gave up the whole transaction: disk full, I/O error, out of memory
            if isinstance(error, sqlite3.OperationalError):
                self.refusals += 1
            tx.execute("ROLLBACK" if alone else "ROLLBACK TO unit")
            del tx.changes[mark:]
            answers.extend((work.done, None, error) for work in works)
        else:
            for work, result in zip(works, results, strict=True):
                failed = isinstance(result, BaseException)
                answers.append((work.done, None, result) if failed else (work.done, result, None))
        if not alone:
            tx.execute("RELEASE unit")

    def _give_up(self, batch: list[_Work], error: Exception) -> list[_Answer]:
        self.refusals += 1
        log.error("%s.db: a transaction failed: %s", self._name, error)
        if self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error as worse:
                log.error("%s.db: rollback failed: %s", self._name, worse)
        failure = RelayError(
            "storage", f"{self._name}.db did not take it: {error}", "see the disk of the commander",
            exit_code=Exit.STATE, status=503,
        )  # fmt: skip
        return [(work.done, None, failure) for work in batch]

    # -- in the loop ---------------------------------------------------------------------------------------------

    def _deliver(self, answers: list[_Answer], changes: list[Change], size: int) -> None:
        self._waiting -= size
        self._drained.set()
        if changes:
            try:
                self._on_commit(changes)
            except Exception:
                log.exception("the live picture could not take a change")
        for done, result, error in answers:
            try:
                done(result, error)
            except Exception:
                log.exception("an answer could not be delivered")


def _jobs(batch: list[_Work]) -> Iterator[tuple[Unit[list[Any]], list[_Work]]]:
    """What is done or undone as one: a unit, or all in a row that wait for the same `gather`."""
    for gather, group in itertools.groupby(batch, key=lambda work: work.gather):
        if gather is None:
            for work in group:
                assert work.unit is not None
                yield lambda tx, unit=work.unit: [unit(tx)], [work]  # type: ignore[misc]
        else:
            works = list(group)
            items = [work.item for work in works]
            yield lambda tx, gather=gather, items=items: gather(tx, items), works  # type: ignore[misc]


def _refused(batch: list[_Work]) -> list[_Answer]:
    return [(work.done, None, _stopping()) for work in batch]


def _stopping() -> RelayError:
    return RelayError("stopping", "the commander is stopping", "try again in a moment", status=503)
