"""A program in a terminal of its own (a pty of 120 × 40), and when a word was first whole on its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from tests.bench.children import BenchError, environment

COLUMNS, LINES = 120, 40
PATIENCE = 30.0
CHUNK = 65_536
QUIET = 0.1
"""Seconds without a byte after which somebody looks at the screen."""
Shown = Callable[[Sequence[str]], bool]
"""Whether the lines of a screen show what is waited for."""


def has(*words: str) -> Shown:
    """All of them are somewhere on the screen, in any case."""
    lowered = [word.lower() for word in words]
    return lambda lines: all(word in "\n".join(lines).lower() for word in lowered)


def has_line(*words: str) -> Shown:
    """One line of the screen has all of them, in any case."""
    lowered = [word.lower() for word in words]
    return lambda lines: any(all(word in line.lower() for word in lowered) for line in lines)


def both(one: Shown, other: Shown) -> Shown:
    return lambda lines: one(lines) and other(lines)


class Terminal:
    """Runs `argv` in a pty from `start()` on. What it writes is kept with its time and put on a screen afterwards,
    so that watching costs the program nothing."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._main, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            argv,
            stdin=worker,
            stdout=worker,
            stderr=worker,
            env=dict(env),
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(worker)
        self._written: list[tuple[float, bytes]] = []

    def watch(self, shown: Shown) -> None:
        """Reads until the screen satisfies `shown`; BenchError when it ends or that takes too long.

        Looks only when nothing more is written for a moment, so as not to compete with who is painting.
        """
        deadline = self._started + PATIENCE
        while True:
            while self._read(QUIET):
                pass
            if shown(self.text()):
                return
            if not self._read(deadline - time.monotonic()):
                raise BenchError(f"{self.name} never painted what was waited for; its screen: {self._shown()}")

    def when(self, shown: Shown) -> float:
        """Seconds after exec at which the screen's lines first satisfied `shown`."""
        screen, stream = self._screen()
        for at, data in self._written:
            stream.feed(data)
            if shown(screen.display):
                return at - self._started
        raise BenchError(f"{self.name} never painted what was waited for; its screen: {self._shown()}")

    def text(self) -> list[str]:
        """The screen as it is now."""
        screen, stream = self._screen()
        for _, data in self._written:
            stream.feed(data)
        return [line.rstrip() for line in screen.display]

    def stop(self) -> None:
        """SIGTERM, reading on so that it can write its goodbye; SIGKILL for its session's group when it stays."""
        if self._process.poll() is None:
            self._process.terminate()
            deadline = time.monotonic() + 10.0
            while self._process.poll() is None and time.monotonic() < deadline:
                self._read(0.05)
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._main)

    def _read(self, timeout: float) -> bool:
        """Whether something was written within `timeout` seconds."""
        if timeout <= 0 or not select.select([self._main], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self._main, CHUNK)
        except OSError:  # the program ended and the pty with it
            return False
        self._written.append((time.monotonic(), data))
        return bool(data)

    def _shown(self) -> str:
        return " / ".join(line for line in self.text() if line)[:400] or "empty"

    @staticmethod
    def _screen() -> tuple[pyte.Screen, pyte.ByteStream]:
        screen = pyte.Screen(COLUMNS, LINES)
        return screen, pyte.ByteStream(screen)


def terminal_environment() -> dict[str, str]:
    """A modern terminal, the same for everyone: colours on, no multiplexer."""
    env = environment(TERM="xterm-256color", COLORTERM="truecolor", LANG="C.UTF-8", LC_ALL="C.UTF-8")
    for name in ("NO_COLOR", "TMUX", "STY", "TEXTUAL", "TERM_PROGRAM"):
        env.pop(name, None)
    return env
