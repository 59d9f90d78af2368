"""Asks a commander to prove who it is, before any token goes its way."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl

from relaytui.client.answers import Health
from relaytui.client.endpoint import Endpoint
from relaytui.shell.web import aiohttp, connector
from relaytui.wire.codec import decode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import CHALLENGE_HEADER, proof_key, proven
from relaytui.wire.scheme import instead_words, spoken_instead, untrusted
from relaytui.wire.text import clean

MAX_HEALTH_BYTES = 65_536
"""A stranger on the port may answer with anything, without end."""
PROOF_SECONDS = 4.0
"""A commander answers within milliseconds; one that is swapped out or behind a slow line, within a second or two."""


def open_session(url: str) -> aiohttp.ClientSession:
    """A session with who listens there: it follows no redirect, keeps no cookie, and goes through no proxy of the
    environment."""
    return aiohttp.ClientSession(
        connector=connector(url),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=15, connect=5),
        auto_decompress=True,
        trust_env=False,
    )


def unreachable(url: str, error: BaseException | None = None) -> RelayError:
    return RelayError(
        "unreachable",
        f"no commander answers at {url} ({_in_words(error)})",
        "start one with `relay-tui serve`, or check the address",
        exit_code=Exit.UNAVAILABLE,
        status=0,
    )


def _in_words(error: BaseException | None) -> str:
    """What the system says of a failed connection, without the library's way of putting it."""
    cause = getattr(error, "os_error", error)
    if why := untrusted(cause):
        return why
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno).lower()
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name is not known"
    return clean(str(error), 160) if error is not None and str(error) else "no answer in time"


async def prove_commander(session: aiohttp.ClientSession, endpoint: Endpoint) -> Health:
    """Its health, once it proved that it knows our token. RelayError `unreachable`, or `unproven` (a stranger)."""
    nonce = secrets.token_hex(32)
    try:
        async with session.get(
            f"{endpoint.url}/api/health",
            headers={CHALLENGE_HEADER: nonce, "Host": endpoint.host},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=PROOF_SECONDS, connect=PROOF_SECONDS / 2),
        ) as answer:
            body = await _whole(answer)
            status = answer.status
    except (aiohttp.ClientConnectionError, OSError) as error:
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            raise _silent(endpoint) from None
        await _refuse_wrong_scheme(endpoint, error)
        raise unreachable(endpoint.url, error) from None
    except (aiohttp.ClientError, ValueError) as error:
        await _refuse_wrong_scheme(endpoint, error)
        raise _stranger(endpoint, f"it does not speak HTTP as a commander does: {clean(str(error), 120)}") from None
    try:
        health = decode(body, Health)
    except RelayError:
        if status == 400:
            await _refuse_wrong_scheme(endpoint)
        raise _stranger(endpoint, f"it answered {status} with something else than a commander's health") from None
    # Slow by design (it is stretched); the event loop goes on meanwhile.
    key = await asyncio.to_thread(proof_key, endpoint.token)
    for answered in health.proof.values():
        if proven(key, nonce, endpoint.host, answered):
            return health
    if health.name == "relay":
        raise _stranger(endpoint, "it is a commander of another state folder, or the token is not one of its own")
    raise _stranger(endpoint, "it is not a commander")


async def _refuse_wrong_scheme(endpoint: Endpoint, error: BaseException | None = None) -> None:
    """RelayError where http was spoken to one that wants https, or the other way round."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ConnectionRefusedError | ssl.SSLCertVerificationError | TimeoutError | socket.gaierror):
        return
    if spoken := await spoken_instead(endpoint.url):
        what, todo = instead_words(endpoint.url, spoken)
        message = f"no commander answers at {endpoint.url}: {what}"
        raise RelayError("unreachable", message, todo, exit_code=Exit.UNAVAILABLE, status=0)


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """The body, as far as a commander's could go: one read may give no more than its first bytes."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_HEALTH_BYTES:
            break
    return bytes(body)


def _silent(endpoint: Endpoint) -> RelayError:
    return RelayError(
        "silent",
        f"something listens at {endpoint.url} and did not answer within {PROOF_SECONDS:g} s",
        "it is a commander that is stopped or very busy, or something else on that port; no token was sent",
        exit_code=Exit.UNAVAILABLE,
        status=0,
    )


def _stranger(endpoint: Endpoint, why: str) -> RelayError:
    return RelayError(
        "unproven",
        f"what answers at {endpoint.url} did not prove to be your commander: {why}; no token was sent",
        "check the address, the state folder (--state) or the token (RELAY_TOKEN)",
        exit_code=Exit.AUTH,
        status=401,
    )
