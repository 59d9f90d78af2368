"""The zstd frame around an archive: how it is written, so that it is the same everywhere, and read, so that it is
bounded.

Written: one frame, with its content's size in front and a checksum behind, every parameter named (levels mean other
things in other versions), a fixed job size, and always in the mode with workers: what comes out is then the same for
any number of them (github.com/facebook/zstd issue #2238, and #2327: where the first call is not also the last), but
not the same as without. The strategy is `fast`: it has no variant by processor (issue #4099), and on weights it is as
small as the next ones. Other releases of zstd may write other bytes, so the library is pinned to one (`pyproject.toml`)
and a test knows a hash.

Read: block by block (RFC 8878, 3.1.1), so that no input, however it was made, is turned into more than a few blocks
of 128 KiB at once, and where the frame ends is known without asking the library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import zstandard

from relaytui.archive.errors import BadArchive

MAX_WINDOW = 8 << 20
"""Bytes. What a reader has to keep in memory; ours is 512 KiB, RFC 8878 has every reader take 8 MiB."""
MAX_BLOCK = 128 << 10
JOB = 2 << 20
_FEED = 1 << 20
_MAGIC = b"\x28\xb5\x2f\xfd"
_READ = 256 << 10
_GROUP = 8  # blocks given to the library at once


def at_most(size: int) -> int:
    """Bytes of the frame of `size` bytes that do not get smaller at all: what zstd's own bound has, and the ends."""
    return size + (size >> 8) + 1_024


def begins(first: bytes) -> bool:
    """Whether a frame may begin with these bytes, four at least."""
    return first.startswith(_MAGIC)


def compressed(content: Iterable[bytes], size: int, workers: int = 1) -> Iterator[bytes]:
    """The frame of `content`, which is `size` bytes. How it is cut, and how many workers there are, changes nothing."""
    parameters = zstandard.ZstdCompressionParameters(
        format=zstandard.FORMAT_ZSTD1,
        window_log=19,
        hash_log=14,
        chain_log=13,
        search_log=1,
        min_match=7,
        target_length=0,
        strategy=zstandard.STRATEGY_FAST,
        write_content_size=1,
        write_checksum=1,
        write_dict_id=0,
        job_size=JOB,
        overlap_log=1,
        threads=max(1, workers),
    )
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=size)
    for chunk in _cut(content):
        if out := stream.compress(chunk):
            yield out
    yield stream.flush()


def _cut(content: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of one size, however they came."""
    waiting = bytearray()
    for piece in content:
        if not waiting and len(piece) == _FEED:
            yield piece
            continue
        waiting += piece
        while len(waiting) >= _FEED:
            yield bytes(waiting[:_FEED])
            del waiting[:_FEED]
    if waiting:
        yield bytes(waiting)


class Frame:
    """A frame that is read from `read` (at most so many bytes, empty at the end), to its very end."""

    def __init__(self, read: Callable[[int], bytes], max_size: int | None = None) -> None:
        """Reads its header. `max_size`: bytes that the whole frame may have. BadArchive where it is none of ours."""
        self._read = read
        self._waiting = b""
        self._at = 0
        self._max = max_size
        self._digest = hashlib.sha256()
        self.size = 0
        """Bytes of the frame read so far."""
        self._head = self._exact(5)
        if not begins(self._head):
            raise BadArchive("it does not begin as a zstd frame")
        try:
            self._head += self._exact(zstandard.frame_header_size(self._head) - 5)
            about = zstandard.get_frame_parameters(self._head)
        except zstandard.ZstdError as error:
            raise BadArchive(f"its zstd header does not read: {error}") from None
        if about.content_size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
            raise BadArchive("it does not say how many bytes it holds")
        if not about.has_checksum or about.dict_id:
            raise BadArchive("it has no checksum, or wants a dictionary")
        if about.window_size > MAX_WINDOW:
            raise BadArchive(f"it wants {about.window_size:,} bytes of memory to be read")
        self.content_size: int = about.content_size

    @property
    def sha256(self) -> str:
        """Hex, of what was read so far; of the frame once `content` came to its end."""
        return self._digest.hexdigest()

    def content(self) -> Iterator[bytes]:
        """What it holds, in pieces of at most 1 MiB; BadArchive where a byte is missing, wrong or too many."""
        stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()
        left = self.content_size
        try:
            stream.decompress(self._head)
            for group in self._groups():
                piece = stream.decompress(group)
                left -= len(piece)
                if left < 0:
                    break
                if piece:
                    yield piece
        except zstandard.ZstdError as error:
            raise BadArchive(f"its bytes are spoilt: {error}") from None
        if left or not stream.eof:
            raise BadArchive("it does not hold as many bytes as it says")

    def _groups(self) -> Iterator[bytes]:
        group: list[bytes] = []
        last = False
        while not last:
            head = self._exact(3)
            word = int.from_bytes(head, "little")
            last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
            if kind == 3 or size > MAX_BLOCK:
                raise BadArchive("a block of it is none")
            group.append(head + self._exact(1 if kind == 1 else size))
            if len(group) >= _GROUP and not last:
                yield b"".join(group)
                group.clear()
        group.append(self._exact(4))
        if self._at < len(self._waiting) or self._more():
            raise BadArchive("something stands behind its end")
        yield b"".join(group)

    def _exact(self, count: int) -> bytes:
        while len(self._waiting) - self._at < count:
            if not self._more():
                raise BadArchive("it ends too early")
        piece = self._waiting[self._at : self._at + count]
        self._at += count
        return piece

    def _more(self) -> bool:
        chunk = self._read(_READ)
        self.size += len(chunk)
        if self._max is not None and self.size > self._max:
            raise BadArchive(f"it is longer than the {self._max:,} bytes it was said to have")
        self._digest.update(chunk)
        self._waiting = self._waiting[self._at :] + chunk
        self._at = 0
        return bool(chunk)
