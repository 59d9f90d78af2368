"""Backups of relay.db by SQLite's own means, whether a commander writes to it or not; verified before they get a name.

They hold who may train what, runs, checkpoints and the history; not telemetry, and not the key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from pathlib import Path

from relaytui.commander.store.database import RELAY, read_only, version_of
from relaytui.commander.store.durable import stamp, sync_file, sync_folder
from relaytui.commander.store.errors import NO_ROOM, damaged, of_sqlite, unusable
from relaytui.commander.store.kept import FOLDER, backups, made_at
from relaytui.commander.store.verify import check_pages, check_rows, check_tables
from relaytui.wire.errors import RelayError
from relaytui.wire.files import must_be_plain

KEPT = 7
"""How many the folder keeps, the newest ones; those that were made elsewhere (`--to`) are nobody's to remove."""
EVERY = 86_400.0
_STALE = 86_400.0


def back_up(state: Path, at: float) -> Path:
    """A new one in the state folder's own backups; the oldest ones beyond KEPT go."""
    folder = state / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unusable(folder, f"cannot be made: {error.strerror}", "see its permissions and its disk") from None
    first = target = folder / f"relay-{stamp(at)}.db"
    number = 1
    while target.exists():
        number += 1
        target = first.with_name(f"{first.stem}-{number}.db")
    copy_whole(state / RELAY.file, target)
    for old in backups(state)[KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()
    for part in folder.glob(".relay-*.part"):
        # Of one that was killed; a younger one may be on its way in another process.
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > _STALE:
                part.unlink()
    return target


def is_due(state: Path, at: float) -> bool:
    """Whether the newest one is of another day than now, as the clock goes."""
    newest = next((made_at(path) for path in backups(state)), None)
    return newest is None or not stamp(at - EVERY) < newest <= stamp(at)


def copy_whole(source: Path, target: Path) -> None:
    """`source` as one file `target`, whole and durable or not at all; RelayError where either cannot be used."""
    if not must_be_plain(source):
        raise unusable(source, "is not there", "name another state folder (--state), or another file")
    if os.path.lexists(target):
        raise unusable(target, "is there already", "name another file: a backup replaces none")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        _copy(source, part, target)
        sync_file(part)
        part.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(target) from None
        raise unusable(target, f"cannot be written: {error.strerror}", "see its folder and its disk") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _no_room(target: Path) -> RelayError:
    hint = "make room there, or name a file on another disk (--to)"
    return unusable(target, NO_ROOM, hint)


def _copy(source: Path, part: Path, target: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(read_only(source), uri=True)) as original:
            if version_of(original, source, RELAY) == 0:
                raise damaged(source, "it is empty")
            with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as copy:
                original.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
                verify(copy, part, source)
    except sqlite3.Error as error:  # the source is only read: what cannot be written is the copy
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code == sqlite3.SQLITE_FULL:
            raise _no_room(target) from None
        if code in (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC):
            raise unusable(target, f"cannot be written: {error}", "see its folder and its disk") from None
        raise of_sqlite(source, error) from None
    except (UnicodeDecodeError, MemoryError) as error:
        raise damaged(source, f"what it holds cannot be read ({error})") from None


def verify(db: sqlite3.Connection, path: Path, said_of: Path) -> None:
    """RelayError about `said_of` where the database in `path` is not whole."""
    try:
        version = version_of(db, path, RELAY)
        known = RELAY.migrations()
        check_pages(db, path, always=True)
        check_tables(db, path, known[:version])
        if version == len(known):  # rows of an older one are read after its migration
            check_rows(db, path, RELAY.name)
    except RelayError as error:
        message = error.message.replace(str(path), str(said_of))
        raise RelayError(error.code, message, error.hint, exit_code=error.exit_code, status=error.status) from None
