"""Yardstick of ingest: a websocket that decodes every frame with orjson and counts its reports.

It stores and answers nothing. A frame without reports asks for the count, and so tells a client that everything before
it was decoded.
"""

from __future__ import annotations

import orjson
from aiohttp import WSMsgType, web

from tests.bench.bare.serving import serve, websocket


async def sink(request: web.Request) -> web.WebSocketResponse:
    socket = websocket()
    await socket.prepare(request)
    count = 0
    async for frame in socket:
        if frame.type is not WSMsgType.TEXT:
            continue
        if reports := orjson.loads(frame.data).get("reports"):
            count += len(reports)
        else:
            await socket.send_str(str(count))
    return socket


if __name__ == "__main__":
    serve({"/ws": sink})
