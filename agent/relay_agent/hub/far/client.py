"""A client of the Hub whose requests do not wait for ever, and which counts what it sends."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub.utils import _http

from relay_agent import secret_words
from relay_agent.hub.far.answers import hear
from relay_agent.hub.protocol import Where
from relay_agent.sending.trouble import Trouble

CONNECT = 15.0
"""Seconds to reach the Hub, at most."""


class Again(Exception):  # noqa: N818 - it says what happens
    """The library tries a file again whose answer was lost, or an error: it may be stored already, so ask first."""


class Sent:
    """Bytes of files that were sent; those of a request that failed and comes again count again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: set[str] = set()
        self._once: frozenset[int] = frozenset()
        self.bytes = 0
        self.hear: Callable[[int], None] = lambda done: None

    def expect(self, once: frozenset[int]) -> None:
        """From here on bodies of so many bytes, which are whole files, go to one address once; then it is `Again`."""
        with self._lock:
            self._begun, self._once = set(), once

    def begin(self, url: str, size: int) -> None:
        with self._lock:
            if url in self._begun and size in self._once:
                raise Again
            self._begun.add(url)

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count
        self.hear(self.bytes)


class _Counted(httpx2.SyncByteStream):
    """The body of a request, as it goes out."""

    def __init__(self, stream: Any, sent: Sent) -> None:
        self._stream = stream
        self._sent = sent

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield chunk
            self._sent.add(len(chunk))

    def close(self) -> None:
        self._stream.close()


def connect(where: Where) -> tuple[huggingface_hub.HfApi, Sent]:
    """To be called once in a process."""
    if where.secrets:
        secret_words.know(where.secrets)
    _see_certificates()
    sent = Sent()

    def count(request: Any) -> None:
        if request.method == "PUT":
            sent.begin(str(request.url), int(request.headers.get("Content-Length", -1)))
            request.stream = _Counted(request.stream, sent)

    def factory() -> Any:
        client = _http.default_client_factory()  # its hooks keep offline mode and request ids
        client.timeout = (CONNECT, where.timeout, where.timeout, where.timeout)
        client.event_hooks = {"request": [*client.event_hooks["request"], count], "response": [hear]}
        client.headers["accept-encoding"] = "gzip"
        return client

    huggingface_hub.set_client_factory(factory)
    api = huggingface_hub.HfApi(endpoint=where.endpoint or None, token=where.token or False, library_name="relay-agent")
    return api, sent


def _see_certificates() -> None:
    """Trouble where the variables that say whom to trust name nothing to be read: the library says no more than that a
    file is missing."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        try:
            ssl.create_default_context(cafile=file)
        except OSError as error:
            why = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
            raise _unread("SSL_CERT_FILE", file, why) from None
    elif folder and not Path(folder).is_dir():
        raise _unread("SSL_CERT_DIR", folder, "there is no such folder")


def _unread(name: str, path: str, why: str) -> Trouble:
    words = f"{name} names {path}, and nobody can be trusted by it: {why}. Mend it, or unset it"
    return Trouble("bad_certificates", words)
