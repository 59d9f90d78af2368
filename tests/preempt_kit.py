"""For tests of notices: a metadata service on loopback, and a loop whose time passes when there is nothing to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from commander_kit import FakeClock

from relay_agent.config import Settings, load


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waits for no time: it moves the clock there."""

    def __init__(self, clock: FakeClock) -> None:
        self._at = clock

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                found = super().select(0)
                if not found and timeout:
                    clock.advance(timeout)
                return found

        super().__init__(Selector())

    def time(self) -> float:
        return self._at.boot()


def virtually(clock: FakeClock, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop(clock)
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()


def settings(tmp_path: Path, **variables: str) -> Settings:
    base = {"COMMANDER_URL": "http://127.0.0.1:9", "RELAY_AGENT_STATE": str(tmp_path), "RELAY_L1_ROOT": str(tmp_path)}
    return load({**base, **variables})


class Service:
    """Answers by path; what it was asked, with headers, is in `asked`. `answers`: path → a response, or what makes
    one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.answers: dict[str, Any] = {}
        self.url = ""

    def paths(self) -> list[str]:
        return [f"{method} {path}" for method, path, _ in self.asked]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs, dict(request.headers)))
        found = self.answers.get(request.path)
        if callable(found):
            found = found(request)
            if asyncio.iscoroutine(found):
                found = await found
        if found is None:
            return web.Response(status=404)
        if isinstance(found, web.StreamResponse):
            return found
        return web.json_response(found) if not isinstance(found, str) else web.Response(text=found)


@asynccontextmanager
async def serving() -> AsyncIterator[Service]:
    """A metadata service on a port of loopback that the system picks."""
    service = Service()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()
