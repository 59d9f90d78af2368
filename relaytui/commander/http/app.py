"""The aiohttp application: routes behind the guard."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import WSCloseCode, web

from relaytui.commander.http.api import MAX_BODY, SOCKETS, Api, Socket
from relaytui.commander.http.guard import Credentials, guard
from relaytui.commander.services.core import Core


def make_app(core: Core, credentials: Credentials, hosts: frozenset[str]) -> web.Application:
    app = web.Application(middlewares=[guard(credentials, hosts)], client_max_size=MAX_BODY)
    app[SOCKETS] = set()
    app.add_routes(Api(core, credentials).routes())
    return app


async def close_sockets(app: web.Application, within: float) -> None:
    """Tells every peer that the commander goes away (1001); a peer that does not answer is not waited for."""

    async def close(ws: Socket) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError, TimeoutError):
            await asyncio.wait_for(ws.close(code=WSCloseCode.GOING_AWAY, message=b"the commander stops"), within)

    sockets = app[SOCKETS]
    await asyncio.gather(*[close(ws) for ws in sockets])
