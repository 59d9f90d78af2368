"""Events (append-only) and the workers that were ever seen."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec.structs import astuple

from relaytui.commander.model.records import Worker
from relaytui.commander.store.changes import EventSaved, WorkerForgotten, WorkerSaved
from relaytui.commander.store.columns import columns, record, select, upsert
from relaytui.commander.store.writer import Tx
from relaytui.wire.rows import EventRow
from relaytui.wire.text import sayable

MAX_SHOWN = 10_000
"""Bytes of one event's data that leave the database: room for all that may be filed today. There are larger ones."""
EVENT = [
    f'CASE WHEN length(CAST(data AS BLOB)) > {MAX_SHOWN} THEN \'{{"…": "too large to show"}}\' ELSE data END AS data'
    if name == "data"
    else name
    for name in columns(EventRow)
]
_NEWEST = select("events", EVENT, "ORDER BY id DESC LIMIT ?")

_WORKER = columns(Worker)
_WORKERS = select("workers", _WORKER)
_SAVE_WORKER = upsert("workers", _WORKER, ["incarnation"])


WHOLE_NUMBERS = frozenset({"epoch_floor", "restored_at"})
"""Keys of `meta`."""


def event_row(row: tuple[Any, ...]) -> EventRow:
    return record(EventRow, (*row[:7], orjson.loads(row[7])))


def add_event(
    tx: Tx,
    at: float,
    kind: str,
    actor: str,
    message: str,
    run_id: str | None = None,
    epoch: int = 0,
    data: dict[str, str] | None = None,
) -> EventRow:
    message = sayable(message)
    cursor = tx.execute(
        "INSERT INTO events (at, kind, actor, message, run_id, epoch, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (at, kind, actor, message, run_id, epoch, orjson.dumps(data or {}).decode()),
    )
    row = EventRow(cursor.lastrowid or 0, at, kind, actor, message, run_id, epoch, data or {})
    tx.changes.append(EventSaved(row))
    return row


def newest_events(tx: Tx, count: int) -> list[EventRow]:
    """The newest `count`, oldest first."""
    return [event_row(row) for row in tx.execute(_NEWEST, (count,))][::-1]


def count_events(tx: Tx) -> int:
    return int(tx.execute("SELECT count(*) FROM events").fetchone()[0])


def trim_events(tx: Tx, upto: int, count: int) -> int:
    """Forget the oldest up to this id, at most `count`; how many went. Which attempts of a run count is decided by when
    it was queued again by hand, so the last word of each on that stays."""
    later = (
        "SELECT 1 FROM events AS e WHERE e.run_id = events.run_id AND e.kind = 'run.requeued' "
        "AND e.epoch > events.epoch"
    )
    oldest = (
        "SELECT id FROM events WHERE id <= ? "  # noqa: S608 - ours
        f"AND (kind <> 'run.requeued' OR EXISTS ({later})) ORDER BY id LIMIT ?"
    )
    return tx.execute(f"DELETE FROM events WHERE id IN ({oldest})", (upto, count)).rowcount  # noqa: S608 - ours


def workers(tx: Tx) -> list[Worker]:
    return [record(Worker, row) for row in tx.execute(_WORKERS)]


def save_worker(tx: Tx, worker: Worker) -> None:
    tx.execute(_SAVE_WORKER, astuple(worker))
    tx.changes.append(WorkerSaved(worker))


def forget_worker(tx: Tx, incarnation: str) -> None:
    tx.execute("DELETE FROM workers WHERE incarnation = ?", (incarnation,))
    tx.changes.append(WorkerForgotten(incarnation))


def meta(tx: Tx, key: str) -> str | None:
    row = tx.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def set_meta(tx: Tx, key: str, value: str) -> None:
    tx.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def epoch_floor(tx: Tx) -> int:
    """Up to here epochs may have been granted that this history does not know: 0 but after a restore."""
    return int(meta(tx, "epoch_floor") or 0)


def restored_at(tx: Tx) -> int | None:
    """Wall seconds; None where this history was never put back from a backup."""
    said = meta(tx, "restored_at")
    return None if said is None else int(said)
