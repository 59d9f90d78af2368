"""Which of http and https is spoken at an address, asked without a word that anybody could misuse."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit

SECONDS = 2.0
"""For the answer to one line; who is slower has no part in the mistake that is looked for."""


async def spoken_instead(url: str) -> str:
    """`https` where an http address speaks that, `http` the other way round; empty where neither is certain."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    try:
        port = parts.port or (443 if secure else 80)
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, port)
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n" if secure else _hello(parts.hostname or ""))
                answer = await reader.readexactly(5)
            finally:
                writer.close()
    except (OSError, ValueError, asyncio.IncompleteReadError):
        return ""
    if secure:
        return "http" if answer == b"HTTP/" else ""
    return "https" if answer[:2] in (b"\x16\x03", b"\x15\x03") else ""  # a handshake, or an alert instead of one


def _hello(host: str) -> bytes:
    """What a client that speaks TLS says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=host).do_handshake()
    return outgoing.read()


def untrusted(error: object) -> str:
    """Why a certificate is not trusted; empty where an error is about something else."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return ""


def instead_words(url: str, spoken: str) -> tuple[str, str]:
    """What is wrong with the address, and the right one."""
    scheme, _, rest = url.partition("://")
    return f"this speaks {spoken}, not {scheme}", f"write {spoken}://{rest}"
