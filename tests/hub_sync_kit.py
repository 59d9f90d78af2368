"""Checkpoints on their way to the test hub: by the agent's own child process, or by what runs in it, without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import huggingface_hub.constants
import huggingface_hub.utils
from aiohttp import web
from checkpoint_kit import RUN, new_run, put

from relay_agent.checkpoints.manifest import read
from relay_agent.hub import calls, layout
from relay_agent.hub.protocol import Beside, Job, Send, Sent, Where
from relay_agent.sending.calls import QUIET
from relay_agent.sending.child import Refused, Tell, told, work_for
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import TestHub

REPO = "relay/run-1"
FOREVER = 3600.0
HOP = ("Host", "Content-Length", "Transfer-Encoding")
"""Headers that are of one connection."""

__all__ = ["FOREVER", "REPO", "RUN", "Calls", "Killed", "new_run", "put", "run_file", "saying", "send_job"]


def run_file(run: RunFolder, name: str, holder: int = 1, **more: Any) -> layout.RunFile:
    manifest = read(run.ckpt / name).manifest
    return layout.RunFile(
        layout.VERSION, more.pop("run_id", manifest.run_id), "sft", name, manifest.step, manifest.epoch, manifest.seq,
        holder, more.pop("complete", True), [], **more,
    )  # fmt: skip


def send_job(where: Where, run: RunFolder, name: str, *, epoch: int = 1, files: list[str] | None = None) -> Send:
    folder = run.ckpt / name
    listed = [entry.path for entry in read(folder).manifest.files]
    complete = files is None
    beside = [Beside(layout.RUN, text=run_file(run, name, epoch, complete=complete).encode().decode())]
    return Send(
        where, RUN, epoch, str(folder), listed if files is None else files, beside, f"Saved {name}.", {}, name
    )  # fmt: skip


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A peer that answers every request so; its URL."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@asynccontextmanager
async def saying(hub: TestHub, says: Mapping[str, Any]) -> AsyncIterator[str]:
    """A peer before the hub that answers some paths itself; its URL."""

    async def answer(request: web.Request) -> web.Response:
        data = await request.read()
        if request.path in says:
            return web.json_response(says[request.path])
        headers = {name: value for name, value in request.headers.items() if name not in HOP}
        async with session.request(
            request.method, hub.url + request.raw_path, headers=headers, data=data, allow_redirects=False
        ) as came:
            headers = {name: value for name, value in came.headers.items() if name not in HOP}
            return web.Response(status=came.status, body=await came.read(), headers=headers)

    async with aiohttp.ClientSession(auto_decompress=False) as session, serving(answer) as url:
        yield url


class Killed(BaseException):
    """The process is gone."""


class _Inside(Tell):
    """Says what a job says to a test, in the test's own process."""

    def __init__(self, calls: Calls, fault: str) -> None:
        super().__init__(-1, None, "")  # type: ignore[arg-type]
        self._calls = calls
        self._place = fault
        self._left = 0.0

    def phase(self, name: str) -> None:
        self._calls.phases.append(name)
        self.at(name)

    def progress(self, done: int, total: int) -> None:
        self._calls.progress = (done, total)

    def may(self, what: str) -> None:
        self._calls.asked.append(what)
        self._left = self._calls.allowed(what)
        if self._left <= 0:
            raise Refused(what)

    def still(self, what: str) -> None:
        over = self._calls.over.pop(0) if self._calls.over else False
        if over or self._left < 1e-6:
            raise Refused(what)

    def at(self, place: str) -> None:
        if place == self._place:
            raise Killed


class Calls:
    """Does jobs. `allowed` is what the fence says. `real`: in the child process."""

    def __init__(self, cache: Path, *, real: bool = False) -> None:
        self.cache = str(cache)
        self.phases: list[str] = []
        self.asked: list[str] = []
        self.progress = (0, 0)
        self.allowed: Callable[[str], float] = lambda what: FOREVER
        self.over: list[bool] = []
        """Whether a permission is over, each time that it is looked at; after these, not."""
        self.quiet: dict[str, float] = dict(QUIET)
        self.real = real

    async def __call__(self, job: Job, result: type[Any] = Sent, fault: str = "", **_: Any) -> Any:
        if not self.real:
            return await asyncio.to_thread(self._inside, job, fault)
        more = {"RELAY_SENDING_FAULT": fault} if fault else {}

        def may(what: str) -> float:
            self.asked.append(what)
            return self.allowed(what)

        async with asyncio.timeout(60):
            return await calls.call(
                job, result, cache=self.cache, may=may, on_phase=self.phases.append, quiet=self.quiet, more=more
            )

    def _inside(self, job: Job, fault: str) -> Any:
        huggingface_hub.constants.HF_HUB_DISABLE_XET = True  # as the child's environment has it
        huggingface_hub.utils.disable_progress_bars()
        try:
            return work_for(calls.FAR, job)(job, _Inside(self, fault))
        except Exception as error:
            failed = told(calls.FAR, job, error)
            raise Trouble(failed.code, failed.words, failed.kind, failed.wait) from error
