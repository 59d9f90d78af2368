"""What an agent asks of the web: aiohttp without certificates (`relaytui.shell.web`), and answers of any length."""

from __future__ import annotations

import asyncio

from relaytui.shell.web import aiohttp, tls
from relaytui.shell.web import connector as connecting

__all__ = ["aiohttp", "beginning", "connector"]


async def beginning(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The first `most` bytes of an answer: one read gives what has come, and more may follow."""
    body = bytearray()
    while more := await answer.content.read(most - len(body)):
        body += more
    return bytes(body)


async def connector(url: str) -> aiohttp.TCPConnector:
    """For a session with who listens there."""
    if url.startswith("https:"):
        await asyncio.to_thread(tls)
    return connecting(url)
