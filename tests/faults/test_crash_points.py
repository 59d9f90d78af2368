"""The commander killed at each system call of what it does to its state: what is found afterwards opens, is whole, is
the old state or the new, and holds whatever was acknowledged. All points, none sampled."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from system_calls import Moment, moments

from relaytui.commander.store.backup import copy_whole
from relaytui.commander.store.database import RELAY, Schema, open_database
from relaytui.commander.store.kept import backups
from relaytui.commander.store.restore import finish

COMMON = """
import asyncio, os, sys
from pathlib import Path
from commander_kit import FakeClock
from relaytui.commander.services.board import Board
from relaytui.commander.services.leases import Ask, Leases
from relaytui.commander.services.reports import StateReports
from relaytui.commander.store import backup, restore, verify
from relaytui.commander.store.database import RELAY, Schema, open_database
from relaytui.commander.store.writer import Writer
from relaytui.wire.reports import Ended, Published, Started
from relaytui.wire.status import Outcome

clock = FakeClock()

class Books:
    '''The services of leases and reports on a writer without its thread.'''

    def __init__(self):
        self.writer = Writer.__new__(Writer)
        self.writer._db, self.writer._name, self.writer.refusals = open_database(state / RELAY.file, RELAY), "relay", 0
        self.writer._closed = False
        self.leases = Leases(self.writer, Board(clock), clock, b"k" * 32, 60.0)
        self.reports = StateReports(self.writer, self.leases, clock)

    def run(self, unit):
        class Work:
            gather, item, size = None, None, 1
        Work.unit, Work.done = staticmethod(unit), staticmethod(lambda result, error: None)
        (answer,), changes = self.writer._commit([Work])
        if answer[2] is not None:
            raise answer[2]
        return answer[1]

    def acquire(self, agent, request):
        return self.run(lambda tx: self.leases.acquire_in(tx, Ask("run-1", agent, agent, request, "sft")))

    def report(self, given, first, reports):
        from relaytui.wire.proof import token_hash
        unit = lambda tx: self.reports._apply(tx, "run-1", given.epoch, token_hash(given.token), first, reports, None)
        return self.run(unit)

def say(word):
    os.write(1, word.encode() + b"\\n")

published = [Published(1.0, f"step_{n:08d}", n, 10, 2, "ab" * 32) for n in (1, 2)]
"""
BEGIN = "state = Path(sys.argv[1])\n"

ACQUIRE = """
books = Books()
first = books.acquire("one", "q0")
books.report(first, 1, [Started(1.0, 0, None, 7), Ended(1.0, Outcome.PREEMPTED, 3)])
TRACED
say(f"granted {books.acquire('two', 'q0').epoch}")
"""

REPORT = """
books = Books()
first = books.acquire("one", "q0")
books.report(first, 1, [Started(1.0, 0, None, 7)])
TRACED
books.report(first, 2, [*published, Ended(1.0, Outcome.COMPLETED, 2)])
say("acknowledged 4")
"""

OPEN_AND_CLOSE = """
TRACED
books = Books()
say(f"granted {books.acquire('one', 'q0').epoch}")
books.writer._db.close()
"""

CHECKPOINT = """
books = Books()
books.writer._db.execute("PRAGMA wal_autocheckpoint=0")
for n in range(30):
    given = books.acquire("one", f"q{n}")
TRACED
books.writer._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
say(f"granted {books.acquire('one', 'q30').epoch}")
"""

MIGRATION = """
books = Books()
given = books.acquire("one", "q0")
books.writer._db.close()
from later import later
later()
import relaytui.commander.store.database
TRACED
open_database(state / RELAY.file, RELAY).close()
say("migrated")
"""

BACKUP = """
books = Books()
given = books.acquire("one", "q0")
TRACED
made = backup.back_up(state, 1_800_000_000.0)
say(f"made {made.name}")
"""

RESTORE = """
books = Books()
given = books.acquire("one", "q0")
made = backup.back_up(state, 1_800_000_000.0)
for n in range(3):
    given = books.acquire("one", f"q{n + 1}")
books.writer._db.close()
TRACED
restored = restore.restore(state, made, 1_800_000_001.0)
say(f"restored {restored.epoch_floor}")
"""


@pytest.fixture
def state(root: Path) -> Path:
    folder = root / "state"
    folder.mkdir(mode=0o700)
    return folder


def killed(script: str, state: Path) -> Iterator[tuple[Moment, Path]]:
    """Each moment, and a folder that holds what was left then."""
    found = moments(COMMON, BEGIN + script, state)
    assert len(found) > 3, "it was seen at work"
    print(f"{found[-1].call} system calls, {len(found)} states of the files")
    for number, moment in enumerate(found):
        yield moment, moment.write(state.with_name(f"moment-{number}"))


def recovered(folder: Path) -> sqlite3.Connection:
    """As the next start opens it: every page, table and row of it is checked."""
    return open_database(folder / RELAY.file, RELAY)


def rows(db: sqlite3.Connection, query: str) -> list[tuple[object, ...]]:
    return db.execute(query).fetchall()


def seen(db: sqlite3.Connection) -> tuple[int, list[object], list[object], int]:
    """The run's epoch, its leases' and attempts' epochs, and how many grants the history tells of."""
    (epoch,) = rows(db, "SELECT coalesce(max(epoch), 0) FROM runs")[0]
    leases = [row[0] for row in rows(db, "SELECT epoch FROM leases")]
    attempts = [row[0] for row in rows(db, "SELECT epoch FROM attempts ORDER BY epoch")]
    (grants,) = rows(db, "SELECT count(*) FROM events WHERE kind = 'lease.granted'")[0]
    assert isinstance(epoch, int)
    assert isinstance(grants, int)
    return epoch, leases, attempts, grants


def granted(script: str, state: Path, old: int) -> set[int]:
    """Which epochs were found; `old` is the one before the traced grant."""
    found = set()
    for moment, folder in killed(script, state):
        with closing(recovered(folder)) as db:
            epoch, leases, attempts, grants = seen(db)
        assert epoch in (old, old + 1)
        assert leases == ([epoch] if epoch else [])
        assert attempts == list(range(1, epoch + 1))
        assert grants == epoch
        assert epoch == old + 1 or not moment.said, f"a grant that was told is gone, killed at call {moment.call}"
        found.add(epoch)
    return found


def test_acquire(state: Path) -> None:
    assert granted(ACQUIRE, state, 1) == {1, 2}


def test_an_acknowledgement_before_the_commit_would_be_caught(state: Path) -> None:
    said, done = "TRACED\nsay('granted 2')\n", "books.acquire('two', 'q0')\n"
    with pytest.raises(AssertionError, match="told is gone"):
        granted(ACQUIRE.partition("TRACED")[0] + said + done, state, 1)


def test_the_first_start_and_the_first_grant(state: Path) -> None:
    assert granted(OPEN_AND_CLOSE, state, 0) == {0, 1}


def test_the_log_is_carried_over_into_the_database(state: Path) -> None:
    assert granted(CHECKPOINT, state, 30) == {30, 31}


def test_an_acknowledged_report(state: Path) -> None:
    found = set()
    for moment, folder in killed(REPORT, state):
        with closing(recovered(folder)) as db:
            (status,) = rows(db, "SELECT status FROM runs")[0]
            (lease,) = rows(db, "SELECT state FROM leases")[0]
            (seq,) = rows(db, "SELECT last_seq FROM streams")[0]
            (count,) = rows(db, "SELECT count(*) FROM checkpoints")[0]
        whole = (status, lease, seq, count)
        assert whole in {("running", "held", 1, 0), ("completed", "released", 4, 2)}, "all of the frame, or nothing"
        assert seq == 4 or not moment.said, f"an acknowledged report is gone, killed at call {moment.call}"
        found.add(seq)
    assert found == {1, 4}


LATER = '''
from relaytui.commander.store.database import Schema
NEXT = """
ALTER TABLE runs ADD COLUMN cost REAL NOT NULL DEFAULT 0;
CREATE TABLE prices (gpu TEXT PRIMARY KEY, cents INTEGER NOT NULL) STRICT;
INSERT INTO prices VALUES ('h100', 300);
UPDATE runs SET cost = epoch * 2.0;
CREATE INDEX runs_by_cost ON runs (cost);
"""
first = Schema.migrations
def later():
    Schema.migrations = lambda self: [*first(self), NEXT] if self.name == "relay" else first(self)
'''


def test_a_migration(state: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either version opens what is left, until the new one is there; then the new one does."""
    (root / "later.py").write_text(LATER)
    script = MIGRATION.replace("from later", f"sys.path.insert(0, {str(root)!r})\nfrom later")
    present = len(RELAY.migrations())
    found = set()
    for moment, folder in killed(script, state):
        with closing(sqlite3.connect(folder / RELAY.file)) as db:
            (version,) = rows(db, "PRAGMA user_version")[0]
        assert version == present + 1 or not moment.said
        found.add(version)
        if version == present:
            with closing(recovered(folder)) as db:
                assert seen(db) == (1, [1], [1], 1)
        space: dict[str, Callable[[], None]] = {}
        with monkeypatch.context() as patch:
            patch.setattr(Schema, "migrations", Schema.migrations)  # put back afterwards
            exec(LATER, space)
            space["later"]()
            with closing(recovered(folder)) as db:
                assert seen(db) == (1, [1], [1], 1)
                assert rows(db, "SELECT cost FROM runs") == [(2.0,)]
                assert rows(db, "SELECT * FROM prices") == [("h100", 300)]
    assert found == {present, present + 1}


def test_a_backup(state: Path, root: Path) -> None:
    found = set()
    for moment, folder in killed(BACKUP, state):
        with closing(recovered(folder)) as db:
            assert seen(db) == (1, [1], [1], 1), "what it is made of is as it was"
        made = backups(folder)
        for number, path in enumerate(made):
            copy_whole(path, root / f"copy-{moment.call}-{number}.db")  # verified to the last row
        assert made or not moment.said
        found.add(len(made))
    assert found == {0, 1}


def test_a_restore(state: Path) -> None:
    """Old or new, and never neither; what it replaced is kept."""
    found = set()
    for moment, folder in killed(RESTORE, state):
        finish(folder)  # as every start does
        with closing(recovered(folder)) as db:
            (floor,) = rows(db, "SELECT coalesce(max(value), '') FROM meta WHERE key = 'epoch_floor'")[0]
            epoch, leases, _, _ = seen(db)
        assert (epoch, leases, floor) in [(4, [4], ""), (1, [1], "10004")]
        assert floor or not moment.said
        if floor:
            aside = list(folder.glob("relay.db.replaced-*"))
            with closing(sqlite3.connect(min(aside))) as db:
                assert seen(db) == (4, [4], [1, 2, 3, 4], 4)
        found.add(bool(floor))
    assert found == {False, True}
