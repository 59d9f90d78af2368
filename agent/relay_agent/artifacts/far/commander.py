"""Requests to the artifact store: to a commander that proved who it is, on the connection that it proved it on.

By the standard library: a child that packs gigabytes need not be an HTTP stack heavier than that.
"""

from __future__ import annotations

import http.client
import secrets
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from relay_agent.artifacts.far.failures import StoreRefused, refused
from relay_agent.artifacts.jobs import Store
from relay_agent.sending.backoff import Backoff
from relay_agent.sending.trouble import Trouble
from relaytui.wire.artifacts import EPOCH_HEADER, LEASE_HEADER, OFFSET_HEADER, RUN_HEADER
from relaytui.wire.errors import sentences
from relaytui.wire.proof import CHALLENGE_HEADER, proof_key, proven
from relaytui.wire.text import clean

T = TypeVar("T")
UPLOADS = "/api/artifacts/uploads"
MAX_ANSWER = 16 << 20
BACKOFF = Backoff()
GIVE_UP_WITHIN = 15.0
"""Seconds that it is waited for an answer that changes nothing here."""
BROKEN = (OSError, http.client.HTTPException)
"""What a connection that breaks raises."""


class Commander:
    """One connection, kept open. Not for several threads at once."""

    def __init__(self, store: Store, backoff: Backoff | None = None) -> None:
        self._store = store
        self.backoff = backoff or BACKOFF
        self.url = store.url
        parts = urlsplit(store.url)
        self._secure = parts.scheme == "https"
        self._address = parts.hostname or "", parts.port or (443 if self._secure else 80)
        self._prefix = parts.path.rstrip("/")
        default = 443 if self._secure else 80
        self._host = parts.netloc.lower().removesuffix(f":{default}")
        self._key = proof_key(store.secret)
        self._link: http.client.HTTPConnection | None = None
        self._last: http.client.HTTPResponse | None = None

    def __enter__(self) -> Commander:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, method: str, path: str, answer: type[T], body: Any = None, **more: Any) -> T:
        """The answer to a request that may be made twice; `body`: a message. Trouble; tried again where the
        connection breaks."""
        data = msgspec.json.encode(body) if body is not None else b""
        failed = 0
        while True:
            try:
                return self._once(method, path, answer, data, **more)
            except BROKEN as error:
                self.close()
                failed += 1
                self.backoff.again(failed, unreachable(self.url, error))

    def once(self, method: str, path: str, answer: type[T], data: bytes | memoryview, **more: Any) -> T:
        """As `ask`, of raw bytes, and once; what broke is raised as it is."""
        try:
            return self._once(method, path, answer, data, kind="application/octet-stream", **more)
        except BROKEN:
            self.close()
            raise

    def _once(
        self, method: str, path: str, answer: type[T], data: bytes | memoryview, *, headers: Mapping[str, str] = {},
        kind: str = "application/json", timeout: float | None = None,
    ) -> T:  # fmt: skip
        response = self._request(method, path, data, {"Content-Type": kind, **headers}, timeout)
        read = response.read(MAX_ANSWER + 1)
        if response.will_close or len(read) > MAX_ANSWER:
            self.close()
        if response.status != 200:
            raise _refused(response, read)
        try:
            return msgspec.json.decode(read, type=answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Trouble("nonsense", f"the commander's answer does not read: {error}", "transient") from None

    def content(self, path: str, offset: int) -> http.client.HTTPResponse:
        """An answer whose bytes are those from `offset` on, to be read to its end or closed with `close`. Trouble; what
        broke as it is."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        response = self._request("GET", path, b"", headers, None)
        if response.status != (206 if offset else 200):
            refused = _refused(response, response.read(MAX_ANSWER))
            self.close()
            raise refused
        return response

    def doubt(self, artifact: int) -> None:
        """Its bytes came as others than its hash says: the commander may look for itself, and mark it."""
        with suppress(Trouble, *BROKEN):
            self._once("POST", f"/api/artifacts/{artifact}/doubt", dict, b"")

    def give_up(self, upload: str) -> None:
        """Nobody goes on with it: it takes no room there any more. Where that does not get through, the commander gives
        it up itself, in time."""
        with suppress(Trouble, *BROKEN):
            self._once("DELETE", f"{UPLOADS}/{upload}", dict, b"", timeout=GIVE_UP_WITHIN)

    def _request(
        self, method: str, path: str, data: bytes | memoryview, headers: Mapping[str, str], timeout: float | None
    ) -> http.client.HTTPResponse:
        link = self._link or self._connect()
        if link.sock is not None:
            link.sock.settimeout(timeout or self._store.timeout)
        store = self._store
        link.request(
            method, self._prefix + path, data or None,
            {
                "Host": self._host, "Authorization": f"Bearer {store.secret}", RUN_HEADER: store.run_id,
                EPOCH_HEADER: str(store.epoch), LEASE_HEADER: store.token, "Content-Length": str(len(data)),
                **headers,
            },
        )  # fmt: skip
        self._last = link.getresponse()
        return self._last

    def _connect(self) -> http.client.HTTPConnection:
        """A commander that proved itself: only then a token is sent, on this connection alone."""
        host, port = self._address
        link: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            link = http.client.HTTPSConnection(host, port, timeout=self._store.timeout, context=context)
        else:
            link = http.client.HTTPConnection(host, port, timeout=self._store.timeout)
        nonce = secrets.token_hex(32)
        link.request("GET", f"{self._prefix}/api/health", headers={"Host": self._host, CHALLENGE_HEADER: nonce})
        with link.getresponse() as response:
            body, closes = response.read(64 << 10), response.will_close
        proof = ""
        with suppress(msgspec.DecodeError, KeyError, TypeError):
            proof = str(msgspec.json.decode(body)["proof"]["worker"])
        if not proven(self._key, nonce, self._host, proof):
            link.close()
            busy = response.status >= 500
            words = f"what listens at {self._store.url} did not prove that it is our commander; no token was sent to it"
            raise Trouble("not_proven", words, "transient" if busy else "permanent")
        if closes:
            link.close()
            raise Trouble("no_keep_alive", f"{self._store.url} closes every connection, as a proxy may")
        self._link = link
        return link

    def close(self) -> None:
        for each in (self._last, self._link):
            if each is not None:
                each.close()
        self._last = self._link = None


def unreachable(url: str, error: BaseException) -> Trouble:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Trouble("untrusted", f"{url}: {clean(error.verify_message, 200)}")
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Trouble("unreachable", f"{url} cannot be reached: {clean(str(words), 200)}", "transient")


def _refused(response: http.client.HTTPResponse, body: bytes) -> StoreRefused:
    code = words = ""
    with suppress(msgspec.DecodeError, KeyError, TypeError, AttributeError, RecursionError):
        error = msgspec.json.decode(body)["error"]
        code, words = str(error["code"]), sentences(str(error["message"]), str(error.get("hint", "")))
    wait: float | None = None
    with suppress(ValueError):
        wait = min(3600.0, float(response.headers.get("Retry-After", "")))
    trouble = refused(response.status, code, words, wait)
    with suppress(ValueError):
        trouble.offset = int(response.headers.get(OFFSET_HEADER, ""))
    return trouble
