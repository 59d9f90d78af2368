"""A virtual-time event loop that runs several simulated processes on several hosts in one thread.

Each callback belongs to the process in whose context it was scheduled. Within a process callbacks run in the order in
which they became ready, as asyncio promises; which process runs next is drawn from the seed. Work for threads runs
inline, some time after it was handed over. A process that crashes simply never runs again: no `finally`, no `except`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
MAX_STEPS = 60_000
"""Callbacks in one world: one that spins does not end otherwise."""
EPOCH_OF_WALL = 1_750_000_000.0


class Dead(BaseException):
    """Raised in a process that has crashed in the midst of a system call: nothing of it may run on."""


class Stuck(Exception):  # noqa: N818 - it says what happened
    """Nothing is left to happen, and the world is not over."""


class Host:
    """A machine: its clock (rate, boot, suspend, steps of the wall clock) and whether it runs."""

    def __init__(self, loop: SimLoop, name: str, *, rate: float = 1.0, booted: float = 0.0) -> None:
        self._loop = loop
        self.name = name
        self.rate = rate
        self.up = True
        self.frozen = False
        self.thawed_at = -math.inf
        self.slept = 0.0  # seconds that the monotonic clock did not count
        self.stepped = 0.0  # seconds the wall clock was moved by
        self._boot_at = loop.now - booted
        self.boots = 1
        self._sleeps_since: float | None = None

    def boot(self) -> float:
        return (self._loop.now - self._boot_at) * self.rate

    def mono(self) -> float:
        boot = (self._loop.now - self._boot_at) * self.rate
        if self._sleeps_since is not None:
            return boot - (self.slept + (boot - self._sleeps_since))
        return boot - self.slept

    def true_time(self, mono: float) -> float:
        """When this host's monotonic clock shows `mono`, as long as it is awake."""
        return self._boot_at + (mono + self.slept) / self.rate

    def when_boot_is(self, boot: float) -> float:
        return self._boot_at + boot / self.rate

    def freeze(self, *, counts: bool) -> None:
        """Nothing on it runs. `counts`: the monotonic clock goes on (a stopped container), or not (a laptop's lid)."""
        if not self.frozen:
            self.frozen = True
            if not counts:
                self._sleeps_since = self.boot()

    def thaw(self) -> None:
        if self._sleeps_since is not None:
            self.slept += self.boot() - self._sleeps_since
            self._sleeps_since = None
        if self.frozen:
            self.thawed_at = self._loop.now
        self.frozen = False

    def reboot(self) -> None:
        self.thaw()
        self.boots += 1
        self._boot_at, self.slept = self._loop.now - 5.0, 0.0
        self.up = True


class HostClock:
    """`relaytui.wire.clock.Clock` of a simulated host."""

    def __init__(self, loop: SimLoop, host: Host) -> None:
        self._loop = loop
        self._host = host

    def wall(self) -> float:
        return EPOCH_OF_WALL + self._loop.now + self._host.stepped

    def boot(self) -> float:
        return self._host.boot()

    def boot_id(self) -> str:
        return f"{self._host.name}-boot-{self._host.boots}"


class Handle:
    """As asyncio's own, without what only its debug mode asks for: most of what a world does is to make these."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_loop")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: Any) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context: contextvars.Context = context
        self._cancelled = False

    def __repr__(self) -> str:
        return f"{self._callback}{self._args}"

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = _nothing, ()

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio does
            self._loop.call_exception_handler({"message": f"Exception in callback {self}", "exception": error})


class Timer(Handle):
    __slots__ = ("_when",)

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: Any
    ) -> None:
        super().__init__(callback, args, loop, context)
        self._when = when

    def when(self) -> float:
        return self._when


def _nothing() -> None:
    pass


class Process:
    def __init__(self, loop: SimLoop, name: str, host: Host, pid: int) -> None:
        self.loop = loop
        self.name = name
        self.host = host
        self.pid = pid
        self.started = loop.now
        self.alive = True
        self.stopped = False
        """By SIGSTOP."""
        self.ready: deque[Handle] = deque()
        self.timers: list[tuple[float, int, Timer]] = []
        self.signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self.steps_left = -1
        """Callbacks until it crashes; -1: none is planned."""
        self.calls_left = -1
        """System calls that change a disk until it crashes."""
        self.on_death: list[Callable[[], None]] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped and self.host.up and not self.host.frozen

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Something from outside happens to it."""
        if self.alive:
            self.ready.append(Handle(callback, args, self.loop, self.context))

    def spawn(self, coro: Any, name: str) -> asyncio.Task[Any]:
        return self.context.run(lambda: self.loop.create_task(coro, name=name))

    def signal(self, number: int) -> None:
        handler = self.signals.get(number)
        if handler is not None:
            self.post(handler[0], *handler[1])

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.ready.clear()
            self.timers.clear()
            for hear in self.on_death:
                hear()


class Future(asyncio.Future[Any]):
    """It knows whose it is: nobody retrieves what becomes of it in a process that is dead."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self.process = PROCESS.get()


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.thread_delay = 0.002
        self.steps = 0
        self.over = False
        self._number = itertools.count()
        self._tasks: list[asyncio.Task[Any]] = []
        self.troubles: list[str] = []
        self.on_crash: Callable[[Process], None] = lambda process: process.kill()
        self.outside = Host(self, "outside")
        self.root = Process(self, "world", self.outside, 0)
        self.processes = [self.root]
        super().__init__()
        self.set_exception_handler(_note_trouble)

    def start(self, name: str, host: Host, pid: int) -> Process:
        process = Process(self, name, host, pid)
        self.processes = [each for each in self.processes if each.alive]
        self.processes.append(process)
        return process

    # -- what asyncio asks a loop for ----------------------------------------------------------------------------

    def time(self) -> float:
        process = PROCESS.get()
        return self.now if process is None else process.host.mono()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, self, context)
        process = context.get(PROCESS) or self.root
        if process.alive:
            process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Timer:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = Timer(when, callback, args, self, context)
        process = context.get(PROCESS) or self.root
        if process.alive:
            heapq.heappush(process.timers, (when, next(self._number), handle))
        return handle

    def at(self, when: float, callback: Any, *args: Any) -> Any:
        """In true time, by nobody of the world."""
        return self.call_at(when, callback, *args, context=self.root.context)

    def create_future(self) -> Future:
        return Future(self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        task.process = PROCESS.get()  # type: ignore[attr-defined]
        if len(self._tasks) > 1_000:
            self._tasks = [each for each in self._tasks if not each.done()]
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future: asyncio.Future[Any] = self.create_future()
        begun = self.rng.random() < 0.5
        delay = self.rng.expovariate(1 / self.thread_delay)

        def work() -> None:
            if future.cancelled() and not begun:
                return
            try:
                result, error = func(*args), None
            except Dead:
                return
            except BaseException as failure:  # noqa: BLE001 - it is raised where the result is waited for
                result, error = None, failure
            self.call_later(delay, deliver, result, error)

        def deliver(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.call_later(delay, work)
        return future

    def set_default_executor(self, executor: Any) -> None:
        pass

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        process = PROCESS.get()
        assert process is not None
        process.signals[sig] = (callback, args)

    def _run_once(self) -> None:
        while not self._stopping:
            self._step()

    # -- one callback after another ------------------------------------------------------------------------------

    def _step(self) -> None:
        process = other = None
        for each in self.processes:  # who is dead has nothing to do
            if each.ready and not each.stopped and each.host.up and not each.host.frozen:
                if process is not None:
                    other = each
                    break
                process = each
        if process is None:
            self._advance()
            return
        if other is not None:
            ready = [each for each in self.processes if each.ready and each.runs]
            process = ready[self.rng.randrange(len(ready))]
        handle = process.ready.popleft()
        if handle._cancelled:
            return
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Stuck(f"{process} runs and runs, now {handle}")
        if process.steps_left > 0:
            process.steps_left -= 1
            if process.steps_left == 0:
                self.on_crash(process)
                return
        handle.run()

    def _advance(self) -> None:
        """To the next moment at which anything happens."""
        soonest: list[tuple[float, Process]] = []
        first = math.inf
        for process in self.processes:
            timers = process.timers
            if not timers or process.stopped:
                continue
            host = process.host
            if host.frozen or not host.up:
                continue
            while timers[0][2]._cancelled:
                heapq.heappop(timers)
                if not timers:
                    break
            else:
                when = host._boot_at + (timers[0][0] + host.slept) / host.rate  # as Host.true_time
                soonest.append((when, process))
                if when < first:
                    first = when
        if not soonest:
            raise Stuck("nothing is left to happen")
        self.now = max(self.now, first) + 1e-6  # time that passes, however little
        for when, process in soonest:
            if when <= self.now:
                due = process.host.mono()
                while process.timers and process.timers[0][0] <= due:
                    _, _, handle = heapq.heappop(process.timers)
                    if not handle._cancelled:
                        process.ready.append(handle)

    def bury(self) -> None:
        """The world is over: whatever still waits is ended, so that nothing is left for the garbage collector. Before
        that it is said what failed where nobody asked."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self.over = True
        for process in self.processes:
            process.kill()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _end(task.get_coro())
        self._tasks.clear()


def _end(coro: Any) -> None:
    for _ in range(100):
        try:
            coro.throw(Dead())
        except BaseException:  # noqa: BLE001 - whatever it says, it is over
            return


def _note_trouble(loop: Any, context: dict[str, Any]) -> None:
    error, process = context.get("exception"), getattr(context.get("future"), "process", None)
    dead = isinstance(error, Dead) or (process is not None and not process.alive)
    if not loop.over and not dead:
        loop.troubles.append(f"{context.get('message')}: {error!r}")
