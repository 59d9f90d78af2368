"""Read-only connections for pages of the API: they see what is committed and hold up no writer."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite

from relaytui.commander.model.records import Attempt
from relaytui.commander.store import artifacts, checkpoints, history, room, telemetry
from relaytui.commander.store.attempts import BY_RUN, ORDER
from relaytui.commander.store.columns import record, select
from relaytui.commander.store.database import read_only
from relaytui.commander.store.room import PastFrame, Weight
from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.rows import CheckpointRow, EventRow, OrderRow

log = logging.getLogger(__name__)


class StoredFrame:
    """One frame as a page needs it."""

    __slots__ = ("data", "epoch", "first_line", "id", "last_line")

    def __init__(self, id: int, epoch: int, first_line: int, last_line: int, data: bytes) -> None:
        self.id = id
        self.epoch = epoch
        self.first_line = first_line
        self.last_line = last_line
        self.data = data


_FRAME = "f.id, s.epoch, f.first_line, f.last_line, f.data FROM frames f JOIN streams s ON s.id = f.stream"


class Reader:
    """One connection to each database, each in a thread of its own."""

    def __init__(self, relay: aiosqlite.Connection, telemetry: aiosqlite.Connection) -> None:
        self._relay = relay
        self._telemetry = telemetry

    @classmethod
    async def open(cls, relay: Path, telemetry: Path) -> Reader:
        first = await _connect(relay)
        try:
            return cls(first, await _connect(telemetry))
        except BaseException:
            await first.close()
            raise

    async def close(self) -> None:
        await self._relay.close()
        await self._telemetry.close()

    async def attempts(self, run_id: str) -> list[Attempt]:
        """Newest first, at most 1,000."""
        return [record(Attempt, row) for row in await _all(self._relay, BY_RUN, (run_id,))]

    async def order(self, run_id: str, order_id: int) -> OrderRow | None:
        rows = await _all(self._relay, ORDER, (run_id, order_id))
        return record(OrderRow, rows[0]) if rows else None

    async def checkpoints(self, run_id: str) -> list[CheckpointRow]:
        """Last published first, at most 1,000."""
        return [CheckpointRow(*row) for row in await _all(self._relay, checkpoints.BY_RUN, (run_id,))]

    async def artifacts(self, run_id: str | None) -> list[ArtifactRow]:
        """Last stored first, at most 5,000: of that run, or of all."""
        query, values = (artifacts.EVERYTHING, ()) if run_id is None else (artifacts.BY_RUN, (run_id,))
        return [artifacts.row_of(row) for row in await _all(self._relay, query, values)]

    async def artifact_bytes(self) -> int:
        """Of all artifacts, content that is shared counted once."""
        ((size,),) = await _all(self._relay, artifacts.HELD.format(""), ())
        return int(size)

    async def contents(self) -> list[tuple[str, int, bool]]:
        """(sha256, bytes, whether it is thought whole) of all that should be in the artifact store."""
        rows = await _all(self._relay, artifacts.CONTENTS, ())
        return [(sha256, size, bool(whole)) for sha256, size, whole in rows]

    async def events(self, *, after: int | None, before: int | None, run_id: str | None, limit: int) -> list[EventRow]:
        """Oldest first: those right after `after`, else the newest (before `before`)."""
        where, values = ["1"], list[Any]()
        for condition, value in (("id > ?", after), ("id < ?", before), ("run_id = ?", run_id)):
            if value is not None:
                where.append(condition)
                values.append(value)
        order = "ASC" if after is not None else "DESC"
        query = select("events", history.EVENT, f"WHERE {' AND '.join(where)} ORDER BY id {order} LIMIT ?")
        rows = [history.event_row(row) for row in await _all(self._relay, query, (*values, limit))]
        return rows if after is not None else rows[::-1]

    async def streams(self, run_id: str) -> dict[int, telemetry.Last]:
        """Last telemetry of each attempt, by epoch."""
        query = f"SELECT {telemetry.LAST} FROM streams WHERE run_id = ?"  # noqa: S608 - names are ours
        rows = [telemetry.last_row(row) for row in await _all(self._telemetry, query, (run_id,))]
        return {row.epoch: row for row in rows}

    async def epochs(self, run_id: str) -> list[tuple[int, int]]:
        """(epoch, stream id) of attempts with telemetry, newest first."""
        query = "SELECT epoch, id FROM streams WHERE run_id = ? ORDER BY epoch DESC"
        return [(row[0], row[1]) for row in await _all(self._telemetry, query, (run_id,))]

    async def line_frames(self, stream: int, before_line: int | None, limit: int) -> list[StoredFrame]:
        """Frames of one attempt that hold log lines, newest first; those with lines below `before_line` if given."""
        query = (
            f"SELECT {_FRAME} WHERE f.stream = ? AND f.last_line > 0 AND f.first_line < ? "
            "ORDER BY f.first_seq DESC LIMIT ?"
        )
        rows = await _all(self._telemetry, query, (stream, before_line or 2**62, limit))
        return [StoredFrame(*row) for row in rows]

    async def weights(self) -> list[Weight]:
        """What each attempt's telemetry weighs, by run and then the oldest attempt first."""
        rows = await _all(self._telemetry, f"{room.WEIGHTS} ORDER BY run_id, epoch", ())
        return [Weight(*row) for row in rows]

    async def aged(self, before: float) -> list[Weight]:
        """Attempts with frames from before then that are not drawn together yet."""
        return [Weight(*row) for row in await _all(self._telemetry, room.AGED, (before,))]

    async def oldest_frames(self, stream: int, limit: int) -> list[PastFrame]:
        return [PastFrame(*row) for row in await _all(self._telemetry, room.OLDEST, (stream, limit))]

    async def frames_after(self, run_id: str, after_id: int, limit: int) -> list[StoredFrame]:
        """Frames of a run in the order they were stored."""
        query = f"SELECT {_FRAME} WHERE s.run_id = ? AND f.id > ? ORDER BY f.id LIMIT ?"
        return [StoredFrame(*row) for row in await _all(self._telemetry, query, (run_id, after_id, limit))]


async def _connect(path: Path) -> aiosqlite.Connection:
    db = await aiosqlite.connect(read_only(path), uri=True, isolation_level=None)
    await db.execute("PRAGMA busy_timeout=5000")
    await db.execute("PRAGMA cache_size=-1024")
    return db


async def _all(db: aiosqlite.Connection, query: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """RelayError (`storage`, 503) where the file does not give them."""
    try:
        return [tuple(row) for row in await db.execute_fetchall(query, values)]
    except sqlite3.Error as error:
        log.error("what was asked for cannot be read: %s", error)
        raise RelayError(
            "storage", f"the commander's disk did not give it: {error}", "see the disk of the commander",
            exit_code=Exit.STATE, status=503,
        ) from None  # fmt: skip
