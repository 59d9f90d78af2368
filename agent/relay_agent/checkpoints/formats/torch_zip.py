"""What torch.save writes (1.6 and later), and any other zip: PK at the start, a directory and an end record at the end.

A file that misses its last byte misses its end record. Without being asked to, nothing but both ends is read; a hole in
the middle shows only in the sums over all of it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Check, Torn, never

MAGIC = b"PK\x03\x04"
MAX_DIRECTORY = 25_000_000
_EMPTY = b"PK\x05\x06"
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_COMMENT = 0xFFFF
_DEFLATED = 8
_CHUNK = 1 << 20
_WINDOW = 1 << 18
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True)
class _Directory:
    start: int  # where it begins in the file
    size: int
    entries: int
    base: int  # bytes before the archive: 0 but where several follow one another in a file


@dataclass(frozen=True)
class _Entry:
    at: int  # of its local header, in the file
    method: int
    crc: int
    packed: int
    name: int  # bytes
    called: bytes


def check(span: Span, deep: bool = False, poll: Check = never, *, last_of_many: bool = False) -> None:
    """Torn unless it is a whole archive. `deep`: the CRC of all that is stored in it uncompressed, as torch stores it.
    `last_of_many`: other bytes may lie before it."""
    directory = _directory(span)
    if directory.base and not last_of_many:
        raise Torn("its directory does not fit its size")
    end = directory.base
    entries = 0
    sums = False
    for entry in _entries(span, directory, poll):
        if entry.at < end:
            raise Torn("parts of it overlap")
        end = entry.at + _LOCAL.size + entry.name + entry.packed
        if end > directory.start:
            raise Torn("its directory points past its data")
        entries += 1
        sums = sums or entry.crc != 0
    if entries != directory.entries:
        raise Torn("its directory is damaged")
    if not last_of_many and entries and span.read(0, 4) != MAGIC:
        raise Torn("it does not begin as an archive")
    if deep and sums:  # a trainer can turn the sums off: then every one is 0
        for entry in _entries(span, directory, poll):
            _sum(span, entry, directory.start, poll)


def member(span: Span, name: bytes, limit: int) -> bytes:
    """The first `limit` bytes of the first one in it whose path ends with `name`; b"" where there is none, or it is
    packed in another way than zip archives usually are. Torn where the archive is not whole."""
    directory = _directory(span)
    for entry in _entries(span, directory, never):
        if entry.called.rpartition(b"/")[2] != name:
            continue
        local = _LOCAL.unpack(span.read(entry.at, _LOCAL.size))
        at = entry.at + _LOCAL.size + local[9] + local[10]
        data = span.read(at, min(entry.packed, limit))
        if entry.method == 0:
            return data
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, limit) if entry.method == _DEFLATED else b""
        except zlib.error as error:
            raise Torn("a part of it is damaged") from error
    return b""


def _directory(span: Span) -> _Directory:
    if span.size < _END.size:
        raise Torn("it is cut off: it has no end record")
    at, end = _end_record(span)
    _, disk, disk_of_directory, _, entries, size, offset, _ = end
    if at >= _LOCATOR.size:
        locator = _LOCATOR.unpack(span.read(at - _LOCATOR.size, _LOCATOR.size))
        if locator[0] == b"PK\x06\x07":
            at -= _LOCATOR.size + _END64.size
            if at < 0:
                raise Torn("its end record is damaged")
            wide = _END64.unpack(span.read(at, _END64.size))
            if wide[0] != b"PK\x06\x06":
                raise Torn("its end record is damaged")
            disk, disk_of_directory, entries, size, offset = wide[4], wide[5], wide[7], wide[8], wide[9]
    if disk or disk_of_directory or size > at or offset > at - size:
        raise Torn("its end record is damaged")
    if size > MAX_DIRECTORY:
        raise Torn("its directory is too large")
    return _Directory(at - size, size, entries, at - size - offset)


def _end_record(span: Span) -> tuple[int, tuple[bytes, int, int, int, int, int, int, int]]:
    """Where it is, and what it says: at the very end, or before a comment, which hardly any has."""
    for reach in (_END.size, _END.size + _COMMENT):
        tail = span.tail(reach)
        at = tail.rfind(_EMPTY, 0, len(tail) - _END.size + len(_EMPTY))
        if at >= 0:
            end = _END.unpack_from(tail, at)
            if at + _END.size + end[7] == len(tail):
                return span.size - len(tail) + at, end
    raise Torn("it is cut off: it has no end record")


def _entries(span: Span, directory: _Directory, poll: Check) -> Iterator[_Entry]:
    at, stop = directory.start, directory.start + directory.size
    window, base = b"", at
    while at < stop:
        need = at - base + _ENTRY.size + 3 * _FULL16
        if need > len(window) and base + len(window) < stop:
            poll()
            base = at
            window = span.read(at, min(_WINDOW, stop - at))
        inside = at - base
        if inside + _ENTRY.size > len(window):
            raise Torn("its directory is damaged")
        fields = _ENTRY.unpack_from(window, inside)
        method, crc, packed, size = fields[4], fields[7], fields[8], fields[9]
        name, extra, comment, offset = fields[10], fields[11], fields[12], fields[16]
        after = inside + _ENTRY.size + name + extra + comment
        if fields[0] != b"PK\x01\x02" or after > len(window):
            raise Torn("its directory is damaged")
        if _FULL32 in (packed, size, offset):
            begin = inside + _ENTRY.size + name
            packed, offset = _wide(window[begin : begin + extra], size, packed, offset)
        called = window[inside + _ENTRY.size : inside + _ENTRY.size + name]
        yield _Entry(directory.base + offset, method, crc, packed, name, called)
        at = base + after


def _wide(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int]:
    """Packed size and offset of an entry whose numbers do not fit into 32 bits."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{min(length, len(extra) - at) // 8}Q", extra, at))
            try:
                if size == _FULL32:
                    next(numbers)
                return (
                    next(numbers) if packed == _FULL32 else packed,
                    next(numbers) if offset == _FULL32 else offset,
                )
            except StopIteration:
                break
        at += length
    raise Torn("its directory is damaged")


def _sum(span: Span, entry: _Entry, limit: int, poll: Check) -> None:
    local = _LOCAL.unpack(span.read(entry.at, _LOCAL.size))
    if local[0] != MAGIC:
        raise Torn("a part of it is missing")
    if entry.method != 0:
        return
    at = entry.at + _LOCAL.size + local[9] + local[10]
    if at + entry.packed > limit:
        raise Torn("its directory points past its data")
    crc, left = 0, entry.packed
    while left:
        poll()
        data = span.read(at, min(_CHUNK, left))
        crc = zlib.crc32(data, crc)
        at, left = at + len(data), left - len(data)
    if crc != entry.crc:
        raise Torn("a part of it is damaged: its sum is another one")
