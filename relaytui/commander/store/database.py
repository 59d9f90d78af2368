"""Opening a database: is it one, is it ours, is it safe here, is it up to date."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from relaytui.commander.store.errors import damaged, of_sqlite, unusable
from relaytui.commander.store.verify import check_pages, check_rows, check_tables
from relaytui.wire.files import first_bytes

APPLICATION_ID = 0x52656C61  # "Rela"
MAGIC = b"SQLite format 3\0"
SIDE_FILES = ("", "-wal", "-shm", "-journal")
NEWER = "upgrade relay-tui"
OLDEST_SQLITE = (3, 35, 0)


@dataclass(frozen=True, slots=True)
class Schema:
    """A named database and how much WAL it may keep."""

    name: str
    wal_limit: int
    checked: bool  # whole at every start, whatever its size

    @property
    def file(self) -> str:
        return f"{self.name}.db"

    @property
    def files(self) -> tuple[str, ...]:
        """The database and what SQLite keeps beside it."""
        return tuple(self.file + suffix for suffix in SIDE_FILES)

    def migrations(self) -> list[str]:
        return list(_migrations(self.name))


@lru_cache(maxsize=2)
def _migrations(name: str) -> tuple[str, ...]:
    folder = resources.files("relaytui.commander.store.schema").joinpath(name)
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda e: e.name)
    return tuple(entry.read_text(encoding="utf-8") for entry in files)


RELAY = Schema("relay", wal_limit=16 << 20, checked=True)
TELEMETRY = Schema("telemetry", wal_limit=64 << 20, checked=False)


def may_be_ours(path: Path) -> bool:
    """Whether there is a database that is ours, or too damaged to tell."""
    header = first_bytes(path, 100)
    if not header:
        return False
    return not header.startswith(MAGIC) or header[68:72] == APPLICATION_ID.to_bytes(4, "big")


def read_only(path: Path) -> str:
    """The URI that opens it so; a path may hold any bytes."""
    return f"file:{quote(os.fsencode(path))}?mode=ro"


def open_database(path: Path, schema: Schema) -> sqlite3.Connection:
    """The writing connection, checked and migrated; RelayError (exit STATE) naming the file and what to do."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise unusable(path, f"needs SQLite 3.35, this Python has {sqlite3.sqlite_version}", "use a newer Python")
    header = first_bytes(path, 100)
    if header and (len(header) < 100 or not header.startswith(MAGIC)):
        raise damaged(path, "it is no database")  # SQLite takes a file of a few bytes for a new one
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    except sqlite3.Error as error:
        raise unusable(path, f"cannot be opened: {error}", "see its permissions and the disk") from None
    try:
        path.chmod(0o600)
        _prepare(db, path, schema)
    except sqlite3.Error as error:
        db.close()
        raise of_sqlite(path, error) from None
    except (UnicodeDecodeError, MemoryError) as error:
        # SQLite quotes what it stumbles over, and that may be no text at all, or claim to be without end.
        db.close()
        raise damaged(path, f"what it holds cannot be read ({error})") from None
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path, schema: Schema) -> None:
    version = version_of(db, path, schema)
    mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise unusable(path, f"cannot use a write-ahead log ({mode})", "keep the state on a local disk")
    for pragma in (
        "synchronous=FULL",
        "foreign_keys=ON",
        "busy_timeout=5000",
        "temp_store=MEMORY",
        "cache_size=-2048",
        "wal_autocheckpoint=1000",
        f"journal_size_limit={schema.wal_limit}",
    ):
        db.execute(f"PRAGMA {pragma}")
    if version:
        check_pages(db, path, always=schema.checked)
        check_tables(db, path, schema.migrations()[:version])
    _migrate(db, path, schema, version)
    check_rows(db, path, schema.name)


def version_of(db: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """Its schema's version, 0 for a new one; RelayError where it is another program's, or a newer Relay's."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if application != APPLICATION_ID and not (empty and application == 0 and version == 0):
        raise unusable(path, "is a database of another program", "name another state folder (--state)")
    known = len(schema.migrations())
    if version > known:
        raise unusable(path, f"was written by a newer Relay (schema {version}, this one knows {known})", NEWER)
    if version < 0 or (version == 0 and not empty):
        raise damaged(path, f"its schema version is {version}")
    return version


def _migrate(db: sqlite3.Connection, path: Path, schema: Schema, version: int) -> None:
    for number, script in enumerate(schema.migrations()[version:], start=version + 1):
        try:
            db.execute("BEGIN IMMEDIATE")
            for statement in statements(script):
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={number}")
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise unusable(
                path, f"cannot be brought to schema {number}: {error}", "see its disk; the old version still opens it"
            ) from None


def statements(script: str) -> Iterator[str]:
    """The statements of a migration one by one: `executescript` would commit half of it."""
    kept = ""
    for line in script.splitlines(keepends=True):
        kept += line
        if sqlite3.complete_statement(kept):
            yield kept
            kept = ""
