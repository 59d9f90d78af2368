"""Yardstick of the live path, its middle: what comes in on `/in` goes out to everybody on `/out`, frame by frame."""

from __future__ import annotations

from aiohttp import WSMsgType, web

from tests.bench.bare.serving import serve, websocket

listeners: set[web.WebSocketResponse] = set()


async def incoming(request: web.Request) -> web.WebSocketResponse:
    socket = websocket()
    await socket.prepare(request)
    async for frame in socket:
        if frame.type is WSMsgType.TEXT:
            for listener in list(listeners):
                await listener.send_str(frame.data)
    return socket


async def outgoing(request: web.Request) -> web.WebSocketResponse:
    socket = websocket()
    await socket.prepare(request)
    listeners.add(socket)
    try:
        async for _ in socket:
            pass
    finally:
        listeners.discard(socket)
    return socket


if __name__ == "__main__":
    serve({"/in": incoming, "/out": outgoing})
