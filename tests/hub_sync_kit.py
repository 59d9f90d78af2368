"""Checkpoints on their way to the test hub, by the agent's own child process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_kit import RUN, new_run, put

from relay_agent.checkpoints.manifest import read
from relay_agent.hub import calls, layout
from relay_agent.hub.protocol import Beside, Job, Send, Sent, Where
from relay_agent.volume.volume import RunFolder

REPO = "relay/run-1"
FOREVER = 3600.0

__all__ = ["FOREVER", "REPO", "RUN", "Calls", "new_run", "put", "run_file", "send_job"]


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


class Calls:
    """Jobs handed to a child process. `allowed` is what the fence says."""

    def __init__(self, cache: Path) -> None:
        self.cache = str(cache)
        self.phases: list[str] = []
        self.asked: list[str] = []
        self.allowed: Callable[[str], float] = lambda what: FOREVER
        self.quiet: dict[str, float] = dict(calls.QUIET)

    async def __call__(self, job: Job, result: type[Any] = Sent, fault: str = "") -> Any:
        more = {"RELAY_HUB_FAULT": fault} if fault else {}

        def may(what: str) -> float:
            self.asked.append(what)
            return self.allowed(what)

        async with asyncio.timeout(60):
            return await calls.call(
                job, result, cache=self.cache, may=may, on_phase=self.phases.append, quiet=self.quiet, more=more
            )
