"""What a peer answers, before the Hub's library sees it: it has an end, and a wait that it names is the agent's.

The library would read whatever comes, unpack it whole, and sleep as long as it is told to.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
from huggingface_hub.utils._http import hf_raise_for_status

from relay_agent.hub.far.failures import wait_of
from relay_agent.sending.trouble import Trouble

MOST = 16 << 20
"""Bytes of an answer, unpacked: of the longest list that is asked for there are less."""
MOST_ADDRESSES = 128 << 20
"""Of those that large files go to: each part of each file has one."""
MOST_WORDS = 64 << 10
"""Of one that says what is wrong; the rest is left out."""
SHORT = 10.0
"""Seconds that the library may wait itself; a longer wait is told, and nobody holds a process for it."""
ITS_FILE = {"relay_file": True}
"""The extensions of a request for a file: whoever asks bounds it."""
_PIECE = 1 << 20


def hear(response: Any) -> None:
    """To be called with each answer, before any of its body is read. What wants a wait is raised, as the library does
    in the end."""
    failed = response.status_code >= 400
    wait = _named_wait(response) if failed else None
    if failed:
        most = MOST_WORDS
    elif "relay_file" in response.request.extensions and not response.has_redirect_location:
        most = None
    else:
        most = MOST_ADDRESSES if response.request.url.path.endswith("/info/lfs/objects/batch") else MOST
    response.stream = _Bounded(response, most)
    if wait is not None and wait > SHORT:
        response.read()
        hf_raise_for_status(response)


def _named_wait(response: Any) -> float | None:
    """In plain seconds in the end, so that the library reads nothing else."""
    headers = response.headers
    if response.status_code != 429:  # it says so with each answer, and means it here
        headers.pop("ratelimit", None)
    wait = wait_of(response)
    for name in ("ratelimit", "retry-after"):
        headers.pop(name, None)
    if wait is not None:
        headers["retry-after"] = str(math.ceil(wait))
    return wait


class _Bounded(httpx2.SyncByteStream):
    """A body, unpacked piece by piece: a few bytes may stand for gigabytes. `most`: None: whoever reads bounds it."""

    def __init__(self, response: Any, most: int | None) -> None:
        self._stream = response.stream
        self._request = response.request
        self._most = most
        self._cuts = response.status_code >= 400
        coding = response.headers.pop("content-encoding", "identity").strip().lower()
        self._unpacks = coding == "gzip"
        if self._unpacks:
            response.headers.pop("content-length", None)
        elif coding != "identity":
            raise self._trouble("no_hub", f"packed as nobody asked ({coding[:40]!a})")

    def __iter__(self) -> Iterator[bytes]:
        came = 0
        for piece in self._unpacked() if self._unpacks else self._stream:
            came += len(piece)
            if self._most is not None and came > self._most:
                if self._cuts:
                    return
                raise self._trouble("endless", f"without an end, or over {self._most >> 20} MiB")
            yield piece

    def _trouble(self, code: str, how: str) -> Trouble:
        of = f"{self._request.method} {self._request.url.copy_with(query=None)}"
        return Trouble(code, f"{of}: the answer is {how}", "transient")

    def _unpacked(self) -> Iterator[bytes]:
        packed = zlib.decompressobj(wbits=31)
        for data in self._stream:
            try:
                piece = packed.decompress(data, _PIECE)
                while piece:
                    yield piece
                    piece = packed.decompress(packed.unconsumed_tail, _PIECE)
            except zlib.error as error:
                raise httpx2.DecodingError(str(error)) from error

    def close(self) -> None:
        self._stream.close()
