"""How an agent comes into contact with a commander: it proves who it is first, and only then is a token sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from relaytui.wire.codec import decode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import LEAVES, MAX_FRAME
from relaytui.wire.proof import CHALLENGE_HEADER, proof_key, proven
from relaytui.wire.scheme import instead_words, spoken_instead, untrusted
from relaytui.wire.status import RunStatus
from relaytui.wire.text import clean

if TYPE_CHECKING:
    import aiohttp

TIMEOUT = 10.0
PROOF_TIMEOUT = 5.0
"""Seconds for the first answer: a commander gives it within milliseconds; one that is busy, or far, within a few."""
MAX_ANSWER = 64 << 10


class Proof(Struct, frozen=True):
    operator: str = ""
    worker: str = ""


class Health(Struct, frozen=True):
    ok: bool
    name: str = ""
    version: str = ""
    proof: Proof | None = None


class StoreRoom(Struct, frozen=True):
    """Of the artifact store, in bytes."""

    quota: int
    used: int
    run_quota: int


class Standing(Struct, frozen=True):
    """Of a run: what it is to the commander."""

    status: RunStatus
    mode: str
    holder: str | None
    epoch: int


class Whoami(Struct, frozen=True):
    role: str
    commander: str
    now: float
    version: str = ""
    lease_seconds: float = 0.0
    artifacts: StoreRoom | None = None
    run: Standing | None = None
    """The one asked about; None where it would be new, or nobody says."""


class Contact:
    """A commander at `url`, and the worker's token for it."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token
        parts = urlsplit(url)
        default = 443 if parts.scheme == "https" else 80
        self.host = parts.netloc.lower().removesuffix(f":{default}")
        """As the Host header has it."""
        self._key: bytes | None = None

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        from relay_agent.link.web import aiohttp, connector

        timeout, way = aiohttp.ClientTimeout(total=TIMEOUT), await connector(self.url)
        async with aiohttp.ClientSession(timeout=timeout, headers={"Host": self.host}, connector=way) as session:
            yield session

    async def health(self, session: aiohttp.ClientSession) -> Health:
        """Ask for proof and check it. RelayError: nobody there (exit 69), or not our commander (exit 77)."""
        nonce = secrets.token_hex(32)
        if self._key is None:
            self._key = await asyncio.to_thread(proof_key, self._token)
        status, body = await self._get(session, "/api/health", {CHALLENGE_HEADER: nonce}, PROOF_TIMEOUT)
        if status == 400 and (spoken := await spoken_instead(self.url)):
            raise self._unavailable(*instead_words(self.url, spoken))
        if status >= 500:
            raise RelayError("unavailable", f"{self.url} answers {status}", "", exit_code=Exit.UNAVAILABLE)
        if status != 200:
            raise self._stranger(f"answers {status} to a health check{_words(body)}")
        try:
            health = decode(body, Health)
        except RelayError:
            raise self._stranger("answers a health check with something else") from None
        if health.name != "relay" or health.proof is None:
            raise self._stranger("did not prove that it is a commander")
        if not proven(self._key, nonce, self.host, health.proof.worker):
            raise RelayError(
                "not_proven",
                f"the commander at {self.url} does not know our RELAY_SHARED_SECRET",
                "give this pod the secret the commander was started with, or what `relay-tui token worker` prints",
                exit_code=Exit.AUTH,
            )
        return health

    async def whoami(self, session: aiohttp.ClientSession, run_id: str = "") -> Whoami:
        """Call only after `health`: this sends the token. `run_id`: whose standing is asked, too."""
        path = "/api/whoami" + (f"?run={run_id}" if run_id else "")
        status, body = await self._get(session, path, self._authorization())
        if status in (401, 403):
            raise self._refused(status, body)
        if status != 200:
            message, hint = f"{self.url} answers {status}{_words(body)}", _words(body, "hint").removeprefix(": ")
            raise RelayError("unavailable", message, hint, exit_code=Exit.UNAVAILABLE)
        return decode(body, Whoami)

    @contextlib.asynccontextmanager
    async def connect(self, heartbeat: float) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A websocket to `/ws/agent` of a commander that proved itself; RelayError where there is none."""
        from relay_agent.link.web import aiohttp

        async with self.session() as session:
            await self.health(session)
            scheme = "wss" if self.url.startswith("https") else "ws"
            try:
                socket = await session.ws_connect(
                    f"{scheme}://{self.url.partition('://')[2]}/ws/agent",
                    headers=self._authorization(),
                    heartbeat=heartbeat,
                    max_msg_size=MAX_FRAME,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
                )
            except aiohttp.WSServerHandshakeError as error:
                if error.status in (401, 403):
                    raise self._refused(error.status, b"") from None
                raise RelayError(
                    "unavailable", f"{self.url}/ws/agent answers {error.status}", exit_code=Exit.UNAVAILABLE
                ) from None
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise await self._nobody(error) from None
            try:
                yield socket
            except (aiohttp.ClientError, ConnectionError) as error:
                raise self._unavailable(plain_words(error)) from None
            except asyncio.CancelledError:  # this agent ends
                await socket.close(code=LEAVES)
                raise
            finally:
                await socket.close()

    async def _get(
        self, session: aiohttp.ClientSession, path: str, headers: dict[str, str], seconds: float = TIMEOUT
    ) -> tuple[int, bytes]:
        from relay_agent.link.web import aiohttp, beginning

        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=0.8 * seconds)
        try:
            async with session.get(self.url + path, headers=headers, allow_redirects=False, timeout=timeout) as answer:
                return answer.status, await beginning(answer, MAX_ANSWER)
        except aiohttp.ConnectionTimeoutError as error:
            raise self._unavailable(plain_words(error)) from None
        except TimeoutError:
            words = f"something listens there and did not answer within {seconds:g} s"
            raise self._unavailable(words, "a commander that is stopped or very busy, or something else") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise await self._nobody(error) from None

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}

    async def _nobody(self, error: BaseException) -> RelayError:
        """Why there was no answer; one that listens may have been spoken to in the wrong way."""
        inner = getattr(error, "os_error", error)
        refused = isinstance(inner, ConnectionRefusedError | socket.gaierror | ssl.SSLCertVerificationError)
        if not refused and (spoken := await spoken_instead(self.url)):
            return self._unavailable(*instead_words(self.url, spoken))
        return self._unavailable(plain_words(error))

    @staticmethod
    def _unavailable(why: str, todo: str = "start it with `relay-tui serve`, or correct COMMANDER_URL") -> RelayError:
        return RelayError("unavailable", why, todo, exit_code=Exit.UNAVAILABLE)

    def _stranger(self, what: str) -> RelayError:
        return RelayError(
            "not_proven",
            f"what listens at {self.url} {what}; no secret was sent to it",
            "correct COMMANDER_URL; a commander behind a proxy needs that name in its RELAY_PUBLIC_HOSTS",
            exit_code=Exit.AUTH,
        )

    def _refused(self, status: int, body: bytes) -> RelayError:
        return RelayError(
            "refused",
            f"the commander at {self.url} refuses this worker ({status}){_words(body)}",
            "give this pod the secret the commander was started with, or what `relay-tui token worker` prints",
            exit_code=Exit.AUTH,
        )


def _words(body: bytes, what: str = "message") -> str:
    """The message, or the hint, of an error answer, if it is one of ours."""
    try:
        answer: dict[str, Any] = decode(body, dict[str, Any])
        return f": {clean(str(answer['error'][what]), 200)}"
    except (RelayError, KeyError, TypeError):
        return ""


def plain_words(error: BaseException) -> str:
    """Why there was no connection, without what a library says around it."""
    inner = getattr(error, "os_error", error)
    if isinstance(inner, TimeoutError):
        return "timed out"
    if isinstance(inner, socket.gaierror):
        return "name not found"
    if why := untrusted(inner):
        return why
    text = clean(str(error), 200) or type(error).__name__
    if isinstance(inner, OSError) and not isinstance(inner, ssl.SSLError):
        told = re.search(r"\[Errno (\d+)\]", str(inner))  # of several addresses, the first
        number = inner.errno or (int(told[1]) if told else 0)
        if number > 0:
            return os.strerror(number).lower()
    return text.replace(" ssl:default", "")
