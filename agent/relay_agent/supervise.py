"""The agent's end of the guardian: start a trainer under it, hear what it prints and how it ends, have it stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from relay_agent import guardian
from relay_agent.process import own_children, say
from relaytui.wire.errors import Exit, RelayError

CATCH_UP = 4 << 20
"""Bytes an agent may lag behind its trainer; of more, all but the last chunk is only counted."""
LOG_WAIT = 5.0
"""Seconds to wait for bytes that the guardian has yet to write to the log."""


class Supervised:
    """A trainer that runs. `on_output` gets its bytes in order, `on_skipped` how many lines were left out instead."""

    def __init__(self, log: Path, on_output: Callable[[bytes], None], on_skipped: Callable[[int], None]) -> None:
        self._log = log
        self._on_output = on_output
        self._on_skipped = on_skipped
        self._seen = 0  # bytes of output handed on
        self._socket: socket.socket | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The trainer's exit code, 128 + n for signal n. Others of its tree may still be alive."""
        self.gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Nothing of it is left, and all it printed was handed on. How many leftovers had to be stopped."""
        self.guard = ""

    async def start(
        self, argv: tuple[str, ...], env: Mapping[str, str], guard: str, grace: float, orphan_seconds: float = 0.0
    ) -> int:
        """Its pid; RelayError (exit 2) where the system will not start it."""
        self.guard = guard
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * guardian.CHUNK)
        command = [sys.executable, "-I", "-S", guardian.__file__, str(theirs.fileno()), str(self._log), guard]
        self._guardian = subprocess.Popen(  # noqa: ASYNC220 - a fork and an exec; nothing is waited for
            [*command, str(grace), str(orphan_seconds), "--", *argv],
            env={**env, guardian.MARKER: guard},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        own_children.add(self._guardian.pid)
        theirs.close()
        self._socket = ours
        reader, writer = await asyncio.open_connection(sock=ours, limit=guardian.CHUNK)
        self._task = asyncio.create_task(self._listen(reader, writer), name="guardian")
        return await self._started

    def stop(self) -> None:
        """SIGTERM to the trainer now; SIGKILL to its tree when the grace is over."""
        self._order(guardian.STOP)

    def kill(self) -> None:
        self._order(guardian.KILL)

    def _order(self, order: bytes) -> None:
        if self._socket is not None:
            with suppress(OSError):
                os.write(self._socket.fileno(), order)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leftovers = 0
        try:
            while True:
                kind, offset, length = guardian.HEADER.unpack(await reader.readexactly(guardian.HEADER.size))
                payload = await reader.readexactly(length)
                if kind == guardian.OUTPUT:
                    await self._output(offset, payload)
                elif kind == guardian.STARTED:
                    self._started.set_result(int(payload))
                elif kind == guardian.EXITED:
                    self.exited.set_result(int(payload))
                elif kind == guardian.LOG_LOST:
                    say(f"the trainer's log is not written: {payload.decode(errors='replace')}; training goes on")
                elif kind == guardian.REFUSED:
                    number, _, words = payload.decode(errors="replace").partition(" ")
                    self._started.set_exception(_not_started(int(number), words))
                    break
                elif kind == guardian.GONE:
                    leftovers = int(payload)
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._guardian_died()
        finally:
            writer.close()
            self._socket = None
            await asyncio.to_thread(self._reap)
        if self.exited.done():
            self.gone.set_result(leftovers)

    async def _output(self, offset: int, data: bytes) -> None:
        if offset < self._seen:  # part of it was read from the log already
            data = data[self._seen - offset :]
        elif offset > self._seen:
            await self._catch_up(offset)
        if data:
            self._on_output(data)
            self._seen += len(data)
            await asyncio.sleep(0)  # a flood must not keep the loop from renewing

    async def _catch_up(self, end: int) -> None:
        """What came too fast for us is in the log: read it from there up to `end`."""
        if end - self._seen > CATCH_UP:
            until = end - guardian.CHUNK
            lines, self._seen = await asyncio.to_thread(_count_lines, self._log, self._seen, until), until
            self._on_skipped(lines)
        give_up = time.monotonic() + LOG_WAIT
        while self._seen < end:
            data = await asyncio.to_thread(_read, self._log, self._seen, min(guardian.CHUNK, end - self._seen))
            if data:
                self._on_output(data)
                self._seen += len(data)
            elif time.monotonic() > give_up:  # the volume lost it, and the guardian said so
                self._seen = end
                self._on_skipped(0)
            else:
                await asyncio.sleep(0.02)

    async def _guardian_died(self) -> None:
        """Nobody else stops the trainer now. It gets SIGKILL by the kernel; its children get it here."""
        if not self._started.done():
            self._started.set_exception(_not_started(0, "its guardian died"))
        say("the guardian was killed: stopping what is left of the trainer")
        await asyncio.to_thread(stop_leftovers, self.guard)
        if not self.exited.done():
            self.exited.set_result(128 + signal.SIGKILL)

    def _reap(self) -> None:
        if self._guardian is not None:
            with suppress(subprocess.TimeoutExpired):
                self._guardian.wait(15)
                own_children.discard(self._guardian.pid)


def stop_leftovers(guard: str, timeout: float = 10.0) -> int:
    """Kill what carries this guard's marker until two looks in a row find nothing. Blocking; how many there were."""
    if not Path("/proc/self").exists():
        return 0
    found: set[int] = set()
    empty = 0
    until = time.monotonic() + timeout
    while empty < 2 and time.monotonic() < until:
        left = guardian.tree(guard)
        empty = 0 if left else empty + 1
        found |= left
        guardian.signal_all(left, signal.SIGKILL)
        if left:
            time.sleep(0.02)
    return len(found)


def _not_started(number: int, words: str) -> RelayError:
    return RelayError(
        "trainer_not_started",
        f"the trainer cannot be started: {words}" + (f" (errno {number})" if number else ""),
        "a launcher needs a first line such as #!/usr/bin/env bash, and that program on PATH",
        exit_code=Exit.USAGE,
    )


def _read(path: Path, offset: int, length: int) -> bytes:
    """What the log has there. Whatever else lies under its name has nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | guardian.OURS)
        try:
            return os.pread(fd, length, offset) if guardian.is_plain(fd) else b""
        finally:
            os.close(fd)
    except OSError:
        return b""


def _count_lines(path: Path, start: int, end: int) -> int:
    lines = 0
    while start < end and (data := _read(path, start, min(1 << 20, end - start))):
        lines += data.count(b"\n")
        start += len(data)
    return lines
