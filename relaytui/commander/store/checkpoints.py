"""Published checkpoints. The order of their ids is the order of publishing."""

from __future__ import annotations

from dataclasses import dataclass

from relaytui.commander.store.changes import CheckpointSaved
from relaytui.commander.store.columns import columns, record, select
from relaytui.commander.store.writer import Tx
from relaytui.wire.messages import CheckpointRef
from relaytui.wire.rows import CheckpointRow

_COLUMNS = columns(CheckpointRow)
_GET = select("checkpoints", _COLUMNS, "WHERE run_id = ? AND name = ?")
_NEWEST = select("checkpoints", _COLUMNS, "WHERE run_id = ? AND pruned_at IS NULL ORDER BY id DESC LIMIT 1")
BY_RUN = select("checkpoints", _COLUMNS, "WHERE run_id = ? ORDER BY id DESC LIMIT 1000")


@dataclass(frozen=True, slots=True)
class Line:
    """The run's line of checkpoints in short."""

    kept: int
    newest: CheckpointRow | None

    def reference(self) -> CheckpointRef | None:
        row = self.newest
        # An original worker's checkpoint has no manifest of ours, so no agent can be held to it.
        return None if row is None or not row.manifest else CheckpointRef(row.name, row.step, row.epoch, row.manifest)


def get(tx: Tx, run_id: str, name: str) -> CheckpointRow | None:
    row = tx.execute(_GET, (run_id, name)).fetchone()
    return None if row is None else record(CheckpointRow, row)


def line(tx: Tx, run_id: str) -> Line:
    kept = tx.execute("SELECT count(*) FROM checkpoints WHERE run_id = ? AND pruned_at IS NULL", (run_id,)).fetchone()[
        0
    ]
    row = tx.execute(_NEWEST, (run_id,)).fetchone()
    return Line(kept, None if row is None else record(CheckpointRow, row))


def add(tx: Tx, row: CheckpointRow) -> None:
    """The newest of its run from now on; one of the same name, pruned or other in content, gives way."""
    tx.execute("DELETE FROM checkpoints WHERE run_id = ? AND name = ?", (row.run_id, row.name))
    tx.execute(
        "INSERT INTO checkpoints (run_id, name, step, epoch, bytes, files, manifest, published_at, pruned_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row.run_id, row.name, row.step, row.epoch, row.bytes, row.files, row.manifest, row.published_at,
         row.pruned_at),
    )  # fmt: skip
    tx.changes.append(CheckpointSaved(row))


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
