"""aiohttp, without the certificates of all authorities: it loads them when it is imported, twice, and 3 MB of an agent
would be theirs. Where an agent speaks TLS it asks for `connector`, which has them; a session without it trusts nobody.
"""

from __future__ import annotations

import asyncio
import functools
import ssl


def _nobody(context: ssl.SSLContext) -> None:
    """Is trusted."""


ssl.SSLContext.set_default_verify_paths = _nobody  # type: ignore[assignment, method-assign]
try:
    import aiohttp
finally:
    del ssl.SSLContext.set_default_verify_paths

__all__ = ["aiohttp", "beginning", "connector", "tls"]


@functools.cache
def tls() -> ssl.SSLContext:
    """Trusts whom this system trusts. Blocking: it reads their certificates."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def beginning(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The first `most` bytes of an answer: one read gives what has come, and more may follow."""
    body = bytearray()
    while more := await answer.content.read(most - len(body)):
        body += more
    return bytes(body)


async def connector(url: str) -> aiohttp.TCPConnector:
    """For a session with who listens there."""
    return aiohttp.TCPConnector(ssl=await asyncio.to_thread(tls) if url.startswith("https:") else True)
