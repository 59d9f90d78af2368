"""Rules of the artifact store: what an upload is, and what gives way to what is newer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from relaytui.wire.artifacts import ArtifactKind, ArtifactRow, FinishUpload
from relaytui.wire.errors import RelayError

MAX_UNFINISHED = 8
"""Uploads of one run on their way at a time."""
MAX_ROWS = 2_000
"""Artifacts of one run: quotas count bytes, and files may be empty."""


class Upload(Struct, frozen=True):
    """An upload on its way. `pod`: by the holder of lease `epoch`; else an operator's. Without a `sha256` its end says
    what it is, and `size` what it is at most."""

    upload: str
    run_id: str
    kind: ArtifactKind
    name: str
    sha256: str
    size: int
    begun_at: float
    by: str
    pod: bool
    epoch: int
    step: int | None = None
    manifest_sha256: str | None = None
    final: bool = False


def as_told(upload: Upload, told: FinishUpload | None) -> Upload:
    """What it is, by its end. RelayError 422 where that says too little, or something else than its beginning."""
    if told is None and not upload.sha256:
        raise RelayError("bad_field", "sha256 is missing", "it was begun without: say what was sent", status=422)
    if told is None:
        return upload
    if told.size > upload.size or (upload.sha256 and told != FinishUpload(upload.sha256, upload.size)):
        message = f"sha256, size: {told.sha256[:16]}… of {told.size} bytes is not what was begun"
        raise RelayError("bad_field", message, "begin again with what it is now", status=422)
    return replace(upload, sha256=told.sha256, size=told.size)


def in_words(size: int) -> str:
    """`0 B`, `999 B`, `1.5 kB`, `20 GB`."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def gives_way(rows: Sequence[ArtifactRow], keep: int) -> list[ArtifactRow]:
    """Which go of one run's artifacts of one kind (of files: of one name), newest first: beyond the `keep` newest.

    The newest final one stays whatever came after it. One that is damaged takes no place of a whole one. 0 keeps all.
    """
    if not keep:
        return []
    whole = [row for row in rows if not row.damaged]
    kept = {row.id for row in whole[:keep]}
    kept.update([row.id for row in whole if row.final][:1])
    oldest = min((row.id for row in whole[:keep]), default=0)
    return [row for row in rows if row.id not in kept and row.id < oldest]
