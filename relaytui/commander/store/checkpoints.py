"""Published checkpoints. The order of their ids is the order of publishing."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from msgspec.structs import astuple, replace

from relaytui.commander.store.changes import CheckpointSaved
from relaytui.commander.store.columns import columns, record, select
from relaytui.commander.store.writer import Tx
from relaytui.wire.artifacts import ArtifactKind
from relaytui.wire.messages import CheckpointRef
from relaytui.wire.rows import CheckpointRow

_COLUMNS = columns(CheckpointRow)
_GET = select("checkpoints", _COLUMNS, "WHERE run_id = ? AND name = ?")
_NEWEST = select("checkpoints", _COLUMNS, "WHERE run_id = ? AND pruned_at IS NULL ORDER BY id DESC LIMIT 1")
_INSERT = f"INSERT INTO checkpoints ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - ours
_STORED = "SELECT 1 FROM artifacts WHERE run_id = ? AND kind = ? AND name = ? AND manifest_sha256 = ? AND damaged = ''"
_KEPT = select("checkpoints", _COLUMNS, "WHERE run_id = ? AND pruned_at IS NULL ORDER BY id")
_KNOWN = select("checkpoints", _COLUMNS, "WHERE run_id = ? ORDER BY id")
_NAMED = "WHERE run_id = ? AND name IN (SELECT value FROM json_each(?))"
BY_RUN = select("checkpoints", _COLUMNS, "WHERE run_id = ? ORDER BY id DESC LIMIT 1000")


_OLDER = "SELECT id FROM checkpoints WHERE run_id = ? AND pruned_at IS {} ORDER BY id DESC LIMIT -1 OFFSET ?"

MOST = 1_000
"""Rows kept of those of a run that were pruned, and of those that were not. An agent keeps a handful on the volume."""
TRIM_EVERY = 100
"""Publications from one look at that to the next."""


def get(tx: Tx, run_id: str, name: str) -> CheckpointRow | None:
    row = tx.execute(_GET, (run_id, name)).fetchone()
    return None if row is None else record(CheckpointRow, row)


def newest(tx: Tx, run_id: str) -> CheckpointRow | None:
    """Of the run's line."""
    row = tx.execute(_NEWEST, (run_id,)).fetchone()
    return None if row is None else record(CheckpointRow, row)


def kept(tx: Tx, run_id: str) -> list[CheckpointRow]:
    """Those that are on the volume, for all that is known; oldest first."""
    return [record(CheckpointRow, row) for row in tx.execute(_KEPT, (run_id,))]


def known(tx: Tx, run_id: str) -> list[CheckpointRow]:
    """Those and the pruned ones, oldest first."""
    return [record(CheckpointRow, row) for row in tx.execute(_KNOWN, (run_id,))]


def reference(tx: Tx, run_id: str) -> CheckpointRef | None:
    """The newest that an agent can be held to: one that an original worker named has no manifest of ours."""
    row = newest(tx, run_id)
    if row is None or not row.manifest:
        return None
    stored = tx.execute(_STORED, (run_id, ArtifactKind.CHECKPOINT, row.name, row.manifest)).fetchone() is not None
    return CheckpointRef(row.name, row.step, row.epoch, row.manifest, stored, row.hub)


def add(tx: Tx, row: CheckpointRow) -> int:
    """The newest of its run from now on; one of the same name, pruned or other in content, gives way.

    By how much the run's line is longer: nothing where the other one was in it.
    """
    known = get(tx, row.run_id, row.name)
    if known is not None:
        tx.execute("DELETE FROM checkpoints WHERE run_id = ? AND name = ?", (row.run_id, row.name))
    tx.execute(_INSERT, astuple(row))
    tx.changes.append(CheckpointSaved(row))
    return 0 if known is not None and known.pruned_at is None else 1


def add_all(tx: Tx, run_id: str, rows: Sequence[CheckpointRow]) -> None:
    """As `add` does, in this order and in few statements."""
    if rows:
        tx.execute(f"DELETE FROM checkpoints {_NAMED}", (run_id, _names(rows)))  # noqa: S608 - ours
    for row in rows:
        tx.execute(_INSERT, astuple(row))
        tx.changes.append(CheckpointSaved(row))


def trim(tx: Tx, run_id: str) -> int:
    """Forgets the oldest beyond `MOST`; how many of them were in the run's line."""
    gone = 0
    for pruned in ("NOT NULL", "NULL"):
        older = _OLDER.format(pruned)
        gone = tx.execute(f"DELETE FROM checkpoints WHERE id IN ({older})", (run_id, MOST)).rowcount  # noqa: S608 - ours
    return gone


def prune(tx: Tx, run_id: str, name: str, at: float) -> bool:
    """False where there is no such checkpoint, or it was pruned before."""
    cursor = tx.execute(
        "UPDATE checkpoints SET pruned_at = ? WHERE run_id = ? AND name = ? AND pruned_at IS NULL", (at, run_id, name)
    )
    row = get(tx, run_id, name)
    if cursor.rowcount != 1 or row is None:
        return False
    tx.changes.append(CheckpointSaved(row))
    return True


def prune_all(tx: Tx, run_id: str, rows: Sequence[CheckpointRow], at: float) -> None:
    """These, none of which was pruned before."""
    if rows:
        tx.execute(f"UPDATE checkpoints SET pruned_at = ? {_NAMED}", (at, run_id, _names(rows)))  # noqa: S608 - ours
    tx.changes += [CheckpointSaved(replace(row, pruned_at=at)) for row in rows]


def _names(rows: Sequence[CheckpointRow]) -> str:
    return orjson.dumps([row.name for row in rows]).decode()


def set_hub(tx: Tx, run_id: str, name: str, tag: str) -> None:
    """Its tag on the Hub from now on; empty: it is not there any more. One that is not known stays so."""
    cursor = tx.execute(
        "UPDATE checkpoints SET hub = ? WHERE run_id = ? AND name = ? AND hub <> ?", (tag, run_id, name, tag)
    )
    row = get(tx, run_id, name) if cursor.rowcount == 1 else None
    if row is not None:
        tx.changes.append(CheckpointSaved(row))
