"""The door: connections that have shown no token yet are few and do not stay; what is no request is answered in form.

A connection costs a descriptor. Those that are known (agents, dashboards) must never lack one because strangers hold
them all.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from relaytui.commander.http.faults import bad_request, error_response, of_http
from relaytui.wire.errors import RelayError
from relaytui.wire.proof import Role

log = logging.getLogger(__name__)

TOKEN_WITHIN = 10.0
"""Seconds until a connection has asked something, and from one request without a token to the next."""
STRANGERS = 256
KEEP_ALIVE = 75.0


class Door:
    """Makes the protocol of each connection, as `loop.create_server` asks for it."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}  # the oldest first
        self._workers: dict[Connection, None] = {}  # what shows a worker's token, the oldest first

    def __call__(self) -> Connection:
        # Bodies come as they were sent: a packed one is refused, not unpacked.
        return Connection(
            self, self._server, loop=self._loop, keepalive_timeout=KEEP_ALIVE, access_log=None, auto_decompress=False
        )

    def came(self, connection: Connection) -> None:
        self._strangers[connection] = self._loop.call_later(TOKEN_WITHIN, connection.cut)
        if len(self._strangers) > most_strangers():
            log.warning("too many connections without a token: the oldest are closed")
            next(iter(self._strangers)).cut()

    def asked(self, connection: Connection) -> None:
        """It asked for something that needs no token, or showed none: it may ask again."""
        timer = self._strangers.get(connection)
        if timer is not None:
            timer.cancel()
            self._strangers[connection] = self._loop.call_later(TOKEN_WITHIN, connection.cut)

    def known(self, connection: Connection, role: Role) -> None:
        """It showed a token. Those of workers that hold no run may have half of the descriptors: the other half is for
        operators and for holders that come back."""
        self._settle(connection)
        if role != "worker":
            self._workers.pop(connection, None)
            return
        self._workers.pop(connection, None)
        self._workers[connection] = None
        for _ in range(len(self._workers) - most_workers()):
            oldest = next(iter(self._workers))
            if oldest.holds():
                self._workers[oldest] = self._workers.pop(oldest)
                continue
            log.warning("too many connections of workers that hold no run: the oldest are closed")
            oldest.cut()

    def forget(self, connection: Connection) -> None:
        """It is gone."""
        self._workers.pop(connection, None)
        self._settle(connection)

    def _settle(self, connection: Connection) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()


class Connection(web.RequestHandler):
    """One connection, from accept to close."""

    __slots__ = ("_door", "holds")

    def __init__(self, door: Door, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._door = door
        self.holds: Callable[[], bool] = _nothing
        """Whether whoever it is of holds a run."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._door.came(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._door.forget(self)
        super().connection_lost(exc)

    def asked(self) -> None:
        self._door.asked(self)

    def known(self, role: Role) -> None:
        """Its request carried a right token."""
        self._door.known(self, role)

    def cut(self) -> None:
        self._door.forget(self)
        if self.transport is not None:
            self.transport.abort()

    # -- errors that no route sees -------------------------------------------------------------------------------

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException) and resp.status >= 400:
            resp = of_http(resp, request.path)
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is on its way already")
        if status < 500:
            response = bad_request(message or "not a request", status)
        else:
            if not (isinstance(exc, ConnectionError) and self.transport is None):  # who went away is no news
                log.error("an answer failed", exc_info=exc)
            response = error_response(RelayError("internal", "the commander failed at this", "see its log", status=500))
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """What a peer did wrong is no news."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError | HttpProcessingError):
            super().log_exception(*args, **kw)


def most_strangers() -> int:
    """A quarter of the descriptors at most, so that there are always some for who is known."""
    return min(STRANGERS, max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


def most_workers() -> int:
    """Half of the descriptors, as a quarter is for strangers and some are the commander's own."""
    return max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _nothing() -> bool:
    return False


class LoopTrouble:
    """An exception handler for the loop: that no descriptor is left is one line a second, not a trace at every try."""

    def __init__(self) -> None:
        self._said = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message"))
        if "socket.accept()" in message:
            if loop.time() - self._said >= 1.0:
                self._said = loop.time()
                why = context["exception"]
                log.error("no connection can be accepted: %s; raise the limit of open files (ulimit -n)", why)
        elif "_start_serving" not in message:  # its next try, where the commander stopped meanwhile
            loop.default_exception_handler(context)
