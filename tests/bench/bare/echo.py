"""Yardstick of requests and answers: a websocket that sends every frame back, and does nothing else.

python -m tests.bench.bare.echo [PORT]
"""

from __future__ import annotations

import sys

from aiohttp import WSMsgType, web

from tests.bench.bare.serving import serve, websocket


async def echo(request: web.Request) -> web.WebSocketResponse:
    socket = websocket()
    await socket.prepare(request)
    async for frame in socket:
        if frame.type is WSMsgType.TEXT:
            await socket.send_str(frame.data)
    return socket


if __name__ == "__main__":
    serve({"/ws": echo}, *map(int, sys.argv[1:]))
