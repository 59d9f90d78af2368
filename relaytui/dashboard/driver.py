"""Textual's driver for a terminal, which outlives the terminal.

Its writer is a thread with a bounded queue: if a write raises there, the thread ends, the queue fills, and the main
thread waits for ever to put one more. So what it writes to here never raises.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from relaytui.dashboard.app import DashboardApp


class TolerantFile:
    """A terminal's output until it fails once, then a sink; `on_lost` is called that one time, in the writer's thread.

    Nothing is buffered: what a dead terminal did not take would be tried again, and fail, as Python ends.
    """

    def __init__(self, file: TextIO, on_lost: Callable[[], None]) -> None:
        self._file = file
        self._on_lost = on_lost
        self._lost = False

    def write(self, text: str) -> int:
        if not self._lost:
            try:
                self._write_all(text.encode(self._file.encoding or "utf-8", "replace"))
            except (OSError, ValueError):  # it is gone (EIO), or the file was closed
                self._lost = True
                self._on_lost()
        return len(text)

    def _write_all(self, data: bytes) -> None:
        rest, fileno = memoryview(data), self._file.fileno()
        while rest:
            try:
                rest = rest[os.write(fileno, rest) :]
            except BlockingIOError:  # the shell left it non-blocking
                select.select([], [fileno], [])

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


class TerminalDriver(LinuxDriver):
    """`LinuxDriver` whose app is told once when the terminal takes nothing any more."""

    def __init__(
        self,
        app: DashboardApp,
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._relay = app
        self._file = cast("Any", TolerantFile(cast("TextIO", self._file), self._lost))

    def leave_for_the_shell(self) -> None:
        """Stop the whole job, as the terminal itself would: make, or a script around this one, too.

        The screen is given back first: once another of the job has stopped, the terminal is the shell's.
        """
        self.suspend_application_mode()
        self._must_signal_resume = True
        os.kill(0, signal.SIGSTOP)

    def resume_application_mode(self) -> None:
        """What was typed while the screen was away is not meant for it, and some keys act on runs."""
        with contextlib.suppress(termios.error):
            termios.tcflush(self.fileno, termios.TCIFLUSH)
        super().resume_application_mode()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._relay.paint_anew)

    def _lost(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it is left already
            self._loop.call_soon_threadsafe(self._relay.terminal_lost)
