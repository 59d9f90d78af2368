"""Is a database whole: its pages, its tables as its version makes them, and every row of them readable.

What is damaged is found at the start, with a name and a way out, and not by the first request that meets it.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError

from relaytui.commander.model.artifacts import Upload
from relaytui.commander.model.lease import Lease
from relaytui.commander.model.records import Attempt, PendingOrder, Worker
from relaytui.commander.model.run import Run
from relaytui.commander.store import artifacts, history, telemetry
from relaytui.commander.store.attempts import ORDER_NAMES
from relaytui.commander.store.columns import columns, record, select
from relaytui.commander.store.errors import damaged
from relaytui.wire.ids import is_id
from relaytui.wire.rows import CheckpointRow, OrderRow
from relaytui.wire.status import ACTIVE

DEEP_UP_TO = 32 << 20
"""Bytes of a database up to which its indexes are compared with its tables too."""
PAGES_UP_TO = 128 << 20
"""Bytes of telemetry.db up to which its pages are checked at the start."""

Read = Callable[[tuple[Any, ...]], object]


class _StateStream(Struct, frozen=True):
    run_id: str
    epoch: int
    last_seq: int


class _Meta(Struct, frozen=True):
    key: str
    value: str


def _of(table: str, kind: type[Struct], renamed: dict[str, str] | None = None) -> tuple[str, str, Read]:
    return table, select(table, columns(kind, renamed)), lambda row: record(kind, row)


def _meta(row: tuple[Any, ...]) -> _Meta:
    said = record(_Meta, row)
    if said.key in history.WHOLE_NUMBERS:
        int(said.value)
    return said


_ROWS: dict[str, list[tuple[str, str, Read]]] = {
    "relay": [
        ("meta", select("meta", columns(_Meta)), _meta),
        _of("runs", Run),
        _of("leases", Lease),
        _of("attempts", Attempt),
        _of("checkpoints", CheckpointRow),
        _of("workers", Worker),
        ("events", select("events", history.EVENT), history.event_row),
        _of("orders", PendingOrder, {"by": "actor"}),
        _of("orders", OrderRow, ORDER_NAMES),
        _of("streams", _StateStream),
        ("artifacts", select("artifacts", artifacts.COLUMNS), artifacts.row_of),
        _of("uploads", Upload, {"by": "actor"}),
    ],
    "telemetry": [("streams", f"SELECT {telemetry.LAST} FROM streams", telemetry.last_row)],  # noqa: S608 - ours
}

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_COLUMNS = """
  SELECT t.name, c.name, c.type, c."notnull", c.pk FROM sqlite_master t, pragma_table_xinfo(t.name) c
    WHERE t.type = 'table'
"""
_INDEXES = """
  SELECT t.name, i.name, i."unique", c.name
    FROM sqlite_master t, pragma_index_list(t.name) i, pragma_index_info(i.name) c
    WHERE t.type = 'table' ORDER BY t.name, i.name, c.seqno
"""
_ACTIVE = ", ".join(f"'{status}'" for status in sorted(ACTIVE))
_NO_ATTEMPT = """
  SELECT run_id FROM leases WHERE NOT EXISTS (SELECT 1 FROM attempts a
    WHERE a.run_id = leases.run_id AND a.epoch = leases.epoch AND a.token_hash = leases.token_hash)
"""
_EPOCHS = "SELECT run_id FROM leases JOIN runs USING (run_id) WHERE leases.epoch > runs.epoch OR leases.epoch < 1"
_HELD = f"""
  SELECT runs.run_id FROM runs LEFT JOIN leases USING (run_id)
    WHERE (coalesce(leases.state, '') = 'held') <> (runs.status IN ({_ACTIVE}))
"""  # noqa: S608 - ours
_HASHES = """
  SELECT run_id FROM attempts WHERE typeof(token_hash) <> 'blob' OR length(token_hash) <> 32 OR typeof(salt) <> 'blob'
"""
_NO_FILE = """
  SELECT run_id FROM {} WHERE (length(sha256) <> 64 OR sha256 GLOB '*[^0-9a-f]*') AND NOT ({})
"""
_TOLD_LATER = "sha256 = '' AND kind = 'checkpoint' AND manifest_sha256 IS NOT NULL"
_NO_UPLOAD = "SELECT run_id FROM uploads WHERE length(upload) <> 32 OR upload GLOB '*[^0-9a-f]*'"
_IMPOSSIBLE: dict[str, dict[str, str]] = {
    # What the code relies on, and no transaction of it ever leaves behind.
    "relay": {
        "a lease has no attempt": _NO_ATTEMPT,
        "a run's epoch is below its lease's": _EPOCHS,
        "a run and its lease contradict each other": _HELD,
        "a token's hash is none": _HASHES,
        "an artifact's sha256 is none": _NO_FILE.format("artifacts", "0"),
        "an upload's sha256 is none": _NO_FILE.format("uploads", _TOLD_LATER),
        "an upload's id is none": _NO_UPLOAD,
    },
    "telemetry": {},
}


def check_pages(db: sqlite3.Connection, path: Path, *, always: bool) -> None:
    """SQLite's own check, as thorough as the size allows. `always`: whatever the size."""
    size = path.stat().st_size
    if size > PAGES_UP_TO and not always:
        return
    pragma = "integrity_check" if size <= DEEP_UP_TO else "quick_check"
    verdict = db.execute(f"PRAGMA {pragma}(1)").fetchone()[0]
    if verdict != "ok":
        raise damaged(path, str(verdict))


def check_tables(db: sqlite3.Connection, path: Path, migrations: Iterable[str]) -> None:
    """Every table, column and index that these migrations make is there, as they make it."""
    missing = _facts_of(tuple(migrations)) - _facts(db)
    if missing:
        kind, table, name, *_ = sorted(missing, key=lambda fact: (fact[0], fact[1], fact[2]))[0]
        what = f"table {table}" if kind == "a table" else f"{kind} {name} of table {table}"
        raise damaged(path, f"{what} is missing or not as Relay made it")


@lru_cache(maxsize=8)
def _facts_of(migrations: tuple[str, ...]) -> frozenset[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as model:
        for script in migrations:
            model.executescript(script)
        return frozenset(_facts(model))


def _facts(db: sqlite3.Connection) -> set[tuple[Any, ...]]:
    facts: set[tuple[Any, ...]] = {("a table", table, "") for (table,) in db.execute(_TABLES)}
    facts.update(("column", *row) for row in db.execute(_COLUMNS))
    inside: dict[tuple[Any, ...], list[Any]] = {}
    for table, index, unique, column in db.execute(_INDEXES):
        inside.setdefault((table, index, unique), []).append(column)
    facts.update(("index", *index, tuple(columns)) for index, columns in inside.items())
    return facts


def check_rows(db: sqlite3.Connection, path: Path, name: str) -> None:
    """Every row is of the types the code reads it as, and none refers to one that is not there."""
    for table, query, read in _ROWS[name]:
        try:
            for row in db.execute(query):
                _check_values(read(row), row)
        except (ValidationError, ValueError, TypeError, OverflowError, sqlite3.OperationalError) as error:
            if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorcode"):
                raise  # the disk's word; without a code it is Python's, of text that is none
            raise damaged(path, f"a row of table {table} cannot be read ({error})") from None
    for table, *_ in db.execute("PRAGMA foreign_key_check"):
        raise damaged(path, f"a row of table {table} refers to one that is not there")
    for what, query in _IMPOSSIBLE[name].items():
        found = db.execute(query).fetchone()
        if found is not None:
            raise damaged(path, f"{what} (run {str(found[0])[:80]!r})")


def _check_values(value: object, row: tuple[Any, ...]) -> None:
    for number in row:  # a start reads every event: `any` of a generator took half of its time
        if type(number) is float and not math.isfinite(number):
            raise ValueError("a number that is none")
    run_id = getattr(value, "run_id", None)
    if run_id is not None and not is_id(run_id):
        raise ValueError("a run id that is none")
