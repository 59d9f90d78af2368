"""One bare aiohttp server in a process of its own: says its port, serves until its stdin ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

MAX_FRAME = 1 << 20


def websocket() -> web.WebSocketResponse:
    """As the commander opens one: no deflate, 1 MiB a frame."""
    return web.WebSocketResponse(compress=False, max_msg_size=MAX_FRAME)


def serve(routes: Mapping[str, Handler], port: int = 0) -> None:
    asyncio.run(_serve(routes, port))


async def _serve(routes: Mapping[str, Handler], port: int) -> None:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await until_stdin_ends()
    await runner.cleanup()


async def until_stdin_ends() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
