"""A terminal that closes or freezes while the dashboard paints: the process is gone soon, and none is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dashboard_fleet import commander
from scripted_commander import NOW, ScriptedCommander, until

from relaytui.wire.feed import Lines

__all__ = ["commander"]

SCRIPT = """\
import sys
from pathlib import Path
from relaytui.client.endpoint import Endpoint
from relaytui.dashboard.launch import run_dashboard
result = run_dashboard(Endpoint({url!r}, {token!r}), log_path=Path({log!r}))
sys.exit(128 + result.signal if result.signal else 0)
"""
GONE_WITHIN = 5.0


class Pty:
    """A program with a terminal of its own, which this end reads until it is frozen or closed."""

    def __init__(self, argv: list[str], folder: Path, *, controlling: bool, rows: int = 60, columns: int = 200) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.seen = b""
        self._reading = False
        env = {"HOME": str(folder), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=folder, start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controlling else None,
        )  # fmt: skip
        os.close(slave)
        self.read()

    def read(self) -> None:
        asyncio.get_running_loop().add_reader(self.master, self._take)
        self._reading = True

    def freeze(self) -> None:
        """As a terminal whose window is stopped: it takes what the kernel buffers, and no more."""
        asyncio.get_running_loop().remove_reader(self.master)
        self._reading = False

    def _take(self) -> None:
        try:
            self.seen += os.read(self.master, 65_536)
        except OSError:
            self.freeze()

    def close(self) -> None:
        if self.master >= 0:
            self.freeze()
            os.close(self.master)
            self.master = -1

    def cpu(self) -> int:
        """Ticks that the main thread has used."""
        pid = self.process.pid
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    async def ended(self) -> int:
        began = time.monotonic()
        while (code := self.process.poll()) is None:
            assert time.monotonic() - began < GONE_WITHIN, "the process is still there"
            await asyncio.sleep(0.02)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.close()
        self.process.wait()


@contextlib.asynccontextmanager
async def flooded(commander: ScriptedCommander, folder: Path, *, controlling: bool = True) -> AsyncIterator[Pty]:
    """A dashboard that shows a run whose trainer prints without end."""
    script = folder / "dashboard.py"
    endpoint = commander.endpoint
    script.write_text(SCRIPT.format(url=endpoint.url, token=endpoint.token, log=str(folder / "dashboard.log")))
    pty = Pty([sys.executable, str(script)], folder, controlling=controlling)

    async def flood() -> None:
        run_id = commander.watches[-1].runs[0]
        n = 1
        while True:
            await commander.tell(Lines(run_id, 3, n, NOW, [f"{i:_^190}" for i in range(n, n + 50)]))
            n += 50
            await asyncio.sleep(0.05)

    flooding: asyncio.Task[None] | None = None
    try:
        await until(lambda: b"sft-shakespeare" in pty.seen, 15.0)
        os.write(pty.master, b"\r")
        await until(lambda: commander.watches and commander.watches[-1].runs, 10.0)
        flooding = asyncio.create_task(flood())
        await until(lambda: pty.seen.count(b"_" * 80) > 200, 15.0)
        yield pty
    finally:
        pty.kill()
        if flooding is not None:
            flooding.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await flooding


async def stuck(pty: Pty) -> None:
    """Until its main thread does nothing any more: it waits for the terminal."""
    deadline = time.monotonic() + 20
    used, since = pty.cpu(), time.monotonic()
    while time.monotonic() - since < 1.3:
        assert time.monotonic() < deadline, "it goes on painting into a frozen terminal"
        await asyncio.sleep(0.05)
        if (now := pty.cpu()) != used:
            used, since = now, time.monotonic()


@pytest.mark.parametrize("controlling", [True, False], ids=["with a hangup", "told by nothing but its writes"])
async def test_a_terminal_closed_under_a_flood_ends_the_dashboard(
    commander: ScriptedCommander, tmp_path: Path, controlling: bool
) -> None:
    async with flooded(commander, tmp_path, controlling=controlling) as pty:
        pty.close()
        assert await pty.ended() == 128 + signal.SIGHUP


async def test_a_frozen_terminal_does_not_outlive_sigterm(commander: ScriptedCommander, tmp_path: Path) -> None:
    async with flooded(commander, tmp_path) as pty:
        pty.freeze()
        await stuck(pty)
        pty.process.terminate()
        assert await pty.ended() == 128 + signal.SIGTERM


async def test_a_second_signal_ends_it_at_once(commander: ScriptedCommander, tmp_path: Path) -> None:
    async with flooded(commander, tmp_path) as pty:
        pty.freeze()
        await stuck(pty)
        pty.process.terminate()
        await asyncio.sleep(0.5)
        began = time.monotonic()
        pty.process.terminate()
        assert await pty.ended() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 1.5
        attributes = termios.tcgetattr(pty.master)
        assert attributes[3] & termios.ECHO, "the terminal is as it was"
