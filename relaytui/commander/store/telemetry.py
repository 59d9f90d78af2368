"""Frames of telemetry as blobs, and the last values of each attempt. All of telemetry.db's SQL that writes."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct

from relaytui.commander.store.columns import record
from relaytui.commander.store.writer import Tx
from relaytui.wire.numbers import Number


class Last(Struct, frozen=True):
    """How far an attempt's telemetry came, and its last values."""

    run_id: str
    epoch: int
    last_seq: int
    lines: int  # number of the last log line
    reported_at: float
    step: int | None = None
    total: int | None = None
    rate: float | None = None
    metrics: dict[str, Number] = {}
    first_loss: Number | None = None


class Frame(Struct, frozen=True):
    """Reports `first_seq`..`last_seq` as a JSON array."""

    first_seq: int
    last_seq: int
    first_line: int
    last_line: int
    at: float
    data: bytes


LAST = "run_id, epoch, last_seq, lines, reported_at, step, total, rate, metrics, first_loss"
_GET = f"SELECT id, {LAST} FROM streams WHERE run_id = ? AND epoch = ?"  # noqa: S608 - names are ours
_ALL = f"SELECT {LAST} FROM streams ORDER BY run_id, epoch"  # noqa: S608 - names are ours
_INSERT_FRAME = (
    "INSERT INTO frames (stream, first_seq, last_seq, first_line, last_line, at, data) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = (
    "UPDATE streams SET last_seq = ?, lines = ?, reported_at = ?, step = ?, total = ?, rate = ?, metrics = ?, "
    "first_loss = ? WHERE id = ? AND last_seq = ?"
)


class OutOfStepError(Exception):
    """The stream is not where the frame says: an earlier frame of it was not stored."""


def last_row(row: tuple[Any, ...]) -> Last:
    metrics = orjson.loads(row[8])
    first_loss = None if row[9] is None else orjson.loads(row[9])
    return record(Last, (*row[:8], metrics, first_loss))


def open_stream(tx: Tx, run_id: str, epoch: int, now: float) -> tuple[int, Last]:
    """(stream id, last values), made where they are missing."""
    row = tx.execute(_GET, (run_id, epoch)).fetchone()
    if row is not None:
        return row[0], last_row(row[1:])
    cursor = tx.execute(
        "INSERT INTO streams (run_id, epoch, last_seq, lines, metrics, reported_at) VALUES (?, ?, 0, 0, '{}', ?)",
        (run_id, epoch, now),
    )
    return cursor.lastrowid or 0, Last(run_id, epoch, 0, 0, now)


def all_streams(tx: Tx) -> list[Last]:
    return [last_row(row) for row in tx.execute(_ALL)]


def add_frame(tx: Tx, stream: int, frame: Frame, last: Last) -> None:
    """The frame and the values after it; OutOfStepError where the stream is not right before it."""
    moved = tx.execute(
        _UPDATE,
        (last.last_seq, last.lines, last.reported_at, last.step, last.total, last.rate,
         orjson.dumps(last.metrics).decode(),
         None if last.first_loss is None else orjson.dumps(last.first_loss).decode(),
         stream, frame.first_seq - 1),
    )  # fmt: skip
    if moved.rowcount != 1:
        raise OutOfStepError
    tx.execute(
        _INSERT_FRAME,
        (stream, frame.first_seq, frame.last_seq, frame.first_line, frame.last_line, frame.at, frame.data),
    )
