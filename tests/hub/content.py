"""Bytes by their sha256 on disk, shared by all repositories of a hub."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType

BATCH = 4 << 20
"""Bytes that go to a thread at once: written and hashed there, both without the interpreter's lock."""


class Content:
    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        self._incoming = folder / "incoming"
        self._objects.mkdir(parents=True, exist_ok=True)
        self._incoming.mkdir(exist_ok=True)

    def path(self, sha256: str) -> Path:
        return self._objects / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def put(self, data: bytes) -> str:
        """The sha256 of `data`, which lies there from now on."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.has(sha256):
            at = self._incoming / uuid.uuid4().hex
            at.write_bytes(data)
            self.keep(at, sha256)
        return sha256

    def read(self, sha256: str) -> bytes:
        return self.path(sha256).read_bytes()

    def on_disk(self) -> int:
        """Bytes of all objects."""
        return sum(path.stat().st_size for path in self.paths())

    def unfinished(self) -> list[Path]:
        """Bodies and parts that are on their way in, or were left behind."""
        return list(self._incoming.iterdir())

    def receive(self) -> Incoming:
        return Incoming(self, self._incoming / uuid.uuid4().hex)

    def join(self, parts: list[Path]) -> tuple[Path, str, int]:
        """One incoming file of several, its sha256 and size; blocking."""
        at, hashing, size = self._incoming / uuid.uuid4().hex, hashlib.sha256(), 0
        with at.open("wb") as whole:
            for part in parts:
                with part.open("rb") as source:
                    while data := source.read(BATCH):
                        hashing.update(data)
                        whole.write(data)
                        size += len(data)
        return at, hashing.hexdigest(), size

    def keep(self, at: Path, sha256: str) -> None:
        """The incoming file becomes the object of that name."""
        path = self.path(sha256)
        path.parent.mkdir(exist_ok=True)
        at.replace(path)

    def paths(self) -> list[Path]:
        return list(self._objects.glob("*/*"))


class Incoming:
    """A body on its way in: `async with` it; what is not kept by then is gone."""

    def __init__(self, content: Content, path: Path) -> None:
        self._content = content
        self.path = path
        self.size = 0
        self._hashing = hashlib.sha256()
        self.kept = False

    async def __aenter__(self) -> Incoming:
        self._file = self.path.open("wb", buffering=0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._file.close()
        if not self.kept:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()

    async def take(self, chunks: AsyncIterator[bytes]) -> None:
        """Reads to the end; the next chunks come in while the last ones are being written."""
        writing: asyncio.Task[None] | None = None
        waiting: list[bytes] = []
        held = 0
        try:
            async for chunk in chunks:
                waiting.append(chunk)
                held += len(chunk)
                self.size += len(chunk)
                if held >= BATCH:
                    if writing is not None:
                        await writing
                    writing = asyncio.create_task(asyncio.to_thread(self._write, waiting))
                    waiting, held = [], 0
        finally:
            if writing is not None:
                await writing
        if waiting:
            if held < 64 << 10:
                self._write(waiting)  # a thread would cost more
            else:
                await asyncio.to_thread(self._write, waiting)

    def _write(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._hashing.update(chunk)
            self._file.write(chunk)

    @property
    def sha256(self) -> str:
        return self._hashing.hexdigest()

    def keep(self) -> None:
        """It becomes an object of that content."""
        self._content.keep(self.path, self.sha256)
        self.kept = True
