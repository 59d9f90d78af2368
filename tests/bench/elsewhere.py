"""A pod dies without a word, a second one waits: from the kill to the first step there, from the newest checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil

from relaytui.wire.feed import CheckpointChanged, Lines, ServerFeed, WorkerChanged
from tests.bench.children import REPOSITORY, BenchError
from tests.bench.commander_process import Commander, agent, commander
from tests.bench.line import subscribed
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured
from tests.bench.takeover import wait

LEASE = 3.0
SAVES = 2
"""Checkpoints that the first pod has published when it dies."""
MOCK = str(REPOSITORY / "launchers" / "mock_trainer.py")
TRAINER = [sys.executable, MOCK, "--steps", "100000", "--step-seconds", "0.02", "--save-every", "25"]
ROUNDS = 3
_STEP = re.compile(r"step (\d+)/")


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder, RELAY_LEASE_SECONDS=str(LEASE)))
        samples = interleave(
            {"relay": lambda: asyncio.run(trained_elsewhere(setting.folder, serving, f"elsewhere-{next(numbers)}"))},
            setting,
        )
    lease = Yardstick("the lease", [LEASE] * setting.rounds)
    return [measured("elsewhere", "s", samples.of("relay", "seconds"), lease, Goal(at_most=LEASE + 5))]


class Watch:
    """What a subscriber sees of one run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._saved: set[int] = set()
        self.step = 0
        """The first one of the second attempt."""
        self.at = 0.0
        self.saved, self.waiting, self.elsewhere = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def received(self, message: ServerFeed) -> None:
        now = time.monotonic()
        if isinstance(message, CheckpointChanged) and message.checkpoint.run_id == self._run_id:
            self._saved.add(message.checkpoint.step)
            if len(self._saved) >= SAVES:
                self.saved.set()
        elif isinstance(message, WorkerChanged) and message.worker.waiting_for == self._run_id:
            self.waiting.set()
        elif isinstance(message, Lines) and (message.run_id, message.epoch) == (self._run_id, 2):
            found = next((found for line in message.lines if (found := _STEP.match(line))), None)
            if found is not None and not self.step:
                self.step, self.at = int(found[1]), now
                self.elsewhere.set()

    @property
    def newest(self) -> int:
        """Step of the newest checkpoint seen."""
        return max(self._saved)


async def trained_elsewhere(folder: Path, serving: Commander, run_id: str) -> Figures:
    watch = Watch(run_id)
    async with subscribed(serving, watch.received):
        with agent(serving, folder, run_id, TRAINER, f"{run_id}-first") as first:
            await wait(watch.saved, "checkpoints of the first pod")
            with agent(serving, folder, run_id, TRAINER, f"{run_id}-second"):
                await wait(watch.waiting, "a second agent that waits")
                pod = [first.pid, *(each.pid for each in psutil.Process(first.pid).children(recursive=True))]
                newest = watch.newest
                for pid in pod:  # agent, guardian and trainer
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                killed = time.monotonic()
                await wait(watch.elsewhere, "a step elsewhere")
    if watch.step <= newest:
        raise BenchError(f"training went on at step {watch.step}, before the newest checkpoint, {newest}")
    return {"seconds": watch.at - killed, "lease": LEASE, "step": watch.step, "checkpoint": newest}


BENCH = Bench(
    "elsewhere",
    f"a pod killed whole, its lease {LEASE:g} s: kill → first step on a second pod from the newest checkpoint",
    ("elsewhere",),
    run,
)
