"""What an agent does, from first to last: prepare, acquire, attempt."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import secrets
import signal
import socket
from pathlib import Path

import relaytui
from relay_agent.attempt.attempt import Attempt
from relay_agent.attempt.beyond import Beyond
from relay_agent.attempt.holding import Holding
from relay_agent.checkpoints.disk import is_full
from relay_agent.checkpoints.place import refuse_place
from relay_agent.config import Settings
from relay_agent.early import HEARD
from relay_agent.lease.acquire import Grant, acquire
from relay_agent.lease.lease import Lease
from relay_agent.link.contact import Contact
from relay_agent.link.link import Link
from relay_agent.outcome.retry import Policy, Retries
from relay_agent.outcome.stop import Stop, Why
from relay_agent.pod.pod import Pod
from relay_agent.pod.takeover import Found, backlog, heir, look
from relay_agent.preempt.departure import Departure
from relay_agent.process import limit_threads, reap_orphans, say, tell_time
from relay_agent.spool.spool import Spool
from relay_agent.trainer.command import Launch, find_launch
from relay_agent.trainer.foreseen import refuse_missing
from relay_agent.volume.volume import RunFolder, find_run, open_again, open_run
from relaytui.wire.clock import Clock, SystemClock
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import PROTOCOL, Capability, Hello, Order, Refused

GRANT_ON_ITS_WAY = 0.5
"""Seconds that one who is stopped while it asks for the lease waits for an answer."""
Acquired = tuple[Grant, RunFolder]


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
        self._pod = Pod(settings.agent_state, clock)
        self._retries: Retries
        self._folder: RunFolder | None = None  # once it was open
        self._departure = Departure(settings, clock, lambda: self._stop)
        if not settings.shared_secret:
            raise RelayError(
                "no_secret",
                "RELAY_SHARED_SECRET is not set, so no commander would let this worker in",
                "set it to the secret the commander was started with, or what `relay-tui token worker` prints",
                exit_code=Exit.USAGE,
            )

    async def run(self) -> int:
        tell_time(self._clock)
        limit_threads(asyncio.get_running_loop())
        self._listen_to_signals()
        settings = self._settings
        launch = find_launch(settings)
        await asyncio.to_thread(refuse_place, settings)
        folder, full = await self._find()
        first = await asyncio.to_thread(self._pod.hold, settings.run_id)
        kept = self._pod.root / "runs" / settings.run_id
        self._retries = Retries(Policy.of(settings), folder, kept, launch.digest, self._clock, self._rng)
        found = await asyncio.to_thread(look, self._pod, settings.run_id) if first else None
        if found is None:  # what runs already needs no start
            await asyncio.to_thread(refuse_missing, launch)
        if full is not None:
            if found is None:
                raise full
            self._folder = folder
        if found is not None:
            self._incarnation = found.note.incarnation  # the same holder, for all that the commander needs to know
        elif first:
            self._incarnation = await asyncio.to_thread(heir, self._pod, settings.run_id) or self._incarnation
        link = self._connect()
        if first:
            link.backlog = await asyncio.to_thread(backlog, self._pod, settings.run_id, found)
        link.persists = found is not None
        side = [asyncio.create_task(link.run(), name="link"), asyncio.create_task(link.sync(), name="sync")]
        side.append(asyncio.create_task(self._departure.watch(), name="preempt"))
        try:
            again, healthy = True, False
            if found is not None:  # it was let in before
                folder = await self._open()
                code, again, healthy = await self._go_on(found, folder, launch, link)
            while again:
                acquiring = asyncio.create_task(self._acquire(link, launch), name="acquire")
                acquired = await self._unless_stopped(acquiring, side[0])
                if acquired is None:
                    say("stopped while waiting for the lease")
                    return self._stop.exit_code
                grant, folder = acquired
                holding = Holding.new(grant.lease, grant.answer.config, grant.answer.newest, self._pod, healthy)
                code, again, healthy = await self._attempted(holding, folder, launch, link)
            return code
        finally:
            self._departure.close()
            for task in side:
                task.cancel()
            for task in side:
                with contextlib.suppress(asyncio.CancelledError, RelayError):
                    await task

    async def _find(self) -> tuple[RunFolder, RelayError | None]:
        """And why nothing is begun there, where it is full: what an earlier agent began there is taken over."""
        root, run_id = self._settings.l1_root, self._settings.run_id
        try:
            return await asyncio.to_thread(find_run, root, run_id), None
        except RelayError as error:
            if not is_full(error):
                raise
            return RunFolder(root / "runs" / run_id), error

    async def _acquire(self, link: Link, launch: Launch) -> Acquired:
        """Nothing is made on the volume before the commander has let this agent in."""
        settings = self._settings
        await link.up()
        folder = await self._open()
        beyond = Beyond(settings, folder, say)
        grant = await acquire(link, settings, folder, launch.digest, self._clock, say, self._rng, beyond)
        return grant, folder

    async def _open(self) -> RunFolder:
        """One that was open before may be full by now: its attempt tells that, and waits for room."""
        try:
            folder = await asyncio.to_thread(open_run, self._settings.l1_root, self._settings.run_id)
        except RelayError as error:
            if self._folder is None or not is_full(error):
                raise
            return self._folder
        self._folder = folder
        return folder

    async def _go_on(self, found: Found, folder: RunFolder, launch: Launch, link: Link) -> tuple[int, bool, bool]:
        """Take over what an earlier agent left; as `_attempted` answers."""
        note = found.note
        volume = folder
        if note.volume != str(folder.root.absolute()):  # it goes on where it began
            volume = await asyncio.to_thread(open_again, Path(note.volume))
        same = (note.digest, note.mode, volume) == (launch.digest, self._settings.mode, folder)
        # Until it is renewed nobody knows whether it is still ours: nothing that needs that is done.
        lease = Lease(note.run_id, note.epoch, note.token, note.lease_seconds, -math.inf)
        spool = Spool(note.run_id, note.epoch, note.token, found.folder, trouble=say)
        await asyncio.to_thread(spool.load)
        spool.rewind()  # the link may be up already: it asks first how far the commander is
        holding = Holding(lease, note.config, None, spool, note.guard, found, same)
        return await self._attempted(holding, volume, launch, link)

    async def _attempted(
        self, holding: Holding, folder: RunFolder, launch: Launch, link: Link
    ) -> tuple[int, bool, bool]:
        """The exit code, whether the run is to be acquired anew, and whether it goes back to a healthy checkpoint."""
        link.persists = True
        self._attempt = attempt = Attempt(
            self._settings, folder, launch, holding, self._incarnation, self._pod, link, self._stop, self._clock,
            self._rng, self._retries, self._departure,
        )  # fmt: skip
        for order in self._early:
            self._attempt.order(order)
        self._early.clear()
        code = await attempt.run()
        if not attempt.again:
            return code, False, False
        healthy = self._stop.healthy
        if not holding.spool.empty:
            link.backlog.append(holding.spool)
        link.spool, link.lost, link.persists = None, False, False
        self._attempt = None
        self._stop = Stop()
        self._departure.again()
        return code, True, healthy

    async def _unless_stopped(self, acquiring: asyncio.Task[Acquired], linking: asyncio.Task[None]) -> Acquired | None:
        """The grant; None where the pod was told to stop first. RelayError where it will never come."""
        stopped = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait({acquiring, linking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if acquiring.done():
                return acquiring.result()
            if linking.done():
                linking.result()
            # What is granted in this moment is given back by the attempt; else nobody has it until it runs out.
            await asyncio.wait({acquiring}, timeout=GRANT_ON_ITS_WAY)
            return acquiring.result() if acquiring.done() else None
        finally:
            stopped.cancel()
            acquiring.cancel()
            await asyncio.gather(stopped, acquiring, return_exceptions=True)

    def _connect(self) -> Link:
        return Link(
            Contact(self._settings.commander_url, self._settings.shared_secret),
            self._hello(),
            self._clock,
            say,
            on_order=self._order,
            on_refused=self._refused,
            rng=self._rng,
        )

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
        loop.add_signal_handler(signal.SIGUSR1, self._departure.warned)  # Slurm's; it goes to every process of a job
        loop.add_signal_handler(signal.SIGUSR2, lambda: None)
        with contextlib.suppress(ValueError, OSError):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away ends no training
        reap_orphans(loop)
        if signal.SIGUSR1 in HEARD:  # it came while all this was loaded
            self._departure.warned()

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        say(f"{name}: stopping" + (" at once" if self._stop.signal else ""))
        self._departure.signalled(number)
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
