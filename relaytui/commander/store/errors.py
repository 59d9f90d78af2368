"""What a person is told of a database that cannot be used."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from relaytui.commander.store.kept import backups
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.text import clean

DAMAGED = "state_damaged"
NO_ROOM = "cannot be written: there is no room on its disk"
DATABASES = ("relay.db", "telemetry.db")
_DAMAGE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG}


def unusable(path: Path, what: str, hint: str) -> RelayError:
    return RelayError("state_unusable", f"{path} {what}", hint, exit_code=Exit.STATE, status=503)


def damaged(path: Path, what: str) -> RelayError:
    """Code `state_damaged`: the file itself is at fault, and not its disk, its owner or its version."""
    said = clean(" ".join(what.split()), 200)
    return RelayError(DAMAGED, f"{path} is damaged: {said}", _way_out(path.parent), exit_code=Exit.STATE, status=503)


def _way_out(state: Path) -> str:
    """With what is there: beside the other database a new one is refused again, for it would not know its runs."""
    there = [name for name in DATABASES if (state / name).exists()]
    anew = f"move {' and '.join(there)} aside and start anew" if there else "start anew"
    newest = next(iter(backups(state)), None)
    if newest is None:
        return f"there is no backup of it: {anew}"
    return f"put a backup in its place (`relay-tui restore FILE`; the newest is {newest}), or {anew}"


def of_sqlite(path: Path, error: sqlite3.Error) -> RelayError:
    """`error` of opening or reading it, in one line."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGE:
        return damaged(path, f"it is not a usable database ({error})")
    if code == sqlite3.SQLITE_FULL:
        return unusable(path, NO_ROOM, "make room there")
    return unusable(path, f"is not a usable database: {error}", "see its permissions and its disk")
