"""A commander in a thread of its own, with its own event loop, for the process that also has the screen."""

from __future__ import annotations

import asyncio
import threading

from relaytui.commander.settings import CommanderSettings
from relaytui.wire.errors import RelayError


class EmbeddedCommander:
    """`start()` blocks until it serves; `stop()` until it is down. Both from any other thread."""

    def __init__(self, settings: CommanderSettings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.url = ""
        self.trouble: RelayError | None = None
        """Why it went down by itself, known before its connections close."""

    def start(self) -> str:
        """The commander's URL; RelayError where it cannot start."""
        self._thread = threading.Thread(target=self._work, name="relay-commander", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            if isinstance(self._failure, RelayError):
                raise self._failure
            raise RelayError("internal", f"the commander did not start: {self._failure}") from self._failure
        return self.url

    def stop(self) -> None:
        if self._thread is None or self._failure is not None:
            return
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from relaytui.commander.server import Commander

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        commander = Commander(self._settings)
        await commander.start()
        try:
            self.url = commander.url
            self._ready.set()
            stopped, lost = (asyncio.ensure_future(event.wait()) for event in (self._stop, commander.lost))
            await asyncio.wait([stopped, lost], return_when=asyncio.FIRST_COMPLETED)
            self.trouble = commander.trouble
            stopped.cancel()
            lost.cancel()
        finally:
            await commander.stop()
