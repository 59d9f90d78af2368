"""Sending: a checkpoint's archive, made while it is sent, from wherever the other side has come to.

It is hashed on its way, and kept nowhere: a pod's own disk need not hold a second copy of a checkpoint that may be as
large as it is. Made again it is the same (`relaytui.archive`), so one that broke off goes on where it was; were it not,
the commander would say so at the end. Each file is held against its manifest on the way: what was damaged since it was
published never comes to an end there, and what came of it is given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from relay_agent.artifacts.far.commander import BROKEN, UPLOADS, Commander, unreachable
from relay_agent.artifacts.far.failures import StoreRefused
from relay_agent.artifacts.far.under_way import UnderWay
from relay_agent.artifacts.jobs import Kept, Put
from relay_agent.checkpoints.manifest import MANIFEST, Sealed, Torn, read
from relay_agent.checkpoints.receiving import manifest_of
from relay_agent.sending.child import Tell
from relay_agent.sending.trouble import Trouble
from relaytui.archive.errors import Damaged, SourceChanged
from relaytui.archive.pack import Pack
from relaytui.wire.artifacts import (
    OFFSET_HEADER,
    ArtifactKind,
    Began,
    BeginUpload,
    FinishUpload,
    Offset,
    Stored,
)

CHUNK = 8 << 20
"""Bytes of one request. The commander makes each durable before it answers; two are in memory."""
WORKERS = 1 + min(3, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""Threads that compress: one more than processors, as each waits now and then to be fed."""
MANIFESTS = f"checkpoint.{MANIFEST}"
"""What all manifests are called there, so that as many of them are kept as of checkpoints; a checkpoint's own is found
by its hash."""


class Source(Protocol):
    """What is sent. `chunk(offset)`: the bytes from there, as many as go into one request, none at the end; `sent` is
    called with how far they are there. `whole`: what all of it was, where nobody knew before; `measured`: the same
    before anything is sent. `end` ends its threads.
    """

    def chunk(self, offset: int) -> memoryview: ...
    def sent(self, offset: int) -> None: ...
    def whole(self) -> FinishUpload | None: ...
    def measured(self) -> FinishUpload | None: ...
    def end(self) -> None: ...


def put(job: Put, tell: Tell) -> Kept:
    """The manifest first: what has an archive there has a manifest, too, by which it is found again. It is never what
    the run ended with: the archive may not come. Torn where the checkpoint is not what was published."""
    folder, store = Path(job.folder), job.store
    sealed = _sealed(folder, job.manifest, store.run_id)
    step, name = sealed.manifest.step, sealed.name
    data = manifest_of(folder)
    about = BeginUpload(
        store.run_id, ArtifactKind.FILE, MANIFESTS, job.manifest, len(data), store.epoch, store.token, step,
        job.manifest,
    )  # fmt: skip
    known = {file.path: (file.size, file.sha256) for file in sealed.manifest.files}
    tell.phase("uploading")
    with Commander(store) as commander:
        under_way = UnderWay(commander, job)
        try:
            pack = Pack(folder, known={MANIFEST: (len(data), job.manifest), **known})
            archive = BeginUpload(
                store.run_id, ArtifactKind.CHECKPOINT, name, None, pack.most_bytes, store.epoch, store.token, step,
                job.manifest, job.final,
            )  # fmt: skip
            under_way.leave_others()
            upload(commander, about, Whole(data), tell)
            kept = upload(commander, archive, _Packed(pack, tell), tell, store.finish, under_way.begun)
        except SourceChanged as error:
            under_way.give_up()
            if isinstance(error, Damaged):
                raise Torn(f"{name} is damaged: {error.words}") from None
            raise
        under_way.over()
    return kept


def upload(
    commander: Commander, about: BeginUpload, source: Source, tell: Tell, finish: float = 60.0,
    begun: Callable[[str], None] = lambda upload: None,
) -> Kept:  # fmt: skip
    """All of one thing, from where an earlier try ended. Trouble. `begun` is told the upload's id."""
    try:
        began = _began(commander, about, source, tell)
        if began.stored and began.artifact is not None:
            return Kept(began.artifact.id, began.artifact.size, 0, True)
        begun(began.upload)
        path = f"{UPLOADS}/{began.upload}"
        sending = _Sending(commander, path, source)
        sending.work(began.offset)
        if about.sha256 is None:
            tell.phase("commit")
        tell.may("finish")
        stored = _finished(commander, path, tell, finish, sending)
    finally:
        source.end()
    return Kept(stored.artifact.id, stored.artifact.size, sending.sent, False)


def _began(commander: Commander, about: BeginUpload, source: Source, tell: Tell) -> Began:
    """What is there by its manifest alone, and came from another holder of the run, has to be what we would send: that
    one may have lied. It is packed to see, and begun with its own hash where it is not."""
    began = commander.ask("POST", UPLOADS, Began, about)
    row = began.artifact
    if about.sha256 is not None or not began.stored or row is None or row.epoch == about.epoch:
        return began
    ours = source.measured()
    if ours is None or ours == FinishUpload(row.sha256, row.size):
        return began
    tell.phase("uploading")
    return commander.ask("POST", UPLOADS, Began, replace(about, sha256=ours.sha256, size=ours.size))


def _finished(commander: Commander, path: str, tell: Tell, timeout: float, sending: _Sending) -> Stored:
    for _ in range(3):
        tell.still("finish")
        try:
            return commander.ask("POST", f"{path}/finish", Stored, sending.source.whole(), timeout=timeout)
        except StoreRefused as refused:
            if refused.code != "incomplete" or refused.offset is None:
                raise
            sending.work(refused.offset)
            tell.may("finish")
    raise Trouble("incomplete", "the commander loses bytes that it had", "transient")


class _Sending:
    def __init__(self, commander: Commander, path: str, source: Source) -> None:
        self.source = source
        self._commander = commander
        self._path = path
        self._failed = 0
        self.sent = 0

    def work(self, offset: int) -> None:
        """Until all of it is there."""
        self.source.sent(offset)
        while data := self.source.chunk(offset):
            before = offset
            try:
                offset = self._send(offset, data)
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
                self.source.sent(offset)

    def _send(self, offset: int, data: memoryview) -> int:
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
        self._data = memoryview(data)

    def chunk(self, offset: int) -> memoryview:
        return self._data[offset : offset + CHUNK]

    def sent(self, offset: int) -> None:
        """It is too small to be shown."""

    def whole(self) -> None:
        """That was said when it was begun."""

    def measured(self) -> None:
        """And nothing is known by less than that."""

    def end(self) -> None:
        pass


class _Packed:
    """An archive that is made while it is sent: the next chunk is, while one is on its way."""

    def __init__(self, pack: Pack, tell: Tell) -> None:
        self._tell = tell
        self._pack = pack
        self._pool = ThreadPoolExecutor(1, "pack")
        self._pieces: Iterator[bytes] = iter(())
        self._rest = memoryview(b"")
        self._digest, self._size = sha256(), 0
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
        self._next = self._pool.submit(self._make, CHUNK)
        return self._now

    def _begin(self, offset: int) -> None:
        self._anew()
        if offset:
            self._unsent(offset)
            self._tell.phase("uploading")
        self._next = self._pool.submit(self._make, CHUNK)

    def _anew(self) -> None:
        if self._next is not None:
            self._next.exception()
        self._pieces, self._rest = self._pack.chunks(WORKERS), memoryview(b"")
        self._digest, self._size = sha256(), 0

    def _unsent(self, offset: int) -> None:
        """Made up to there: read, but not sent. That takes its time, and is told."""
        self._tell.phase("hashing")
        self._pool.submit(self._skip, offset).result()

    def measured(self) -> FinishUpload:
        self._anew()
        self._unsent(self._pack.most_bytes + 1)
        return self.whole()

    def _skip(self, offset: int) -> None:
        skipped = 0
        while skipped < offset and (made := self._make(min(CHUNK, offset - skipped))):
            skipped += len(made)
            self.sent(skipped)

    def _make(self, count: int) -> memoryview:
        """The next `count` bytes, hashed; fewer at the end alone."""
        made, have = bytearray(count), 0
        while have < count:
            piece = self._rest or memoryview(next(self._pieces, b""))
            if not piece:
                break
            used = min(len(piece), count - have)
            made[have : have + used] = piece[:used]
            self._rest = piece[used:]
            have += used
        whole = memoryview(made)[:have]
        self._digest.update(whole)
        self._size += have
        return whole

    def sent(self, offset: int) -> None:
        """Told in bytes of the files in it: how many it will be is not known yet."""
        self._tell.progress(self._pack.read_bytes, self._pack.file_bytes)

    def whole(self) -> FinishUpload:
        """Once `chunk` was empty."""
        if self._next is not None:
            self._next.exception()
        return FinishUpload(self._digest.hexdigest(), self._size)

    def end(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _sealed(folder: Path, manifest: str, run_id: str) -> Sealed:
    """Torn where it is not the one that was published."""
    sealed = read(folder, run_id)
    if sealed.sha256 != manifest:
        raise Torn("another checkpoint has its name by now")
    return sealed
