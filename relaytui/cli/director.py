"""What happens in the demo: watches the feed, kills a pod on the way, checks every checkpoint, times every line."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from relaytui.cli.fleet import Fleet
from relaytui.client.endpoint import Endpoint
from relaytui.client.feed import Feed
from relaytui.wire.errors import RelayError
from relaytui.wire.feed import CheckpointChanged, Lines, RunChanged, ServerFeed, Snapshot
from relaytui.wire.rows import RunRow

STAMP = re.compile(r" t=([0-9]{9,10}\.[0-9]{1,9})$")
"""How the demo's trainers end a line: seconds since 1970 at the moment of printing, on this machine's clock."""

LOOK_EVERY = 1.0
"""Seconds between looks at who has ended."""
MAX_RETURNS = 50
"""How often one pod comes back: one that cannot start at all is not started for ever."""

Verify = Callable[[Path], object]
"""Raises where the published checkpoint at a path is not whole."""


@dataclass(frozen=True)
class Plan:
    """Who trains what, and who is killed once its run is `kill_at` of the way and has two checkpoints.

    The spare starts when the victim holds the run, or it might be the first to ask for it.
    """

    victim: str
    victim_run: str
    victim_mode: str
    spare: str
    runs: int
    kill_at: float = 0.3


@dataclass
class Director:
    endpoint: Endpoint
    fleet: Fleet
    volume: Path
    plan: Plan
    verify: Verify
    runs: dict[str, RunRow] = field(default_factory=dict)
    verified: dict[str, set[str]] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # seconds
    killed_at_step: int | None = None

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._returns: Counter[str] = Counter()
        self._checks: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float | None) -> None:
        """Until every run has ended, or `seconds` are over; None means until cancelled."""
        feed = Feed(self.endpoint, self._heard)
        await feed.watch(["*"], backlog=0)
        listening = asyncio.create_task(feed.run())
        try:
            async with asyncio.timeout(seconds):
                while seconds is None or not self.finished:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY):
                            await self._changed.wait()
                    if listening.done():  # by an error: nothing is heard any more
                        await listening
                    self._changed.clear()
                    await self.act()
        except TimeoutError:
            pass  # time is over; the report says how far it got
        finally:
            listening.cancel()
            await asyncio.gather(listening, *self._checks, return_exceptions=True)

    @property
    def finished(self) -> bool:
        return len(self.runs) >= self.plan.runs and all(run.status.ended for run in self.runs.values())

    def checkpoint(self, run_id: str, name: str) -> Path:
        return self.volume / "runs" / run_id / "ckpt" / name

    def check(self, run_id: str, name: str) -> None:
        """Verify one published checkpoint now; blocking."""
        try:
            self.verify(self.checkpoint(run_id, name))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is not whole
            self.torn.append(f"{run_id}/{name}: {error}")
        else:
            self.verified.setdefault(run_id, set()).add(name)

    def _heard(self, message: ServerFeed) -> None:
        match message:
            case Snapshot():
                self.runs.update((run.run_id, run) for run in message.runs)
            case RunChanged():
                self.runs[message.run.run_id] = message.run
            case Lines(backlog=False):
                now = time.time()
                stamps = (STAMP.search(line) for line in message.lines)
                self.latencies.extend(now - float(stamp[1]) for stamp in stamps if stamp)
            case CheckpointChanged() if message.checkpoint.pruned_at is None:
                row = message.checkpoint
                task = asyncio.create_task(asyncio.to_thread(self.check, row.run_id, row.name))
                self._checks.add(task)
                task.add_done_callback(self._checks.discard)
        self._changed.set()

    async def act(self) -> None:
        await self._bring_back()
        plan, run = self.plan, self.runs.get(self.plan.victim_run)
        if run is None or run.holder != plan.victim or self.killed_at_step is not None:
            return
        if plan.spare not in self.fleet.pods:
            await asyncio.to_thread(self.fleet.start, plan.spare, plan.victim_run, plan.victim_mode)
        if run.total is not None and run.published >= 2 and run.step >= plan.kill_at * run.total:
            self.killed_at_step = run.step
            await asyncio.to_thread(self.fleet.kill, plan.victim)

    async def _bring_back(self) -> None:
        """Who ended in order while its run is not over comes back, as pods do: after a drain, a force, a requeue."""
        for name, run_id in self.fleet.left():
            run = self.runs.get(run_id)
            if run is not None and not run.status.ended and self._returns[name] < MAX_RETURNS:
                self._returns[name] += 1
                await asyncio.to_thread(self.fleet.again, name)


class Directing:
    """A director at work in a thread with a loop of its own, beside whatever has this one."""

    def __init__(self, director: Director) -> None:
        """RelayError where it does not start."""
        self.failure: Exception | None = None
        """Why it went on no more, by itself."""
        self._director = director
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        self._thread = threading.Thread(target=self._work, name="demo-director", daemon=True)
        self._thread.start()
        try:
            self._loop, self._acting = self._begun.result()
        except Exception as error:
            raise self._said("does not start", error) from error

    def stop(self, within: float) -> None:
        with contextlib.suppress(RuntimeError):  # it may have ended by itself
            self._loop.call_soon_threadsafe(self._acting.cancel)
        self._thread.join(within)

    def check(self) -> None:
        """RelayError where it ended by itself."""
        if self.failure is not None:
            raise self._said("failed on the way", self.failure) from self.failure

    @staticmethod
    def _said(what: str, error: Exception) -> RelayError:
        hint = error.hint if isinstance(error, RelayError) else "start the demo again"
        return RelayError("director", f"the demo's director {what}: {getattr(error, 'message', error)}", hint)

    def _work(self) -> None:
        try:
            asyncio.run(self._act())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - it is said by whoever started it
            if self._begun.done():
                self.failure = error
            else:
                self._begun.set_exception(error)

    async def _act(self) -> None:
        acting = asyncio.create_task(self._director.run(None))
        self._begun.set_result((asyncio.get_running_loop(), acting))
        await acting
