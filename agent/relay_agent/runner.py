"""What an agent does, from first to last: prepare, acquire, attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import socket

import relaytui
from relay_agent.acquire import Grant, acquire
from relay_agent.attempt import Attempt
from relay_agent.config import Settings
from relay_agent.contact import Contact
from relay_agent.leftovers import clean_up
from relay_agent.link import Link
from relay_agent.process import limit_threads, reap_orphans, say
from relay_agent.stop import Stop, Why
from relay_agent.trainer import find_launch
from relay_agent.volume import open_run
from relaytui.wire.clock import Clock, SystemClock
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import PROTOCOL, Capability, Hello, Order, Refused


async def run(settings: Settings, clock: Clock | None = None) -> int:
    """Train the run once; the exit code of the agent. RelayError where it cannot."""
    return await Runner(settings, clock or SystemClock()).run()


class Runner:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = random.Random()  # noqa: S311 - jitter
        self._incarnation = secrets.token_hex(16)
        self._stop = Stop()
        self._attempt: Attempt | None = None
        self._early: list[Order] = []
        if not settings.shared_secret:
            raise RelayError(
                "no_secret",
                "RELAY_SHARED_SECRET is not set, so no commander would let this worker in",
                "set it to the secret the commander was started with, or what `relay-tui token worker` prints",
                exit_code=Exit.USAGE,
            )
        self._link = Link(
            Contact(settings.commander_url, settings.shared_secret),
            self._hello(),
            clock,
            say,
            on_order=self._order,
            on_refused=self._refused,
            rng=self._rng,
        )

    async def run(self) -> int:
        limit_threads(asyncio.get_running_loop())
        self._listen_to_signals()
        settings = self._settings
        launch = find_launch(settings)
        folder = await asyncio.to_thread(open_run, settings.l1_root, settings.run_id)
        killed = await asyncio.to_thread(clean_up, settings.agent_state, settings.run_id, self._clock)
        if killed:
            say(f"stopped {killed} processes that an earlier agent left here")
        linking = asyncio.create_task(self._link.run(), name="link")
        try:
            acquiring = asyncio.create_task(
                acquire(self._link, settings, folder, launch.digest, self._clock, say, self._rng), name="acquire"
            )
            grant = await self._unless_stopped(acquiring, linking)
            if grant is None:
                say("stopped while waiting for the lease")
                return 128 + self._stop.signal
            self._attempt = Attempt(
                settings, folder, launch, grant, self._incarnation, self._link, self._stop, self._clock, self._rng
            )
            for order in self._early:
                self._attempt.order(order)
            return await self._attempt.run()
        finally:
            linking.cancel()
            with contextlib.suppress(asyncio.CancelledError, RelayError):
                await linking

    async def _unless_stopped(self, acquiring: asyncio.Task[Grant], linking: asyncio.Task[None]) -> Grant | None:
        """The grant; None where the pod was told to stop first. RelayError where it will never come."""
        stopped = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait({acquiring, linking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if acquiring.done():
                return acquiring.result()
            if linking.done():
                linking.result()
            return None
        finally:
            stopped.cancel()
            acquiring.cancel()
            await asyncio.gather(stopped, acquiring, return_exceptions=True)

    def _hello(self) -> Hello:
        cpus = os.cpu_count() or 0
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        return Hello(
            PROTOCOL,
            self._settings.worker_id,
            self._incarnation,
            relaytui.__version__,
            socket.gethostname()[:256],
            Capability(cpus=cpus, memory=max(0, memory)),
        )

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        with contextlib.suppress(ValueError, OSError):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away ends no training
        reap_orphans(loop)

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        say(f"{name}: stopping" + (" at once" if self._stop.why is Why.SIGNAL else ""))
        self._stop.ask(Why.SIGNAL, f"the pod got {name}", number)
        if self._attempt is not None:
            self._attempt.signalled(name)

    def _order(self, order: Order) -> None:
        if self._attempt is not None:
            self._attempt.order(order)
        else:  # it came with the grant
            self._early.append(order)

    def _refused(self, refused: Refused) -> None:
        if self._attempt is not None:
            self._attempt.refused(refused)
