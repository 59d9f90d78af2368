"""Rows of what is stored: they come, give way, go, are found damaged or whole, and the history of their runs says so.

All of it happens in somebody's transaction. Contents are files: which of them no row has any more, is returned.
"""

from __future__ import annotations

from relaytui.commander.model.artifacts import Upload, gives_way
from relaytui.commander.services import endings
from relaytui.commander.store import artifacts as store
from relaytui.commander.store import history
from relaytui.commander.store.writer import Tx
from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.clock import Clock
from relaytui.wire.errors import RelayError


class Rows:
    """`keep`: how many of a run's checkpoints, and of its files of one name, stay."""

    def __init__(self, clock: Clock, keep: int) -> None:
        self._clock = clock
        self._keep = keep

    def add_in(self, tx: Tx, upload: Upload, words: str) -> tuple[ArtifactRow, list[str]]:
        """The row, and contents of those beyond the newest few, which gave way."""
        known = store.same(tx, upload.run_id, upload.kind, upload.name, upload.sha256)
        if known is not None:
            return store.come_again(tx, known, upload), []
        at = self._clock.wall()
        row = store.add(
            tx,
            ArtifactRow(
                0, upload.run_id, upload.kind, upload.name, upload.sha256, upload.size, at, upload.by, upload.epoch,
                upload.step, upload.manifest_sha256, upload.final, at,
            ),
            upload.upload,
        )  # fmt: skip
        self._say(tx, "artifact.stored", upload.by, f"{row.kind} {row.name}: {words}", row)
        gone = list[str]()
        for old in gives_way(store.rivals(tx, row), self._keep):
            message = f"{old.kind} {old.name} gives way: the newest {self._keep} are kept"
            gone += self._remove_in(tx, old, endings.COMMANDER, message, "which gave way")
        return row, gone

    def delete_in(self, tx: Tx, artifact: int, by: str, why: str) -> tuple[ArtifactRow, list[str]]:
        """The row that was, and contents of what went. RelayError 404."""
        row = store.get(tx, artifact)
        if row is None:
            raise unknown_artifact(artifact)
        message = why or f"{row.kind} {row.name} deleted by {by}"
        return row, self._remove_in(tx, row, by, message, "which is deleted")

    def _remove_in(self, tx: Tx, row: ArtifactRow, by: str, message: str, why: str) -> list[str]:
        """A checkpoint's manifest goes along, where no other has it."""
        store.remove(tx, row)
        self._say(tx, "artifact.deleted", by, message, row)
        beside = store.manifests_of_none(tx, row)
        for manifest in beside:
            store.remove(tx, manifest)
            self._say(tx, "artifact.deleted", by, f"the manifest of {row.name}, {why}", manifest)
        return [each.sha256 for each in (row, *beside)]

    def damaged_in(self, tx: Tx, sha256: str, why: str) -> None:
        """All rows of that content say so from now on."""
        for row in store.found_damaged(tx, sha256, why):
            self._say(tx, "artifact.damaged", endings.COMMANDER, f"{row.kind} {row.name}: {why}", row)

    def whole_in(self, tx: Tx, sha256: str, how: str) -> None:
        for row in store.found_whole(tx, sha256, self._clock.wall()):
            self._say(tx, "artifact.mended", endings.COMMANDER, f"{row.kind} {row.name}: {how}", row)

    def _say(self, tx: Tx, kind: str, by: str, message: str, row: ArtifactRow) -> None:
        data = {
            "id": str(row.id),
            "kind": str(row.kind),
            "name": row.name,
            "bytes": str(row.size),
            "sha256": row.sha256,
        }
        if row.step is not None:
            data["step"] = str(row.step)
        history.add_event(tx, self._clock.wall(), kind, by, message, row.run_id, row.epoch, data)


def unknown_artifact(artifact: int) -> RelayError:
    return RelayError("unknown_artifact", f"no artifact {artifact}", "see `relay-tui artifacts list`", status=404)
