"""A commander from start to stop: state folder, stores, socket, sweep."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
from contextlib import AsyncExitStack

from aiohttp import web

from relaytui import __version__
from relaytui.commander.folder import StateFolder
from relaytui.commander.http.app import close_sockets, make_app
from relaytui.commander.http.door import Door, LoopTrouble
from relaytui.commander.http.guard import Credentials, served_hosts
from relaytui.commander.keeper import Keeper
from relaytui.commander.listening import BACKLOG, address_of, listen, located
from relaytui.commander.logs import aside
from relaytui.commander.services import endings
from relaytui.commander.services.core import Core
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store import history
from relaytui.commander.store.changes import Change
from relaytui.commander.store.database import RELAY, TELEMETRY
from relaytui.commander.store.opening import open_databases
from relaytui.commander.store.presence import Presence
from relaytui.commander.store.reader import Reader
from relaytui.commander.store.writer import Tx, Writer
from relaytui.wire.clock import Clock, SystemClock
from relaytui.wire.errors import RelayError
from relaytui.wire.state import Address

log = logging.getLogger(__name__)

CLOSE_WITHIN = 0.5
TIDY_EVERY = 600.0


class Commander:
    """`await start()`, then it serves at `url` until `await stop()`. One per state folder."""

    def __init__(self, settings: CommanderSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.url = ""
        self.port = 0
        self._core: Core | None = None
        self._keeper: Keeper | None = None
        self._stack = AsyncExitStack()
        self._stopping = False
        self._presence = Presence(())
        self._folder: StateFolder | None = None
        self.lost = asyncio.Event()
        """Set where it cannot go on; `trouble` says why. Whoever started it stops it then."""
        self.trouble: RelayError | None = None
        self._notes: list[tuple[str, str]] = []
        """(kind, message) of what the start found, for the history."""

    @property
    def core(self) -> Core:
        assert self._core is not None, "not started"
        return self._core

    @property
    def generation(self) -> str:
        """Id of this commander's history; another one means the state was lost or replaced."""
        return self.core.generation

    async def start(self) -> None:
        """RelayError where it cannot: settings (USAGE), state (STATE), address (UNAVAILABLE)."""
        if not self.settings.loopback:  # what is no address is said before who could reach it
            await asyncio.to_thread(located, self.settings.host, self.settings.port)
        self.settings.check_exposure()
        async with AsyncExitStack() as stack:
            stack.enter_context(aside())
            folder = await asyncio.to_thread(_open_folder, self.settings)
            stack.callback(folder.close)
            core = await self._open(folder, stack)
            settings = self.settings
            listener = await asyncio.to_thread(listen, settings.host, settings.port, settings.host_named, folder.key)
            stack.callback(listener.close)
            self.port = listener.getsockname()[1]
            credentials = Credentials(folder.key, self.settings.shared_secret)
            await asyncio.to_thread(credentials.stretch)
            await core.load()
            await self._serve(core, credentials, listener, stack)
            self.url = address_of(self.settings.host, self.port)
            address = Address(self.url, os.getpid(), __version__, self.clock.wall())
            await asyncio.to_thread(folder.announce, address)
            stack.callback(folder.retract)
            self._folder = folder
            self._keeper = keeper = Keeper(core, folder.path)
            stack.push_async_callback(keeper.leave, asyncio.create_task(keeper.run()))
            self._core = core
            self._stack = stack.pop_all()
        _calm_collector()

    async def backup_if_due(self) -> None:
        """As the commander does by itself once a day."""
        assert self._keeper is not None, "not started"
        await self._keeper.backup_if_due()

    async def stop(self) -> None:
        """Within two seconds; runs train on, and agents come back to the next one."""
        if not self._stopping:
            self._stopping = True
            await self._stack.aclose()

    async def _open(self, folder: StateFolder, stack: AsyncExitStack) -> Core:
        """The stores and everything above them but the socket."""

        def committed(changes: list[Change]) -> None:
            core.committed(changes)

        relay_path, telemetry_path = folder.path / RELAY.file, folder.path / TELEMETRY.file
        opened = await asyncio.to_thread(open_databases, folder.path)
        relay = Writer(opened.relay, RELAY.name, committed)
        stack.push_async_callback(relay.close)
        telemetry = Writer(opened.telemetry, TELEMETRY.name)
        stack.push_async_callback(telemetry.close)
        self._notes += opened.notes
        self._presence = Presence(
            [path.with_name(path.name + suffix) for path in (relay_path, telemetry_path) for suffix in ("", "-wal")]
        )
        reader = await Reader.open(relay_path, telemetry_path)
        stack.push_async_callback(reader.close)
        core = Core(self.settings, self.clock, relay, telemetry, reader, folder.key, folder.key_made)
        stack.callback(core.close)
        return core

    async def _serve(
        self, core: Core, credentials: Credentials, listener: socket.socket, stack: AsyncExitStack
    ) -> None:
        app = make_app(core, credentials, served_hosts(self.settings, self.port))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_WITHIN)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        stack.callback(loop.set_exception_handler, loop.get_exception_handler())
        loop.set_exception_handler(LoopTrouble())
        server = await loop.create_server(Door(runner.server), sock=listener, backlog=BACKLOG)
        stack.push_async_callback(close_sockets, app, CLOSE_WITHIN)
        stack.callback(server.close)
        sweeper = asyncio.create_task(self._sweep(core))
        stack.push_async_callback(_cancelled, sweeper)

        def started(tx: Tx) -> None:
            for kind, message in self._notes:
                history.add_event(tx, self.clock.wall(), kind, endings.COMMANDER, message)
            history.add_event(tx, self.clock.wall(), "commander.started", endings.COMMANDER, f"relay {__version__}")

        await core.relay.run(started)

    def look(self) -> None:
        """Whether the databases are still there and the folder is still its own; where not, `lost` is set."""
        if self.lost.is_set():
            return
        trouble = self._presence.trouble() or (self._folder.look() if self._folder is not None else None)
        if trouble is None:
            return
        log.critical("%s", trouble)
        self.trouble = trouble
        self.lost.set()

    async def _sweep(self, core: Core) -> None:
        """Once a second or so, for ever: no error ends it."""
        interval = core.leases.interval
        loop = asyncio.get_running_loop()
        tidied = loop.time()
        while True:
            await asyncio.sleep(interval)
            self.look()
            try:
                await core.leases.sweep()
                core.workers.notice_silence()
                if loop.time() - tidied > TIDY_EVERY or core.workers.crowded:
                    tidied = loop.time()
                    await core.workers.tidy()
            except Exception as error:  # noqa: BLE001 - a full disk today is no reason to sweep no more tomorrow
                log.error("the sweep failed: %s", error)


def _calm_collector() -> None:
    """What a start leaves behind lives on, and reports come in bursts of thousands without a cycle among them.

    With its own defaults the collector takes a sixth of the time of a busy ingest.
    """
    gc.freeze()
    gc.set_threshold(max(gc.get_threshold()[0], 10_000), 20, 20)


def _open_folder(settings: CommanderSettings) -> StateFolder:
    return StateFolder(settings.state, new_key=settings.new_key, allow_network=settings.allow_network_state)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
