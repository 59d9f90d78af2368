"""A backup in the place of relay.db: verified first, the replaced one kept, old or new after a crash at any step.

What the backup does not know was granted since. So it goes on as another history: epochs continue above all that can
have been granted, holders come back in their epoch or register again, and nobody else is granted a run before they had
the time to (services/leases.py).
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from relaytui.commander.store import history
from relaytui.commander.store.backup import copy_whole
from relaytui.commander.store.database import NEWER, RELAY, SIDE_FILES, TELEMETRY, open_database, read_only
from relaytui.commander.store.durable import stamp, sync_file, sync_folder
from relaytui.commander.store.errors import NO_ROOM, of_sqlite, unusable
from relaytui.commander.store.kept import backups
from relaytui.commander.store.writer import Tx
from relaytui.wire.errors import RelayError
from relaytui.wire.status import ACTIVE
from relaytui.wire.text import clean

EPOCHS_APART = 10_000
"""More grants than a run gets between a backup and its restore: one a minute for a week."""
SAID = "the state was restored: its holder comes back, or a later one does"
_ACTIVE = ", ".join(f"'{status}'" for status in sorted(ACTIVE))
# Held when the backup was made: who it was may revive it as after an expiry, unless a later one is there by then.
_END_ATTEMPTS = """
  UPDATE attempts SET ended_at = :at, outcome = 'lost', message = :said WHERE outcome IS NULL AND EXISTS (
    SELECT 1 FROM leases l WHERE l.run_id = attempts.run_id AND l.epoch = attempts.epoch AND l.state = 'held')
"""
_END_LEASES = "UPDATE leases SET state = 'expired' WHERE state = 'held'"
_QUEUE_RUNS = f"""
  UPDATE runs SET status = 'queued', draining_since = NULL, updated_at = :at, message = :said
    WHERE status IN ({_ACTIVE})
"""  # noqa: S608 - ours
_PENDING = f"{RELAY.file}.restoring-"
_REPLACED = f"{RELAY.file}.replaced-"


@dataclass(frozen=True, slots=True)
class Restored:
    """`aside`: what was there before, None where nothing was."""

    aside: Path | None
    epoch_floor: int


def restore(
    state: Path, source: Path, at: float, *, actor: str = "operator", agreed: Callable[[], None] = lambda: None
) -> Restored:
    """Puts `source` in the place of the state folder's relay.db. The caller holds the folder's lock; `actor` did it.

    RelayError where it is no whole backup; nothing has changed then. `agreed` is called once it is known to be one:
    what that raises ends it, and nothing has changed either.
    """
    _refuse_live(state, source)
    finish(state)
    work = state / f".{RELAY.file}.restore"
    _remove(work)
    try:
        with _said_of_backup(work, source, state):
            copy_whole(source, work)
            db = open_database(work, RELAY)  # upgraded and read row by row
        with contextlib.closing(db):
            agreed()
            with _said_of_backup(work, source, state):
                floor = _adapt(db, work, source, state / RELAY.file, at, actor)
        with _said_of_backup(work, source, state):
            pending = state / f"{_PENDING}{stamp(at)}"
            sync_file(work)
            work.rename(pending)  # from here on it is restored: whoever opens the folder next finishes it
            sync_folder(state)
    finally:
        _remove(work)
    return Restored(finish(state), floor)


@contextlib.contextmanager
def _said_of_backup(work: Path, source: Path, state: Path) -> Iterator[None]:
    """What goes wrong within is a RelayError about the backup that was named, or the state's disk."""
    try:
        yield
    except RelayError as error:
        raise _of_backup(error, work, source, state) from None
    except sqlite3.Error as error:
        raise _of_backup(of_sqlite(work, error), work, source, state) from None
    except OSError as error:
        raise unusable(state, f"cannot be written: {error.strerror}", "see its permissions and its disk") from None


def _refuse_live(state: Path, source: Path) -> None:
    """The state is no backup of itself: whoever names it means another file."""
    for schema in (RELAY, TELEMETRY):
        with contextlib.suppress(OSError):
            if source.samefile(state / schema.file):
                newest = next(iter(backups(state)), None)
                known = f"the newest of this folder is {newest}" if newest else "`relay-tui backup` makes them"
                raise unusable(
                    source, "is the state itself, no backup of it", f"nothing has changed; name one ({known})"
                )


def finish(state: Path) -> Path | None:
    """Completes a restore that was decided, however far it came. What it replaced, None where nothing was to do."""
    pending = max(state.glob(f"{_PENDING}*"), default=None)
    if pending is None:
        return None
    current = state / RELAY.file
    aside = state / (_REPLACED + pending.name.removeprefix(_PENDING))
    # The logs first: beside another database they would be taken for its own.
    for suffix in sorted(SIDE_FILES, key=len, reverse=True):
        with contextlib.suppress(FileNotFoundError):
            if _says_nothing(current.with_name(current.name + suffix)):
                current.with_name(current.name + suffix).unlink()
                continue
            current.with_name(current.name + suffix).rename(aside.with_name(aside.name + suffix))
            sync_folder(state)
    pending.rename(current)
    sync_folder(state)
    return aside if aside.exists() else None


def _says_nothing(side: Path) -> bool:
    """The index of a log, and a log without entries: looking at a database leaves both beside it."""
    return side.name.endswith("-shm") or (side.name.endswith("-wal") and side.stat().st_size == 0)


def _of_backup(error: RelayError, work: Path, source: Path, state: Path) -> RelayError:
    """What is wrong with the backup, said of the file that was named; of relay.db nothing is wrong."""
    if error.message == f"{work} {NO_ROOM}":
        return unusable(state, NO_ROOM, "nothing has changed; make room there and restore it again")
    if error.message.startswith(f"{work} cannot be written"):
        return unusable(state, error.message.removeprefix(f"{work} "), "nothing has changed; see its disk")
    message = error.message.replace(str(work), str(source))
    if not message.startswith(str(source)) or error.hint == NEWER:
        return RelayError(error.code, message, error.hint, exit_code=error.exit_code, status=error.status)
    newest = [path for path in backups(state) if path != source]
    known = f"the newest of this folder is {newest[0]}" if newest else "`relay-tui backup` makes them"
    hint = f"nothing has changed; name another backup ({known})"
    return RelayError(error.code, message, hint, exit_code=error.exit_code, status=error.status)


def _adapt(db: sqlite3.Connection, work: Path, source: Path, current: Path, at: float, actor: str) -> int:
    """Makes the copy a history of its own; the floor of its epochs."""
    floor = max(_highest_epoch(work), _highest_epoch(current)) + EPOCHS_APART
    tx = Tx(db)
    db.execute("BEGIN IMMEDIATE")
    history.set_meta(tx, "generation", secrets.token_hex(8))
    history.set_meta(tx, "epoch_floor", str(floor))
    history.set_meta(tx, "hold_off", "restored")
    history.set_meta(tx, "restored_at", str(int(at)))
    values = {"at": at, "said": SAID}
    db.execute(_END_ATTEMPTS, values)
    db.execute(_END_LEASES)
    db.execute(_QUEUE_RUNS, values)
    db.execute("UPDATE runs SET restored_at = ?", (int(at),))
    # Whatever clock they were counted on: what still runs gets its full length at the next start.
    db.execute("UPDATE leases SET boot_id = '', grace = 0")
    message = f"from the backup {clean(source.name, 128)}; epochs go on above {floor}"
    history.add_event(tx, at, "commander.restored", clean(actor, 128), message)
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode=DELETE")
    return floor


def _highest_epoch(path: Path) -> int:
    """Of all its runs, 0 where it cannot be read (it is damaged or gone: what EPOCHS_APART is for)."""
    try:
        with contextlib.closing(sqlite3.connect(read_only(path), uri=True)) as db:
            epoch = db.execute("SELECT max(epoch) FROM runs").fetchone()[0]
            floor = db.execute("SELECT value FROM meta WHERE key = 'epoch_floor'").fetchone()
            return max(int(epoch or 0), int(floor[0]) if floor else 0)
    except (sqlite3.Error, ValueError, TypeError, UnicodeDecodeError, MemoryError):
        return 0


def _remove(work: Path) -> None:
    for suffix in SIDE_FILES:
        with contextlib.suppress(OSError):
            work.with_name(work.name + suffix).unlink()
