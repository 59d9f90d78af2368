"""A commander killed and started again at once: how long until every one of 200 agents is back and renewed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from tests.bench.children import Child, child, environment, module
from tests.bench.commander_process import Commander, commander
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured, percentile

AGENTS = 200
PROCESSES = 2
READY = 60.0
ROUNDS = 3


class Server:
    """One that is killed and started again on its port, and the crowd that comes back to it."""

    def __init__(
        self, setting: Setting, target: str, start: Callable[[int], AbstractContextManager[tuple[Child, int]]]
    ) -> None:
        self._setting = setting
        self._target = target
        self._start = start
        self._running = contextlib.ExitStack()
        self._process, self.port = self._running.enter_context(start(0))
        self._crowd: list[Child] = []

    def close(self) -> None:
        self._running.close()

    def gather(self, stack: contextlib.ExitStack, env: dict[str, str]) -> None:
        """Starts the crowd, and waits until each was renewed."""
        each = AGENTS // PROCESSES
        for first in range(0, AGENTS, each):
            words = ("load.returning", self._target, str(self.port), str(first), str(each), str(self._setting.folder))
            name = f"{self._target} crowd {first}"
            self._crowd.append(stack.enter_context(child(name, module(*words), self._setting.folder, env)))
        for load in self._crowd:
            load.answer(READY)

    def restart(self) -> Figures:
        for load in self._crowd:
            load.ask({"mark": 1}, READY)
        os.kill(self._process.pid, signal.SIGKILL)
        killed = time.monotonic()
        self._process.wait(READY)
        self._running.close()
        self._process, _ = self._running.enter_context(self._start(self.port))
        listens = time.monotonic() - killed
        for load in self._crowd:
            load.tell({"killed": killed})
        took = [seconds for load in self._crowd for seconds in load.answer(READY)["seconds"]]
        return {"p99_s": percentile(took, 0.99), "p50_s": percentile(took, 0.5), "listens_s": listens}


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    token: dict[str, str] = {}

    @contextlib.contextmanager
    def relay(port: int) -> Iterator[tuple[Child, int]]:
        serving: Commander
        with commander(setting.folder, port) as serving:
            token.update(serving.load_environment())
            yield serving.process, serving.port

    @contextlib.contextmanager
    def bare(port: int) -> Iterator[tuple[Child, int]]:
        with child("bare server", module("bare.echo", str(port)), setting.folder) as process:
            yield process, int(process.answer(READY)["port"])

    with contextlib.ExitStack() as stack:
        servers = {name: Server(setting, name, start) for name, start in (("bare", bare), ("relay", relay))}
        for server in servers.values():
            stack.callback(server.close)
        servers["bare"].gather(stack, environment())
        servers["relay"].gather(stack, token)
        samples = interleave({name: server.restart for name, server in servers.items()}, setting)
    bare_clients = Yardstick("bare websockets to a bare server", samples.of("bare", "p99_s"))
    return [measured("restart", "s", samples.of("relay", "p99_s"), bare_clients, Goal(at_most=5))]


BENCH = Bench(
    "restart",
    f"a commander killed and started again: p99 until {AGENTS} agents are back and their leases renewed",
    ("restart",),
    run,
)
