"""Bytes of an artifact on their way out: whole or a range, by sendfile where the loop has it, and never for ever."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import BinaryIO

from aiohttp import hdrs, web

from relaytui.wire.artifacts import ArtifactRow
from relaytui.wire.errors import RelayError

PIECE = 8 << 20
"""Bytes handed to the socket at a stretch; the next ones are asked of the disk meanwhile."""
PIECE_WITHIN = 120.0
"""Seconds that a reader may take for them: a slow one takes the more requests, a dead one keeps no file open."""
_COPIED = 1 << 20


async def send_content(request: web.Request, row: ArtifactRow, file: BinaryIO) -> web.StreamResponse:
    """`file` holds the content, and is closed. RelayError 416 where the range is none of it."""
    with file:
        response = web.StreamResponse()
        response.etag = row.sha256
        response.headers[hdrs.ACCEPT_RANGES] = "bytes"
        response.headers["X-Content-Type-Options"] = "nosniff"
        if any(tag.value in (row.sha256, "*") for tag in request.if_none_match or ()):
            response.set_status(304)
            await response.prepare(request)
            return response
        start, count = _range(request, row)
        response.content_type = "application/octet-stream"
        response.content_length = count
        if hdrs.RANGE in request.headers and _range_holds(request, row):
            response.set_status(206)
            response.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{start + count - 1}/{row.size}"
        await response.prepare(request)
        end = start + count
        while start < end:
            piece = min(PIECE, end - start)
            if piece < end - start:
                _ask_ahead(file, start + piece)
            async with asyncio.timeout(PIECE_WITHIN):
                await _send(request, response, file, start, piece)
            start += piece
        await response.write_eof()
        return response


async def _send(request: web.Request, response: web.StreamResponse, file: BinaryIO, start: int, count: int) -> None:
    loop, transport = asyncio.get_running_loop(), request.transport
    if transport is None:
        raise ConnectionResetError("the reader went away")
    try:
        # aiohttp's own writer has sent the headers; what follows is the body, as long as they say.
        sent = await loop.sendfile(transport, file, start, count, fallback=False)
    except (NotImplementedError, RuntimeError):  # a loop, or a transport, that has none
        sent = 0
        while sent < count:
            size = min(_COPIED, count - sent)
            data = await asyncio.to_thread(os.pread, file.fileno(), size, start + sent)
            if not data:
                break
            await response.write(data)
            sent += len(data)
    if sent != count:
        raise ConnectionResetError("the content is shorter than it was")


def _range_holds(request: web.Request, row: ArtifactRow) -> bool:
    """A range that is asked for only if nothing changed, of what has not changed."""
    wanted = request.headers.get(hdrs.IF_RANGE)
    return wanted is None or wanted == f'"{row.sha256}"'


def _range(request: web.Request, row: ArtifactRow) -> tuple[int, int]:
    """(first byte, how many)."""
    if hdrs.RANGE not in request.headers or not _range_holds(request, row):
        return 0, row.size
    with contextlib.suppress(ValueError):
        wanted = request.http_range
        start = wanted.start if wanted.start is not None else 0
        if start < 0:
            start = max(0, row.size + start)
        end = row.size if wanted.stop is None else min(wanted.stop, row.size)
        if start < end:
            return start, end - start
    raise RelayError("bad_range", f"that range is none of {row.size} bytes", "ask for bytes=FIRST-LAST", status=416)


def _ask_ahead(file: BinaryIO, start: int) -> None:
    """So that sendfile, which reads in the loop, finds it in memory."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), start, PIECE, os.POSIX_FADV_WILLNEED)
