"""The artifact store in one thread, on files and a database of its own: for tests that stop it at each system call."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from artifact_kit import sha
from commander_kit import FakeClock
from msgspec.structs import replace

from relaytui.commander.services import uploads
from relaytui.commander.services.artifacts import ArtifactStore
from relaytui.commander.services.board import Board
from relaytui.commander.services.leases import Ask, Given, Leases
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store import artifacts as rows
from relaytui.commander.store import content, runs
from relaytui.commander.store.changes import LeaseSaved, RunSaved
from relaytui.commander.store.database import RELAY, open_database
from relaytui.commander.store.writer import Tx, Writer
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow, Began, BeginUpload, FinishUpload

T = TypeVar("T")


class Inline(concurrent.futures.Executor):
    """What is given to a thread is done at once, here."""

    def submit(self, work: Callable[..., T], /, *given: Any, **named: Any) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            future.set_result(work(*given, **named))
        except BaseException as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        return future


class Bytes:
    """A request's body that has come already."""

    def __init__(self, data: bytes, at_once: int) -> None:
        self._left = data
        self._at_once = at_once

    async def readany(self) -> bytes:
        data, self._left = self._left[: self._at_once], self._left[self._at_once :]
        return data


class Books:
    """`run-1` is held by agent `one` at epoch 1. `late`: what an upload is, is said at its end."""

    def __init__(self, state: Path, keep: int = 3, *, late: bool = False) -> None:
        self.late = late
        self.clock = FakeClock()
        self.db = open_database(state / RELAY.file, RELAY)
        self.writer = Writer.__new__(Writer)
        self.writer._db, self.writer._name, self.writer.refusals, self.writer._closed = self.db, "relay", 0, False
        self.writer.run = self.run  # type: ignore[assignment]
        self.board = Board(self.clock)
        self.leases = Leases(self.writer, self.board, self.clock, b"k" * 32, 60.0)
        settings = CommanderSettings(state=state, artifact_reserve=0, artifact_keep_last_n=keep)
        self.store = ArtifactStore(settings, self.writer, None, self.leases, self.board, self.clock)  # type: ignore[arg-type]
        self.store.uploads._threads = Inline()  # type: ignore[assignment]
        uploads.PIECE = content.SYNC_EVERY = 2_000
        tx = Tx(self.db)
        self.store.load_in(tx)
        for run in runs.everything(tx):
            self.board.save_run(run)
        for lease in runs.all_leases(tx):
            self.board.save_lease(lease)
        self.given: Given | None = None

    async def run(self, unit: Callable[[Tx], T]) -> T:
        return self.do(unit)

    def do(self, unit: Callable[[Tx], T]) -> T:
        class Work:
            gather, item, size = None, None, 1

        Work.unit, Work.done = staticmethod(unit), staticmethod(lambda result, error: None)  # type: ignore[attr-defined]
        ((_, result, error),), changes = self.writer._commit([Work])  # type: ignore[list-item]
        if error is not None:
            raise error
        for change in changes:
            if isinstance(change, RunSaved):
                self.board.save_run(change.run)
            elif isinstance(change, LeaseSaved):
                self.board.save_lease(change.lease)
        return result  # type: ignore[no-any-return]

    def acquire(self) -> None:
        """Asked again, the same."""
        given = self.do(lambda tx: self.leases.acquire_in(tx, Ask("run-1", "one", "one", "q0", "sft")))
        assert isinstance(given, Given)
        self.given = given

    def begin(self, data: bytes, name: str) -> Began:
        assert self.given is not None
        ask = BeginUpload(
            "run-1", ArtifactKind.CHECKPOINT, name, sha(data), len(data), self.given.epoch, self.given.token,
        )  # fmt: skip
        if self.late:
            ask = replace(ask, sha256=None, size=2 * len(data), manifest_sha256=sha(name.encode()))
        return alone(self.store.begin(ask, None))

    def chunk(self, upload: str, offset: int, data: bytes) -> int:
        return alone(self.store.uploads.receive(upload, offset, len(data), Bytes(data, 1_000)))

    def finish(self, upload: str, data: bytes) -> ArtifactRow:
        return alone(self.store.finish(upload, told=FinishUpload(sha(data), len(data)) if self.late else None))

    def put(self, data: bytes, name: str) -> ArtifactRow:
        """From wherever it is."""
        begun = self.begin(data, name)
        if begun.artifact is not None:
            return begun.artifact
        if begun.offset < len(data):
            self.chunk(begun.upload, begun.offset, data[begun.offset :])
        return self.finish(begun.upload, data)

    def rows(self) -> list[ArtifactRow]:
        return [rows.row_of(row) for row in self.db.execute(rows.EVERYTHING)][::-1]


def alone(work: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own."""
    with asyncio.Runner() as runner:
        return runner.run(work)
