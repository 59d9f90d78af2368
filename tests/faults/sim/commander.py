"""The real commander core on a simulated host: its stores on real files, its writers' work done inline."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from relaytui.commander.http.ws_agent import AgentSession
from relaytui.commander.server import Commander
from relaytui.commander.services.core import Core
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store.backup import back_up
from relaytui.commander.store.changes import Change
from relaytui.commander.store.database import RELAY, TELEMETRY
from relaytui.commander.store.kept import backups
from relaytui.commander.store.opening import open_databases
from relaytui.commander.store.restore import restore
from relaytui.commander.store.writer import Writer
from relaytui.wire.errors import RelayError
from tests.faults.sim.loop import Host, HostClock, Process, SimLoop
from tests.faults.sim.net import End, Network

KEY = b"k" * 32
ROOM = 1 << 30


class _NoThread:
    """Writers are given their turns by the loop."""

    def __init__(self, **kwargs: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self) -> None:
        pass


class SimWriter(Writer):
    """Commits and tells of it at moments of the simulation's own choosing; a crash can come in between."""

    delay = 0.003

    def __init__(self, *args: Any) -> None:
        with mock.patch.object(threading, "Thread", _NoThread):
            super().__init__(*args)
        self._batch: list[Any] = []
        self._told_at = 0.0

    def _put(self, work: Any) -> None:
        if self._closed:
            super()._put(work)
        self._waiting += work.size
        self._batch.append(work)
        if len(self._batch) == 1:
            self._loop.call_later(self._loop.rng.expovariate(1 / self.delay), self._turn)  # type: ignore[attr-defined]

    def _turn(self) -> None:
        batch, self._batch = self._batch, []
        answers, changes = self._commit(batch)
        delay = self._loop.rng.expovariate(2 / self.delay)  # type: ignore[attr-defined]
        self._told_at = max(self._told_at, self._loop.time() + delay)
        size = sum(work.size for work in batch)
        self._loop.call_at(self._told_at, self._deliver, answers, changes, size)


class SimCommander:
    def __init__(self, loop: SimLoop, net: Network, host: Host, folder: Path, lease_seconds: float, keep: int) -> None:
        self._loop = loop
        self._net = net
        self.host = host
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for name, data in _new_databases().items():
            (folder / name).write_bytes(data)
        self.clock = HostClock(loop, host)
        self.settings = CommanderSettings(
            state=folder, lease_seconds=lease_seconds, ckpt_keep_last_n=keep, l1_root="/nowhere", ckpt_interval=1
        )
        self.process: Process | None = None
        self.core: Core | None = None
        self._writers: tuple[SimWriter, ...] = ()
        self.full = False
        self.starts = 0
        net.serve = self._serve

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        assert not self.runs
        self.host.up = True
        self.starts += 1
        self.process = self._loop.start(f"commander.{self.starts}", self.host, 100 + self.starts)
        self.process.spawn(self._lives(), "commander")

    def crash(self) -> None:
        """As kill -9 does; what was committed stays."""
        self.core = None
        if self.process is not None:
            self.process.kill()
        for writer in self._writers:
            writer._db.close()
        self._writers = ()

    def fill_disk(self, full: bool) -> None:
        self.full = full
        for writer in self._writers:
            pages = writer._db.execute("PRAGMA page_count").fetchone()[0]
            writer._db.execute(f"PRAGMA max_page_count={pages if full else ROOM}")

    def back_up(self) -> None:
        if self.core is not None and not self.full:
            back_up(self.folder, self.clock.wall())

    def restore(self) -> bool:
        """From the newest backup, while it is down."""
        found = backups(self.folder)
        if not found:
            return False
        restore(self.folder, found[0], self.clock.wall())
        return True

    async def _lives(self) -> None:
        try:
            await self._run()
        except Exception:  # noqa: BLE001 - a commander that ends by itself is what is looked for
            self._loop.troubles.append(f"{self.process} failed: {traceback.format_exc()}")

    async def _run(self) -> None:
        opened = open_databases(self.folder)
        for db in (opened.relay, opened.telemetry):
            db.execute("PRAGMA synchronous=OFF")  # what is committed stays: this host's disk loses nothing

        def committed(changes: list[Change]) -> None:
            core.committed(changes)

        relay, telemetry = SimWriter(opened.relay, "relay", committed), SimWriter(opened.telemetry, "telemetry")
        self._writers = (relay, telemetry)
        if self.full:
            self.fill_disk(True)
        core = Core(self.settings, self.clock, relay, telemetry, None, KEY)  # type: ignore[arg-type]
        while True:
            try:
                await core.load()
                break
            except RelayError:  # a full disk: a service manager starts it again
                await _pause()
        self.core = core
        whole = SimpleNamespace(look=lambda: None)  # nobody deletes its databases here
        await Commander._sweep(whole, core)  # type: ignore[arg-type]

    def _serve(self, client: Process) -> End | None:
        if self.core is None or self.process is None or not self.process.alive:
            return None
        end = End(self._net, None, client)
        server = end.pair(self.process)
        session = AgentSession(self.core, server, server.abort)  # type: ignore[arg-type]
        self.process.spawn(session.run(), "session")
        return end

    @contextmanager
    def books(self) -> Iterator[sqlite3.Connection]:
        """What is stored, as committed: of telemetry.db in `lines`."""
        with closing(sqlite3.connect(self.folder / RELAY.file, isolation_level=None)) as db:
            db.execute("ATTACH ? AS lines", (str(self.folder / TELEMETRY.file),))
            yield db


@functools.cache
def _new_databases() -> dict[str, bytes]:
    """The empty databases that every commander begins with."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_databases(Path(folder))
        for db in (opened.relay, opened.telemetry):
            db.close()
        return {schema.file: (Path(folder) / schema.file).read_bytes() for schema in (RELAY, TELEMETRY)}


async def _pause() -> None:
    import asyncio

    await asyncio.sleep(1.0)
