"""Rows of artifacts and of uploads on their way. Their bytes are files (`content`), and no row is ahead of its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple, replace

from relaytui.commander.model.artifacts import Upload
from relaytui.commander.store.changes import ArtifactRemoved, ArtifactSaved
from relaytui.commander.store.columns import columns, record, select, upsert
from relaytui.commander.store.writer import Tx
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow

COLUMNS = columns(ArtifactRow, {"by": "actor"})
_GET = select("artifacts", COLUMNS, "WHERE id = ?")
_OF_UPLOAD = select("artifacts", COLUMNS, "WHERE upload = ?")
_SAME = select(
    "artifacts", COLUMNS, "WHERE run_id = ? AND kind = ? AND name = ? AND sha256 = ? ORDER BY id DESC LIMIT 1"
)
_OF_CONTENT = select("artifacts", COLUMNS, "WHERE sha256 = ? ORDER BY id")
_OF_MANIFEST = select(
    "artifacts", COLUMNS,
    "WHERE run_id = ? AND kind = ? AND manifest_sha256 = ? AND damaged = '' ORDER BY id DESC LIMIT 1",
)  # fmt: skip
_OF_KIND = select("artifacts", COLUMNS, "WHERE run_id = ? AND kind = ? ORDER BY id DESC")
_CHECKPOINTS = select("artifacts", COLUMNS, "WHERE kind = ? AND step IS NOT NULL ORDER BY id")
_NEEDED = """manifest_sha256 IS sha256 AND EXISTS (
    SELECT 1 FROM artifacts AS other
    WHERE other.run_id = artifacts.run_id AND other.kind = 'checkpoint' AND other.manifest_sha256 = artifacts.sha256
)"""
"""Of a file: it is the manifest of a checkpoint that is stored, which is known by it."""
_OF_NAME = select(
    "artifacts", COLUMNS, f"WHERE run_id = ? AND kind = ? AND name = ? AND NOT ({_NEEDED}) ORDER BY id DESC"
)
LISTED = 5_000
"""Rows in one answer, the newest ones."""
BY_RUN = select("artifacts", COLUMNS, f"WHERE run_id = ? ORDER BY id DESC LIMIT {LISTED}")
EVERYTHING = select("artifacts", COLUMNS, f"ORDER BY id DESC LIMIT {LISTED}")

UPLOAD = columns(Upload, {"by": "actor"})
_ALL_UPLOADS = select("uploads", UPLOAD)
_BEGUN = select("uploads", UPLOAD, "WHERE run_id = ? AND kind = ? AND name = ? AND sha256 = ? AND pod = ?")
_UPLOADS_OF = select("uploads", UPLOAD, "WHERE run_id = ? ORDER BY begun_at")
_SAVE_UPLOAD = upsert("uploads", UPLOAD, ["upload"])

HELD = "SELECT coalesce(sum(size), 0) FROM (SELECT DISTINCT sha256, size FROM artifacts {})"
_COMING = "SELECT coalesce(sum(size), 0) FROM uploads {}"
CONTENTS = "SELECT sha256, size, max(damaged = '') FROM artifacts GROUP BY sha256, size"
"""(sha256, size, whether a row of it is thought whole) of everything that should be on the disk."""


def row_of(row: Sequence[Any]) -> ArtifactRow:
    return record(ArtifactRow, row)


def get(tx: Tx, artifact: int) -> ArtifactRow | None:
    return _one(tx, _GET, artifact)


def of_upload(tx: Tx, upload: str) -> ArtifactRow | None:
    """What that upload became."""
    return _one(tx, _OF_UPLOAD, upload)


def same(tx: Tx, run_id: str, kind: ArtifactKind, name: str, sha256: str) -> ArtifactRow | None:
    return _one(tx, _SAME, run_id, kind, name, sha256)


def of_manifest(tx: Tx, run_id: str, kind: ArtifactKind, manifest: str) -> ArtifactRow | None:
    """The newest that is thought whole."""
    return _one(tx, _OF_MANIFEST, run_id, kind, manifest)


def of_content(tx: Tx, sha256: str) -> list[ArtifactRow]:
    return [row_of(row) for row in tx.execute(_OF_CONTENT, (sha256,))]


def rivals(tx: Tx, row: ArtifactRow) -> list[ArtifactRow]:
    """Those that it is counted with when the oldest give way, itself among them, newest first. A manifest is counted
    only while there is no checkpoint that is known by it."""
    if row.kind is ArtifactKind.FILE:
        return [row_of(each) for each in tx.execute(_OF_NAME, (row.run_id, row.kind, row.name))]
    return [row_of(each) for each in tx.execute(_OF_KIND, (row.run_id, row.kind))]


def manifests_of_none(tx: Tx, gone: ArtifactRow) -> list[ArtifactRow]:
    """What agents stored beside a checkpoint that is gone: files that are its manifest and say so, while no other
    checkpoint of that run has the same one."""
    manifest = gone.manifest_sha256
    if gone.kind is not ArtifactKind.CHECKPOINT or manifest is None:
        return []
    others = (row_of(each) for each in tx.execute(_OF_KIND, (gone.run_id, ArtifactKind.CHECKPOINT)))
    if any(row.manifest_sha256 == manifest for row in others):
        return []
    beside = (row for row in of_content(tx, manifest) if row.run_id == gone.run_id)
    return [row for row in beside if row.kind is ArtifactKind.FILE and row.manifest_sha256 == manifest]


def checkpoints(tx: Tx) -> list[ArtifactRow]:
    """Of all runs, stored first, first."""
    return [row_of(row) for row in tx.execute(_CHECKPOINTS, (ArtifactKind.CHECKPOINT,))]


def count(tx: Tx, run_id: str) -> int:
    return int(tx.execute("SELECT count(*) FROM artifacts WHERE run_id = ?", (run_id,)).fetchone()[0])


def used(tx: Tx, run_id: str | None = None) -> int:
    """Bytes of all that is stored (once each) and announced; with `run_id` those of that run."""
    where, values = ("WHERE run_id = ?", (run_id,)) if run_id is not None else ("", ())
    return sum(int(tx.execute(query.format(where), values).fetchone()[0]) for query in (HELD, _COMING))


def add(tx: Tx, row: ArtifactRow, upload: str | None) -> ArtifactRow:
    """With the id it got."""
    names, values = [*COLUMNS[1:], "upload"], [*astuple(row)[1:], upload]
    marks = ", ".join("?" * len(names))
    cursor = tx.execute(f"INSERT INTO artifacts ({', '.join(names)}) VALUES ({marks})", values)  # noqa: S608 - ours
    return _told(tx, replace(row, id=cursor.lastrowid or 0))


def come_again(tx: Tx, row: ArtifactRow, upload: Upload) -> ArtifactRow:
    """The row of what was uploaded once more."""
    final = row.final or upload.final
    tx.execute("UPDATE artifacts SET final = ?, upload = ? WHERE id = ?", (final, upload.upload, row.id))
    return _told(tx, replace(row, final=final))


def remove(tx: Tx, row: ArtifactRow) -> None:
    tx.execute("DELETE FROM artifacts WHERE id = ?", (row.id,))
    tx.changes.append(ArtifactRemoved(row))


def found_whole(tx: Tx, sha256: str, at: float) -> list[ArtifactRow]:
    """Rows that were thought damaged until now, as they are from now on."""
    before = {row.id for row in of_content(tx, sha256) if row.damaged}
    tx.execute("UPDATE artifacts SET verified_at = ?, damaged = '' WHERE sha256 = ?", (at, sha256))
    return [row for row in (_told(tx, row) for row in of_content(tx, sha256)) if row.id in before]


def found_damaged(tx: Tx, sha256: str, why: str) -> list[ArtifactRow]:
    """Rows that were thought whole until now, as they are from now on."""
    before = [row for row in of_content(tx, sha256) if not row.damaged]
    tx.execute("UPDATE artifacts SET damaged = ? WHERE sha256 = ? AND damaged = ''", (why, sha256))
    return [_told(tx, replace(row, damaged=why)) for row in before]


def _told(tx: Tx, row: ArtifactRow) -> ArtifactRow:
    """It is shown once this is committed."""
    tx.changes.append(ArtifactSaved(row))
    return row


# -- uploads -----------------------------------------------------------------------------------------------------


def uploads(tx: Tx) -> list[Upload]:
    return [record(Upload, row) for row in tx.execute(_ALL_UPLOADS)]


def uploads_of(tx: Tx, run_id: str) -> list[Upload]:
    """Begun first, first."""
    return [record(Upload, row) for row in tx.execute(_UPLOADS_OF, (run_id,))]


def begun(tx: Tx, run_id: str, kind: ArtifactKind, name: str, sha256: str, pod: bool) -> Upload | None:
    row = tx.execute(_BEGUN, (run_id, kind, name, sha256, pod)).fetchone()
    return None if row is None else record(Upload, row)


def save_upload(tx: Tx, upload: Upload) -> Upload:
    tx.execute(_SAVE_UPLOAD, astuple(upload))
    return upload


def drop_upload(tx: Tx, upload: str) -> None:
    tx.execute("DELETE FROM uploads WHERE upload = ?", (upload,))


def _one(tx: Tx, query: str, *values: Any) -> ArtifactRow | None:
    row = tx.execute(query, values).fetchone()
    return None if row is None else row_of(row)
