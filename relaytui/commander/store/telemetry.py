"""Frames of telemetry as blobs, and the last values of each attempt. All of telemetry.db's SQL that writes."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from relaytui.commander.store.columns import record
from relaytui.commander.store.room import FRAME_COST
from relaytui.commander.store.writer import Tx
from relaytui.wire.numbers import Number
from relaytui.wire.rows import TransferRow


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
    transfers: dict[str, TransferRow] = {}  # the newest word on each kind


class Frame(Struct, frozen=True):
    """Reports `first_seq`..`last_seq` as a JSON array."""

    first_seq: int
    last_seq: int
    first_line: int
    last_line: int
    at: float
    data: bytes


LAST = "run_id, epoch, last_seq, lines, reported_at, step, total, rate, metrics, first_loss, transfers"
_GET = f"SELECT id, {LAST} FROM streams WHERE run_id = ? AND epoch = ?"  # noqa: S608 - names are ours
_ALL = f"SELECT {LAST} FROM streams ORDER BY run_id, epoch"  # noqa: S608 - names are ours
_INSERT = "INSERT INTO frames (stream, first_seq, last_seq, first_line, last_line, at, data) VALUES "
_INSERTS = [(count, _INSERT + ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count)) for count in (16, 4, 1)]
_WHERE = "SELECT id, last_seq FROM streams WHERE id IN (SELECT value FROM json_each(?))"
_UPDATE = (
    "UPDATE streams SET last_seq = value ->> 1, lines = value ->> 2, reported_at = value ->> 3, step = value ->> 4, "
    "total = value ->> 5, rate = value ->> 6, metrics = value -> 7, first_loss = value -> 8, transfers = value -> 9, "
    "bytes = bytes + (value ->> 10) FROM json_each(?) WHERE streams.id = value ->> 0"
)


class OutOfStepError(Exception):
    """The stream is not where the frame says: an earlier frame of it was not stored."""


def last_row(row: tuple[Any, ...]) -> Last:
    # Strictly, unlike columns: leniently read, the name "nan" is a float, which JSON would then store as null.
    metrics = convert(orjson.loads(row[8]), dict[str, Number])
    first_loss = None if row[9] is None else convert(orjson.loads(row[9]), Number | None)
    transfers = convert(orjson.loads(row[10]), dict[str, TransferRow])
    last = record(Last, (*row[:8], {}, None, {}))
    return replace(last, metrics=metrics, first_loss=first_loss, transfers=transfers)


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


def add_frames(tx: Tx, added: list[tuple[int, Frame, Last]]) -> list[BaseException | None]:
    """Frames of any streams with the values after each, in few statements.

    OutOfStepError for a frame whose stream is not right before it.
    """
    asked = orjson.dumps(list({stream for stream, _, _ in added})).decode()
    at: dict[int, int] = dict(tx.execute(_WHERE, (asked,)).fetchall())
    results: list[BaseException | None] = []
    rows: list[Any] = []
    lasts: dict[int, Last] = {}
    weights = dict[int, int]()
    for stream, frame, last in added:
        if at.get(stream) != frame.first_seq - 1:
            results.append(OutOfStepError(f"{last.run_id} epoch {last.epoch} is at {at.get(stream)}"))
            continue
        at[stream] = frame.last_seq
        lasts[stream] = last
        weights[stream] = weights.get(stream, 0) + len(frame.data) + FRAME_COST
        rows += (
            stream, frame.first_seq, frame.last_seq, frame.first_line, frame.last_line, frame.at, frame.data
        )  # fmt: skip
        results.append(None)
    start = 0
    for count, insert in _INSERTS:
        while len(rows) - start >= 7 * count:
            tx.execute(insert, rows[start : start + 7 * count])
            start += 7 * count
    values = [
        (stream, last.last_seq, last.lines, last.reported_at, last.step, last.total, last.rate, last.metrics,
         last.first_loss, to_builtins(last.transfers), weights[stream])
        for stream, last in lasts.items()
    ]  # fmt: skip
    tx.execute(_UPDATE, (orjson.dumps(values).decode(),))
    return results
