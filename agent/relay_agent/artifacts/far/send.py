"""Sending: what a checkpoint's archive is, and its bytes, from wherever the other side has come to.

The archive is made twice, once to be hashed and once to be sent, and kept nowhere: a pod's own disk need not hold a
second copy of a checkpoint that may be as large as it is, and the packing is behind the network's speed nearly always
(`make bench`, `artifact`). It is the same both times (`relaytui.archive`); were it not, the commander would say so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from relay_agent.artifacts.far.commander import BROKEN, Commander, unreachable
from relay_agent.artifacts.far.failures import StoreRefused
from relay_agent.artifacts.jobs import Archive, Kept, Put, Seal
from relay_agent.checkpoints.manifest import MANIFEST, Sealed, Torn, read
from relay_agent.checkpoints.receiving import manifest_of
from relay_agent.sending.child import Tell
from relay_agent.sending.trouble import Trouble
from relaytui.archive.pack import Pack
from relaytui.wire.artifacts import OFFSET_HEADER, ArtifactKind, Began, BeginUpload, Offset, Stored

CHUNK = 8 << 20
"""Bytes of one request. The commander makes each durable before it answers; two are in memory."""
WORKERS = 1 + min(3, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""Threads that compress: one more than processors, as each waits now and then to be fed."""
PATH = "/api/artifacts/uploads"
MANIFESTS = f"checkpoint.{MANIFEST}"
"""What all manifests are called there, so that as many of them are kept as of checkpoints; a checkpoint's own is found
by its hash."""


class Source(Protocol):
    """What is sent. `chunk(offset)`: the bytes from there, as many as go into one request; `end` ends its threads."""

    size: int

    def chunk(self, offset: int) -> memoryview: ...
    def end(self) -> None: ...


def seal(job: Seal, tell: Tell) -> Archive:
    pack = _pack(job.folder, job.manifest, job.store.run_id)
    tell.phase("hashing")
    digest, size = sha256(), 0
    with ThreadPoolExecutor(1, "hash") as pool:
        hashing = pool.submit(digest.update, b"")
        for piece in pack.chunks(WORKERS):
            hashing.result()  # the next piece is made while one is hashed, and no more of them
            hashing = pool.submit(digest.update, piece)
            size += len(piece)
            tell.progress(pack.read_bytes, pack.content_bytes)
    return Archive(digest.hexdigest(), size)


def put(job: Put, tell: Tell) -> Kept:
    """The manifest first: what has an archive there has a manifest, too, by which it is found again."""
    folder, store = Path(job.folder), job.store
    sealed = _sealed(folder, job.manifest, store.run_id)
    step, name = sealed.manifest.step, sealed.name
    data = manifest_of(folder)
    about = BeginUpload(
        store.run_id, ArtifactKind.FILE, MANIFESTS, job.manifest, len(data), store.epoch, store.token, step,
        job.manifest, job.final,
    )  # fmt: skip
    archive = BeginUpload(
        store.run_id, ArtifactKind.CHECKPOINT, name, job.archive.sha256, job.archive.size, store.epoch, store.token,
        step, job.manifest, job.final,
    )  # fmt: skip
    with Commander(store) as commander:
        tell.phase("uploading")
        upload(commander, about, Whole(data), tell)
        return upload(
            commander, archive, _Packed(folder, sealed, job.archive.size, tell), tell, tell.progress, store.finish
        )


Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """Of what is too small to be shown."""


def upload(
    commander: Commander,
    about: BeginUpload,
    source: Source,
    tell: Tell,
    progress: Progress = _silent,
    finish: float = 60.0,
) -> Kept:
    """All of one thing, from where an earlier try ended. Trouble."""
    began = commander.ask("POST", PATH, Began, about)
    if began.stored and began.artifact is not None:
        return Kept(began.artifact.id, 0, True)
    sending = _Sending(commander, f"{PATH}/{began.upload}", source, progress)
    try:
        sending.work(began.offset)
        if progress is not _silent:
            tell.phase("commit")
        tell.may("finish")
        stored = _finished(commander, f"{PATH}/{began.upload}", tell, finish, sending)
    finally:
        source.end()
    return Kept(stored.artifact.id, sending.sent, False)


def _finished(commander: Commander, path: str, tell: Tell, timeout: float, sending: _Sending) -> Stored:
    for _ in range(3):
        tell.still("finish")
        try:
            return commander.ask("POST", f"{path}/finish", Stored, timeout=timeout)
        except StoreRefused as refused:
            if refused.code != "incomplete" or refused.offset is None:
                raise
            sending.work(refused.offset)
            tell.may("finish")
    raise Trouble("incomplete", "the commander loses bytes that it had", "transient")


class _Sending:
    def __init__(self, commander: Commander, path: str, source: Source, progress: Progress) -> None:
        self._commander = commander
        self._path = path
        self._source = source
        self._progress = progress
        self._failed = 0
        self.sent = 0

    def work(self, offset: int) -> None:
        """Until all of it is there."""
        size = self._source.size
        self._progress(offset, size)
        while offset < size:
            before = offset
            try:
                offset = self._send(offset)
            except StoreRefused as refused:
                if refused.kind == "permanent" or refused.code == "unknown_upload":
                    raise
                offset = before if refused.offset is None else refused.offset
                self._wait(refused, further=offset > before)
            except BROKEN as error:
                self._wait(unreachable(self._commander.url, error), further=False)
                offset = self._commander.ask("GET", self._path, Offset).offset
            if offset > before:
                self._failed = 0
                self._progress(offset, size)

    def _send(self, offset: int) -> int:
        data = self._source.chunk(offset)
        at = self._commander.once("PATCH", self._path, Offset, data, headers={OFFSET_HEADER: str(offset)}).offset
        self.sent += max(0, at - offset)
        return at

    def _wait(self, trouble: Trouble, *, further: bool) -> None:
        self._failed = 0 if further else self._failed + 1
        if self._failed:
            self._commander.backoff.again(self._failed, trouble)


class Whole:
    """Bytes that are in memory."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = memoryview(data)

    def chunk(self, offset: int) -> memoryview:
        return self._data[offset : offset + CHUNK]

    def end(self) -> None:
        pass


class _Packed:
    """An archive that is made while it is sent: the next chunk is, while one is on its way."""

    def __init__(self, folder: Path, sealed: Sealed, size: int, tell: Tell) -> None:
        self.size = size
        self._tell = tell
        self._pack = Pack(folder, _names(sealed))
        self._pool = ThreadPoolExecutor(1, "pack")
        self._pieces: Iterator[bytes] = iter(())
        self._rest = memoryview(b"")
        self._at = -1
        self._now: memoryview = memoryview(b"")
        self._next: Future[memoryview] | None = None

    def chunk(self, offset: int) -> memoryview:
        if self._at >= 0 and self._at <= offset < self._at + len(self._now):
            return self._now[offset - self._at :]
        if self._next is None or offset != self._at + len(self._now):
            self._begin(offset)
        assert self._next is not None
        self._at, self._now = offset, self._next.result()
        if not self._now:
            raise Trouble("changed", "the archive is shorter than it was: the checkpoint changed meanwhile")
        self._next = self._pool.submit(self._make, CHUNK)
        return self._now

    def _begin(self, offset: int) -> None:
        """Make it anew up to there: it is read again, but not sent. That takes its time, and is told."""
        if self._next is not None:
            self._next.exception()
        self._pieces, self._rest = self._pack.chunks(WORKERS), memoryview(b"")
        if offset:
            self._tell.phase("hashing")
            self._pool.submit(self._skip, offset).result()
            self._tell.phase("uploading")
        self._next = self._pool.submit(self._make, CHUNK)

    def _skip(self, offset: int) -> None:
        skipped = 0
        while skipped < offset and (made := self._make(min(CHUNK, offset - skipped))):
            skipped += len(made)
            self._tell.progress(skipped, offset)

    def _make(self, count: int) -> memoryview:
        """The next `count` bytes; fewer at the end alone."""
        made, have = bytearray(count), 0
        while have < count:
            piece = self._rest or memoryview(next(self._pieces, b""))
            if not piece:
                break
            used = min(len(piece), count - have)
            made[have : have + used] = piece[:used]
            self._rest = piece[used:]
            have += used
        return memoryview(made)[:have]

    def end(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _sealed(folder: Path, manifest: str, run_id: str) -> Sealed:
    """Torn where it is not the one that was published."""
    sealed = read(folder, run_id)
    if sealed.sha256 != manifest:
        raise Torn("another checkpoint has its name by now")
    return sealed


def _names(sealed: Sealed) -> list[str]:
    return [MANIFEST, *(file.path for file in sealed.manifest.files)]


def _pack(folder: str, manifest: str, run_id: str) -> Pack:
    return Pack(Path(folder), _names(_sealed(Path(folder), manifest, run_id)))
