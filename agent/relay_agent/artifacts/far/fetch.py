"""Bringing back: which checkpoints of a run are there, and one of them, into a private folder on the volume."""

from __future__ import annotations

import hashlib
import http.client
import shutil
from pathlib import Path

from relay_agent.artifacts.far.commander import BROKEN, Commander, unreachable
from relay_agent.artifacts.far.failures import StoreRefused
from relay_agent.artifacts.far.send import MANIFESTS
from relay_agent.artifacts.jobs import Archive, Came, ListStored, Offer, Offers, Pull
from relay_agent.checkpoints.disk import SYSTEM, make_folder
from relay_agent.checkpoints.manifest import MAX_BYTES, Manifest, Torn, decode
from relay_agent.checkpoints.receiving import refuse_foreign
from relay_agent.sending.child import Tell
from relay_agent.sending.protocol import Step
from relaytui.archive.errors import BadArchive
from relaytui.archive.extract import Limits, extract
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow, Artifacts

MOST_OFFERS = 20
"""The newest that are looked at: of a run that keeps all, the others are not gone on from."""


def offers(job: ListStored, tell: Tell) -> Offers:
    tell.phase("looking")
    with Commander(job.store) as commander:
        rows = commander.ask("GET", f"/api/artifacts?run={job.store.run_id}", Artifacts).artifacts
        manifests = {row.sha256: row for row in rows if row.kind is ArtifactKind.FILE and row.name == MANIFESTS}
        newest = [row for row in reversed(rows) if row.kind is ArtifactKind.CHECKPOINT][:MOST_OFFERS]
        return Offers([_offer(commander, row, manifests) for row in newest])


def _offer(commander: Commander, row: ArtifactRow, manifests: dict[str, ArtifactRow]) -> Offer:
    archive = Archive(row.sha256, row.size)
    tag, number = f"artifact {row.id}", str(row.id)
    beside = manifests.get(row.manifest_sha256 or "")
    try:
        if row.damaged:
            raise Torn(f"it is damaged there: {row.damaged}")
        if beside is None or beside.damaged:
            raise Torn(f"its {MANIFESTS}, which would say what it is, is not there")
        manifest = _manifest(commander, beside)
    except Torn as torn:
        return Offer(Step(tag, number, torn.reason), archive, 0)
    except StoreRefused as refused:
        if refused.code != "unknown_artifact":
            raise
        return Offer(Step(tag, number, "it was deleted there just now"), archive, 0)
    step = Step.of(tag, number, manifest, beside.sha256)
    return Offer(step, archive, len(manifest.files))


def _manifest(commander: Commander, row: ArtifactRow) -> Manifest:
    """Torn where it is none, or not the one that its hash says."""
    if row.size > MAX_BYTES:
        raise Torn("its manifest is too large")
    coming = _Coming(commander, row.id, row.size)
    data = b"".join(iter(lambda: coming.read(row.size), b""))
    if hashlib.sha256(data).hexdigest() != row.sha256:
        commander.doubt(row.id)
        raise Torn("its manifest came with another hash")
    manifest = decode(data)
    refuse_foreign(manifest)
    return manifest


def pull(job: Pull, tell: Tell) -> Came:
    """Extracted as it comes: what a broken connection left is gone on with, what a dead child left is not."""
    place = Path(job.place)
    for path in (place.parent, place):
        make_folder(SYSTEM, path)
    for old in place.iterdir():
        shutil.rmtree(old, ignore_errors=True)
    tell.phase("downloading")
    size = job.archive.size
    limits = Limits.of(size, job.content + MAX_BYTES, job.files + 1)  # and the manifest
    commander = Commander(job.store)
    coming = _Coming(commander, job.artifact, size)
    try:
        # By its share of the bytes that come: what is shown is of the checkpoint's own size.
        done = extract(
            coming.read, place / job.name, limits, sha256=job.archive.sha256, durable=True,
            progress=lambda read: tell.progress(job.content * read // max(1, size), job.content),
        )  # fmt: skip
    except BadArchive:
        coming.close()  # the rest of it is still to come there
        commander.doubt(job.artifact)
        raise
    finally:
        coming.close()
    return Came(str(place / job.name), done.size)


class _Coming:
    """A content that goes on where its connection broke."""

    def __init__(self, commander: Commander, artifact: int, size: int) -> None:
        self._commander = commander
        self._path = f"/api/artifacts/{artifact}/content"
        self._size = size
        self._at = 0
        self._response: http.client.HTTPResponse | None = None
        self._failed = 0

    def read(self, count: int) -> bytes:
        while self._at < self._size:
            try:
                data = self._connected().read(min(count, self._size - self._at))
                if data:
                    self._at += len(data)
                    self._failed = 0
                    return data
                raise ConnectionResetError("the connection ended in the middle of it")
            except BROKEN as error:
                self.close()
                self._failed += 1
                self._commander.backoff.again(self._failed, unreachable(self._commander.url, error))
        return b""

    def _connected(self) -> http.client.HTTPResponse:
        if self._response is None:
            self._response = self._commander.content(self._path, self._at)
        return self._response

    def close(self) -> None:
        self._response = None
        self._commander.close()
