"""A server that speaks a commander's HTTP and feed from a script: what clients are tested against in isolation.

It proves who it is like a commander does and plays back recorded feed messages; it decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType, web

from relaytui.client.endpoint import Endpoint
from relaytui.wire.codec import decode, encode
from relaytui.wire.feed import FeedMessage, Snapshot, Watch
from relaytui.wire.proof import CHALLENGE_HEADER, proof_key, prove
from relaytui.wire.rows import EventRow, RunRow, WorkerRow

TOKEN = "f" * 64
NOW = 1_800_000_000.0


def snapshot(
    runs: list[RunRow] | None = None,
    workers: list[WorkerRow] | None = None,
    events: list[EventRow] | None = None,
    *,
    commander: str = "c1",
    now: float = NOW,
) -> Snapshot:
    return Snapshot(
        now=now,
        commander=commander,
        version="0.1.0",
        lease_seconds=300.0,
        runs=runs or [],
        workers=workers or [],
        events=events or [],
    )


class ScriptedCommander:
    """`greeting` is sent to each feed client at once; `tell` sends to all; `requests` keeps what was asked."""

    def __init__(self, *, proof_token: str = TOKEN, token: str = TOKEN) -> None:
        self.proof_token = proof_token
        self.token = token
        self.greeting: list[FeedMessage] = []
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.watches: list[Watch] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.on_post: Callable[[str], None] = lambda path: None
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.port}", TOKEN)

    async def start(self, port: int = 0) -> ScriptedCommander:
        app = web.Application()
        app.router.add_get("/ws/feed", self._feed)
        app.router.add_route("*", "/{path:.*}", self._any)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        for socket in list(self.sockets):
            await socket.close(code=1001)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def tell(self, *messages: FeedMessage) -> None:
        for socket in list(self.sockets):
            for message in messages:
                await socket.send_str(encode(message).decode())

    async def _any(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((request.method, request.path_qs, dict(request.headers), body))
        if request.path == "/api/health":
            nonce = request.headers.get(CHALLENGE_HEADER, "")
            key = await asyncio.to_thread(proof_key, self.proof_token)
            proof = {"operator": prove(key, nonce, request.headers["Host"])}
            return self._json({"ok": True, "name": "relay", "version": "0.1.0", "proof": proof})
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return self._json({"error": {"code": "token", "message": "wrong token", "hint": "check it"}}, 401)
        if request.method == "POST":
            self.on_post(request.path)
        status, answer = self.answers.get(
            (request.method, request.path),
            (404, {"error": {"code": "not_found", "message": f"no {request.path}", "hint": ""}}),
        )
        return self._json(answer, status)

    @staticmethod
    def _json(answer: Any, status: int = 200) -> web.Response:
        return web.Response(body=encode(answer), status=status, content_type="application/json")

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(("WS", request.path_qs, dict(request.headers), b""))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return self._json({"error": {"code": "token", "message": "wrong token", "hint": ""}}, 401)
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        self.sockets.append(socket)
        try:
            for message in self.greeting:
                await socket.send_str(encode(message).decode())
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    self.watches.append(decode(frame.data, Watch))
        finally:
            self.sockets.remove(socket)
        return socket


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition, and say so when it does not come true."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.01)
