"""Files of a spool: records one after another, each with its length and checksum, in segments that are never rewritten.

A segment is `STREAM.ID.log`, or `STREAM.ID-LAST.log` where it stands for several that gave way. When the first of its
reports is sent it becomes `STREAM.ID.sSEQ.log`: from then on its reports have numbers, and stay as they are.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from relay_agent.checkpoints.disk import Disk, write_new
from relay_agent.guardian import OURS

RECORD = struct.Struct("<cII")
"""Kind, length of the payload, CRC-32 of kind, length and payload."""
HEADER, REPORT, MARK = b"H", b"R", b"M"
LARGEST = 4 << 20
"""Bytes of one record at most; more is damage."""
SMALLEST = RECORD.size + 16
"""Bytes that a report takes at least."""
_NAME = re.compile(r"(?P<stream>[a-z]+)\.(?P<id>\d{10})(?:-(?P<last>\d{10}))?(?:\.s(?P<first>\d{16}))?\.log\Z")


class Record(NamedTuple):
    kind: bytes
    payload: bytes
    end: int
    """Offset of what comes after it."""


class Damaged(Exception):  # noqa: N818 - it says what was found
    """A record is not as it was written, at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"damaged at byte {offset}")
        self.offset = offset


def pack(kind: bytes, payload: bytes) -> bytes:
    start = kind + len(payload).to_bytes(4, "little")
    return RECORD.pack(kind, len(payload), zlib.crc32(payload, zlib.crc32(start))) + payload


def records(data: bytes, base: int, whole: bool) -> Iterator[Record]:
    """Records in `data`, which begins at offset `base`. Damaged where one is not well; `whole`: nothing comes after."""
    at = 0
    while at < len(data):
        if len(data) - at < RECORD.size:
            if whole:
                raise Damaged(base + at)
            return
        kind, length, checksum = RECORD.unpack_from(data, at)
        if kind not in (HEADER, REPORT, MARK) or length > LARGEST:
            raise Damaged(base + at)
        end = at + RECORD.size + length
        if end > len(data):
            if whole:
                raise Damaged(base + at)
            return
        payload = data[at + RECORD.size : end]
        if zlib.crc32(payload, zlib.crc32(kind + length.to_bytes(4, "little"))) != checksum:
            raise Damaged(base + at)
        yield Record(kind, payload, base + end)
        at = end


@dataclass(eq=False)
class Segment:
    """Reports in order; on disk, or in memory where the disk does not take them."""

    stream: str
    id: int
    last_id: int
    path: Path | None
    first: int | None = None
    """Number of its first report, once it was sent."""
    size: int = 0
    reports: int = 0
    memory: bytearray = field(default_factory=bytearray)
    level: int = 0
    """How often it gave way."""
    damaged: bool = False
    tail: bytes = b""
    """What was appended last, from `tail_at` on: most of it is sent at once, and need not be read for that."""
    tail_at: int = 0

    def read(self, offset: int, length: int) -> bytes:
        """Bytes from `offset`; fewer at the end. OSError where the file does not give them."""
        length = max(0, min(length, self.size - offset))
        if self.path is None:
            return bytes(self.memory[offset : offset + length])
        if self.tail and offset >= self.tail_at:
            return self.tail[offset - self.tail_at :][:length]
        fd = os.open(self.path, os.O_RDONLY | OURS)
        try:
            return os.pread(fd, length, offset)
        finally:
            os.close(fd)

    def records(self, offset: int = 0, step: int = 1 << 20) -> Iterator[Record]:
        """All records from `offset` on, read about `step` bytes at a time; Damaged, OSError."""
        while offset < self.size:
            data = self.read(offset, step)
            before = offset
            for record in records(data, offset, whole=offset + len(data) >= self.size or not data):
                offset = record.end
                yield record
            if offset == before:  # a record that is longer than one read
                data = self.read(offset, LARGEST + RECORD.size)
                for record in records(data, offset, whole=True):
                    offset = record.end
                    yield record
                    break
                else:
                    raise Damaged(offset)


class Folder:
    """The segments of one stream in a folder. `None` for the folder: everything stays in memory."""

    def __init__(self, path: Path | None, stream: str, disk: Disk) -> None:
        self.path = path
        self.stream = stream
        self._disk = disk
        self._fd = -1
        self._open: Segment | None = None  # that `_fd` writes to
        self._strange: list[Path] = []  # with a segment's name, and no plain file
        self._unsynced: dict[Segment, None] = {}
        """What a power cut could still take, oldest first."""

    @property
    def dirty(self) -> bool:
        """Whether there is something to `sync`."""
        return bool(self._unsynced)

    def load(self) -> list[Segment]:
        """What an earlier agent left, oldest first; what a later segment stands for is deleted. OSError."""
        if self.path is None:
            return []
        found: list[Segment] = []
        for entry in sorted(self.path.iterdir()):
            match = _NAME.match(entry.name)
            if match is None or match["stream"] != self.stream:
                continue
            if not entry.is_file() or entry.is_symlink():
                self._strange.append(entry)
                continue
            first = int(match["first"]) if match["first"] else None
            last_id = int(match["last"] or match["id"])
            found.append(Segment(self.stream, int(match["id"]), last_id, entry, first, entry.stat().st_size))
        found.sort(key=lambda segment: (segment.id, -segment.last_id))
        kept: list[Segment] = []
        for segment in found:
            if kept and segment.id <= kept[-1].last_id:
                self.delete(segment)
            else:
                kept.append(segment)
        self._unsynced = dict.fromkeys(kept)  # who wrote it may have had no time for that
        return kept

    def append(self, segment: Segment, data: bytes) -> bool:
        """False where the disk does not take it: the segment is as it was, and takes no more."""
        if segment.path is None:
            segment.memory += data
        else:
            try:
                if self._open is not segment:
                    if self._open is not None:
                        self._open.tail = b""
                    self.close()
                    self._fd = (
                        self._disk.create(segment.path)
                        if not segment.size
                        else os.open(segment.path, os.O_WRONLY | OURS)
                    )
                    self._open = segment
                    os.lseek(self._fd, segment.size, os.SEEK_SET)
                if self.rescue(segment):
                    return False
                self._disk.write(self._fd, data)
            except OSError:
                self._cut(segment)
                return False
            segment.tail, segment.tail_at = data, segment.size
            self._unsynced[segment] = None
        segment.size += len(data)
        return True

    def rescue(self, segment: Segment) -> bool:
        """Somebody has deleted its file while we write to it: for as long as it is open its bytes are there, and go on
        in memory. Whether that was so."""
        if self._open is not segment or self._fd < 0 or os.fstat(self._fd).st_nlink:
            return False
        try:
            fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                segment.memory = bytearray(file.read(segment.size))
        except OSError:
            return False
        segment.path, segment.tail = None, b""
        self.close()
        return True

    def _cut(self, segment: Segment) -> None:
        """Half a record may have been written."""
        with suppress(OSError):
            if self._open is segment:
                os.ftruncate(self._fd, segment.size)
        self.close()

    def begin(self, segment: Segment, first: int) -> None:
        """Its reports have numbers from now on. OSError where that cannot be written down."""
        if segment.path is not None:
            self._move(segment, self._name(segment, first))
        segment.first = first

    def new(self, number: int, last: int | None = None, *, on_disk: bool = True) -> Segment:
        last = number if last is None else last
        segment = Segment(self.stream, number, last, None)
        if self.path is not None and on_disk:
            segment.path = self.path / self._name(segment, None)
        return segment

    def replace(self, segments: list[Segment], data: bytes) -> Segment:
        """One segment with `data` for several neighbours; in memory where the disk does not take even that."""
        merged = self.new(segments[0].id, segments[-1].last_id)
        try:
            if merged.path is not None:
                temporary = merged.path.with_suffix(".tmp")
                with suppress(FileNotFoundError):
                    self._disk.unlink(temporary)
                write_new(self._disk, temporary, data)
                self._disk.rename(temporary, merged.path)
        except OSError:
            merged.path = None
        if merged.path is None:
            merged.memory += data
        merged.size = len(data)
        for segment in segments:
            if segment.path is None or segment.path != merged.path:
                self.delete(segment)
        return merged

    def aside(self, segment: Segment) -> None:
        """A damaged one: kept for whoever wants to look, out of the way."""
        if segment.path is not None:
            with suppress(OSError):
                self._move(segment, f"{segment.path.name}.damaged")

    def strange_aside(self) -> list[Path]:
        """What is no plain file is never opened, and in nobody's way afterwards. What there was of it."""
        strange, self._strange = self._strange, []
        for path in strange:
            with suppress(OSError):
                self._disk.rename(path, path.with_name(f"{path.name}.damaged"))
        return strange

    def delete(self, segment: Segment) -> None:
        self._unsynced.pop(segment, None)
        if self._open is segment:
            self.close()
        if segment.path is not None:
            with suppress(OSError):
                self._disk.unlink(segment.path)

    def sync(self) -> None:
        """What was written survives a power cut. Blocking; may run in a thread beside `append`."""
        for segment in list(self._unsynced):
            self._unsynced.pop(segment, None)  # what is written meanwhile is for the next time
            with suppress(OSError):
                fd = _opened(segment)
                try:
                    self._disk.fsync(fd)
                finally:
                    os.close(fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._open = -1, None

    def _move(self, segment: Segment, name: str) -> None:
        assert segment.path is not None
        target = segment.path.with_name(name)
        self._disk.rename(segment.path, target)
        segment.path = target

    def _name(self, segment: Segment, first: int | None) -> str:
        span = f"-{segment.last_id:010d}" if segment.last_id != segment.id else ""
        numbered = f".s{first:016d}" if first is not None else ""
        return f"{self.stream}.{segment.id:010d}{span}{numbered}.log"


def _opened(segment: Segment) -> int:
    """Its file, which may be given another name just now. OSError."""
    while True:
        path = segment.path
        if path is None:
            raise FileNotFoundError
        try:
            return os.open(path, os.O_RDONLY | OURS)
        except FileNotFoundError:
            if segment.path == path:
                raise
