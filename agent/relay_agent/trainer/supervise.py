"""The agent's end of the guardian: start a trainer under it, hear what it prints and how it ends, have it stopped."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from relay_agent import guardian
from relay_agent.output import printed
from relay_agent.process import own_children, say
from relay_agent.trainer.hearing import Hearing
from relay_agent.trainer.leftovers import is_frozen, kill_tree, stop_leftovers, thaw
from relay_agent.trainer.spawn import deadline, refused, spawn

PATIENCE, HURRIED = 5.0, 2.0
"""Seconds beyond the grace that a guardian has to stop the trainer, and where nobody wants to wait, before the agent
does it without it."""
LAST_WORD = 30.0
"""Seconds that a guardian has for what a trainer left behind and for the end of the log."""
LEAVES = 3.0
"""Seconds that what a trainer left behind has from each word for it."""
FIRST_WORD = 60.0
ANSWERS = 2.0
"""Seconds that a guardian is waited for where something only gets better by its answer."""
GATHER = 0.5
"""Seconds that output may wait for more where nobody follows it."""
KILLED = f"its guardian was killed: the last {GATHER:g} s of what it printed"
SILENT = "its guardian did not answer any more: what it printed last"
THAW_EVERY = 5.0
"""Seconds between two looks at whether the guardian is frozen."""
GREETING = 30.0
"""Seconds that a guardian that listens has to greet a new agent: it may be at its last work, on a slow volume."""


class Ending(NamedTuple):
    """How a trainer ended, as its guardian noted it. `why`: itself, oom (itself, and the kernel killed something for
    want of memory meanwhile), order, deadline, orphan; killed: nobody noted."""

    code: int
    printed: int
    leftovers: int
    why: str


class Supervised:
    """A trainer that runs. `on_output` gets its bytes in order from byte `seen` on, `on_skipped` how many lines and
    bytes were left out instead.
    """

    def __init__(
        self,
        log: Path,
        on_output: Callable[[bytes], None],
        on_skipped: Callable[[int, int], None],
        seen: int = 0,
        *,
        taken_over: bool = False,
        patience: float = PATIENCE,
        hurried: float = HURRIED,
        last_word: float = LAST_WORD,
    ) -> None:
        self._patience = patience
        self._hurried = hurried
        self._last_word = last_word
        self._grace = 0.0
        self._pid = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._forcing: asyncio.Task[None] | None = None
        self._takes = 0
        self._taken: dict[int, asyncio.Future[None]] = {}  # by the number of the TAKE that it answers
        self._told = asyncio.Event()
        self._log = log
        self._hearing = Hearing(log, on_output, on_skipped, seen, whole=taken_over)
        self._socket: socket.socket | None = None
        self._guardian = 0  # its pid
        self._thawing: asyncio.Task[None]
        self._child: subprocess.Popen[bytes] | None = None  # the guardian, where we started it
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The trainer's exit code, 128 + n for signal n. Others of its tree may still be alive."""
        self.gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Nothing of it is left, and all it printed was handed on. How many leftovers had to be stopped, or failed, and
        how many were killed shortly before it ended well."""
        self.oom = False
        """Once it exited: the kernel had killed something of it, or of its pod, for want of memory."""
        self.signalled = False
        """Once it exited: a signal ended it, as far as anybody knows; else it chose that code, or a shell did."""
        self.stopped = False
        """It was asked to stop: by us, by its guardian, or by whoever came before us."""
        self.cut = 0
        """Once nothing is left: how many leftovers had to be stopped, as far as anybody knows."""
        self.trained_on = False
        """Once nothing is left: what it left behind, and what had to be stopped, had made steps after its exit."""
        self.unheard = ""
        """Its guardian ended otherwise than by its own word: in words, for people."""
        self.on_unheard: Callable[[], None] = lambda: None
        """Told of that at once: what the trainer printed last may be missing."""
        self.guard = ""
        self._pty = False

    async def start(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        guard: str,
        grace: float,
        orphan: float = 0.0,
        folder: Path | None = None,
        pty: bool = False,
        dead_by: tuple[float, float] | None = None,
    ) -> int:
        """Its pid; RelayError (exit 2) where the system will not start it.

        `folder`: where a later agent finds it, for `orphan` seconds after this one is gone. `pty`: it gets a terminal.
        `dead_by`: what `dead_by` would say, known to its guardian before there is a trainer: we may die in between.
        """
        self.guard = guard
        self._pty = pty
        self._grace = grace
        try:
            ours = self._spawn(argv, env, grace, orphan, folder, deadline(*dead_by) if dead_by else ())
        except OSError as error:
            raise refused(error.errno or 0, error.strerror or str(error), argv) from None
        except ValueError as error:  # a zero byte in a command or a variable
            raise refused(0, str(error), argv) from None
        return await self._hear(ours)

    async def adopt(self, ours: socket.socket, pid: int, guard: str, grace: float) -> int:
        """Take over a trainer whose guardian, `pid`, is at the other end. The trainer's pid."""
        self.guard, self._grace, self._guardian = guard, grace, pid
        return await self._hear(ours)

    def recall(self, ending: Ending, guard: str) -> None:
        """Nobody was there when it ended: read what it had printed."""
        self.guard = guard
        self.oom = ending.why == "oom"
        self.stopped = ending.why not in ("itself", "oom")
        self.signalled = ending.why in ("oom", "killed") and ending.code > 128
        self._task = self._watched(self._read_on(ending))

    async def _read_on(self, ending: Ending) -> None:
        if ending.why == "killed":
            self._unheard(KILLED)
        end = ending.printed
        if end < 0:  # nobody noted how much that was
            end = await asyncio.to_thread(printed.size, self._log)
        await self._hearing.hear(end, b"")
        self.exited.set_result(ending.code)
        self.gone.set_result(ending.leftovers)

    def _watched(self, hearing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Where it fails, whoever waits for the trainer fails with it instead of waiting for ever."""
        task = asyncio.create_task(hearing, name="guardian")
        task.add_done_callback(self._heard_last)
        return task

    def _heard_last(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        for future in (self._started, self.exited, self.gone):
            if not future.done():
                future.set_exception(error)
                future.exception()  # not every one of them is waited for

    async def _hear(self, ours: socket.socket) -> int:
        self._socket = ours
        reader, writer = await asyncio.open_connection(sock=ours, limit=guardian.CHUNK)
        self._task = self._watched(self._listen(reader, writer))
        self._thawing = asyncio.create_task(self._keep_thawed(), name="thaw")
        self._task.add_done_callback(lambda task: self._thawing.cancel())
        self._not_later_than(FIRST_WORD)
        try:
            while not self._started.done():
                await asyncio.wait({self._started}, timeout=1.0)
                if not self._started.done():
                    thaw(self._guardian)  # a trainer can freeze it before it has said a word
            self._pid = self._started.result()
        finally:
            self._forget_deadline()
            self._told.set()
        return self._pid

    async def _keep_thawed(self) -> None:
        """A trainer can freeze its guardian and end, and nobody would ever hear of it."""
        said = False
        while True:
            await asyncio.sleep(THAW_EVERY)
            if is_frozen(self._guardian):
                thaw(self._guardian)
                if not said:
                    said = True
                    say("the guardian was frozen (SIGSTOP): it goes on")

    def _spawn(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        grace: float,
        orphan: float,
        folder: Path | None,
        orders: tuple[bytes, ...],
    ) -> socket.socket:
        """Our end of the line to the guardian, which obeys `orders` first."""
        self._child, ours = spawn(
            self._log, self.guard, argv, env, grace, orphan, folder, pty=self._pty, orders=orders
        )  # fmt: skip
        self._guardian = self._child.pid
        own_children.add(self._guardian)
        return ours

    def stop(self, within: float = math.inf) -> None:
        """SIGTERM to the trainer now; SIGKILL to its tree when the grace is over, or `within` seconds if that is less:
        its guardian is told so by `dead_by`."""
        self.stopped = True
        patient = self._grace <= within
        left = self._grace + self._patience if patient else max(0.0, within) + self._hurried
        self._order(guardian.STOP, left)

    def kill(self) -> None:
        self.stopped = True
        self._order(guardian.KILL, self._hurried)

    def signal(self, number: int) -> int:
        """To every process of the trainer that handles it, as the others would die of it. How many did. Blocking."""
        if not Path("/proc/self").exists():
            with suppress(OSError):
                os.killpg(self._pid, number)
            return 1
        handlers = self._handlers(number)
        guardian.signal_all(handlers, number)
        return len(handlers)

    def knows(self, number: int) -> bool:
        """Whether a process of the trainer handles it, as far as the system tells. Blocking."""
        return not Path("/proc/self").exists() or bool(self._handlers(number))

    def _handlers(self, number: int) -> set[int]:
        return {pid for pid in self.pids() if guardian.handles(pid, number)}

    def pids(self) -> set[int]:
        """All that is alive of the trainer, as far as the system tells; OSError where it does not. Blocking."""
        return guardian.tree(self.guard, self._guardian) - {self._guardian}

    def frozen(self) -> bool:
        """Whether a process of the trainer is stopped, as far as the system tells. Blocking."""
        with suppress(OSError):
            return any(is_frozen(pid) for pid in self.pids())
        return False

    def dead_by(self, at: float, notice: float | None = None) -> None:
        """The guardian sees to it that the trainer is dead by `at` on the boot clock, without us if need be. 0: never
        mind. It is told to stop `notice` seconds before, where that is less than its grace."""
        for order in deadline(at, notice):
            self._say(order)

    def leave(self) -> None:
        """What it left behind when it had ended well is not stopped before LEAVES seconds from now, unless it was told
        to end already: it may be saving."""
        self._say(guardian.LEAVE + str(LEAVES).encode())
        if self._deadline is not None:
            self._forget_deadline()
            self._not_later_than(self._last_word)

    def hear(self, at_once: bool) -> None:
        """Whether what it prints is to be heard at once, as at first, or may gather a little: that spares the trainer
        and us to be woken for every line."""
        self._say(guardian.GATHER + str(0.0 if at_once else GATHER).encode())

    async def catch_up(self) -> bool:
        """What it has printed so far is heard, however little has gathered. False: its guardian did not answer in time,
        as where its log cannot be written fast enough."""
        if self._socket is None:
            return True
        self._takes = number = self._takes + 1
        self._taken[number] = answer = asyncio.get_running_loop().create_future()
        self._say(guardian.TAKE + str(number).encode())
        thaw(self._guardian)
        try:
            await asyncio.wait({answer}, timeout=ANSWERS)
        finally:
            del self._taken[number]
        return answer.done()

    def _say(self, line: bytes) -> None:
        if self._socket is not None:
            with suppress(OSError):
                os.write(self._socket.fileno(), line + b"\n")

    def _order(self, order: bytes, seconds: float) -> None:
        if self._socket is None:
            return
        self._say(order)
        thaw(self._guardian)
        if not self.exited.done():
            self._not_later_than(seconds)

    def _not_later_than(self, seconds: float) -> None:
        """What the guardian has not done by then is done without it. Asking again only shortens it."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._deadline is not None:
            if self._deadline.when() <= at:
                return
            self._deadline.cancel()
        self._deadline = loop.call_at(at, self._force)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _force(self) -> None:
        self._deadline = None
        if self._forcing is None and self._task is not None and not self._task.done():
            self._forcing = asyncio.create_task(self._without_guardian(), name="force")

    async def _without_guardian(self) -> None:
        """It is frozen, or hangs in the volume. Its end makes `_listen` return; where not even SIGKILL ends it, that is
        not waited for."""
        assert self._task is not None
        say("the guardian does not answer: stopping the trainer without it")
        await asyncio.to_thread(kill_tree, self.guard, self._guardian, self._pid)
        await asyncio.wait({self._task}, timeout=5.0)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leftovers = 0
        try:
            while True:
                kind, offset, length = guardian.HEADER.unpack(await reader.readexactly(guardian.HEADER.size))
                payload = await reader.readexactly(length)
                if kind == guardian.OUTPUT:
                    await self._hearing.hear(offset, payload)
                elif kind == guardian.TAKEN:
                    self._caught_up(int(payload))
                elif kind == guardian.STARTED:
                    self._started.set_result(int(payload))
                    await self._told.wait()  # who started it has a word to say before it is heard
                elif kind == guardian.EXITED:
                    self.exited.set_result(int(payload))
                    self._forget_deadline()
                    self._not_later_than(self._last_word)
                elif kind == guardian.ASKED:
                    self.stopped = True
                elif kind == guardian.OOM:
                    self.oom = True
                elif kind == guardian.SIGNALLED:
                    self.signalled = True
                elif kind == guardian.ALONE:
                    say(f"no later agent can take this trainer over: {payload.decode(errors='replace')}")
                elif kind == guardian.TROUBLE:
                    say(f"the guardian is in trouble: {payload.decode(errors='replace')}; training goes on")
                elif kind == guardian.LOG_LOST:
                    say(f"the trainer's log is not written: {payload.decode(errors='replace')}; training goes on")
                elif kind == guardian.REFUSED:
                    number, _, words = payload.decode(errors="replace").partition(" ")
                    self._started.set_exception(refused(int(number), words))
                    break
                elif kind == guardian.GONE:
                    leftovers, self.cut = map(int, (*payload.split(), b"0")[:2])
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._guardian_died()
        except asyncio.CancelledError:
            if self._forcing is None:
                raise
            await self._guardian_died()
        finally:
            self._caught_up(self._takes)
            self._forget_deadline()
            writer.close()
            self._socket = None
            await asyncio.to_thread(self._reap, 1.0 if self._forcing else 15.0)
        if self.exited.done():
            self.gone.set_result(leftovers)

    def _caught_up(self, number: int) -> None:
        """All that was printed before that TAKE, and those before it, is heard."""
        for take, answer in self._taken.items():
            if take <= number and not answer.done():
                answer.set_result(None)

    async def _guardian_died(self) -> None:
        """Nobody else stops the trainer now. It gets SIGKILL by the kernel; its children get it here."""
        if not self._started.done():
            self._started.set_exception(refused(0, "its guardian died"))
        if not self.exited.done():  # all that the trainer printed was handed on before that
            self._unheard(SILENT if self._forcing else KILLED)
        if self._forcing is None:
            say("the guardian was killed: stopping what is left of the trainer")
        await asyncio.to_thread(stop_leftovers, self.guard)
        if not self.exited.done():
            self.signalled = True
            self.exited.set_result(128 + signal.SIGKILL)

    def _unheard(self, words: str) -> None:
        self.unheard = f"{words} may be missing, and what is published since is not called healthy"
        self.on_unheard()

    def _reap(self, timeout: float) -> None:
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout)
                own_children.discard(self._guardian)
