"""One world from one seed: who lives in it, what goes wrong, and when it is over."""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from relaytui.commander.services.core import Core
from relaytui.wire.errors import RelayError
from relaytui.wire.status import RunStatus
from tests.faults.sim.commander import SimCommander
from tests.faults.sim.faults import Faults
from tests.faults.sim.loop import PROCESS, Host, Process, SimLoop, Stuck
from tests.faults.sim.net import Network
from tests.faults.sim.observer import Observer, Violation
from tests.faults.sim.patches import contact_of, patched
from tests.faults.sim.planted import Bug
from tests.faults.sim.pod import PodHost

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Plan:
    """What a world is like; drawn from its seed."""

    run_id: str
    lease: float
    total: int
    step_seconds: float
    save_every: int
    save_seconds: float
    saves_at_stop: bool
    marks: bool
    settle: float
    grace: float
    orphan: float
    on_lease_loss: Literal["continue", "stop"]
    keep: int
    pods: int
    atomic: bool
    faulty_for: float

    @classmethod
    def draw(cls, rng: random.Random, faulty: bool) -> Plan:
        lease = rng.choice([6.0, 10.0, 20.0])
        return cls(
            run_id="run",
            lease=lease,
            total=rng.randint(10, 30),
            step_seconds=rng.uniform(0.4, 1.5),
            save_every=rng.randint(2, 7),
            save_seconds=rng.choice([0.001, 0.05]),
            saves_at_stop=rng.random() < 0.7,
            marks=rng.random() < 0.7,
            settle=2.0,
            grace=rng.choice([0.5, 8.0]) if lease < 10 else 3.0,  # longer than the lease, too
            orphan=rng.choice([8.0, 40.0]),
            on_lease_loss="stop" if rng.random() < 0.4 else "continue",
            keep=rng.randint(0, 3),
            pods=rng.randint(1, 3) if faulty else 1,
            atomic=rng.random() < 0.8,
            faulty_for=rng.uniform(14.0, 40.0) if faulty else 0.0,
        )

    @property
    def heals_within(self) -> float:
        """Seconds after the last fault within which the run must be over."""
        return 10 * self.lease + 2 * self.total * self.step_seconds + self.orphan + 120.0


@dataclass
class Result:
    seed: int
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    seconds: float = 0.0
    callbacks: int = 0
    digest: str = ""

    @property
    def ok(self) -> bool:
        return not self.violations


class World:
    def __init__(self, seed: int, *, faulty: bool = True, verbose: bool = False, bug: Bug | None = None) -> None:
        self.seed = seed
        self.verbose = verbose
        self.bug = bug
        self.story: list[str] = []
        self.loop = SimLoop(seed)
        self.plan = replace(Plan.draw(self.loop.rng, faulty), **(bug.plan if bug is not None else {}))
        self.folder = Path(tempfile.mkdtemp(prefix="relay-sim-", dir=SHM if SHM.is_dir() else None))
        self.volume = self.folder / "volume"
        self.volume.mkdir()
        self.ckpt = f"{self.volume}/runs/{self.plan.run_id}/ckpt"
        self.net = Network(self.loop)
        self.net.delay = self.loop.rng.choice([0.001, 0.02, 0.1])
        host = Host(self.loop, "laptop", rate=self._rate(), booted=self.loop.rng.uniform(10, 1e6))
        self.commander = SimCommander(self.loop, self.net, host, self.folder / "state", self.plan.lease, self.plan.keep)
        self.contact = contact_of(self)
        self.pods: list[PodHost] = []
        self.observer = Observer(self)
        self.net.tap, self.net.taken = self.observer.heard, self.observer.taken
        self.faults = Faults(self)
        self.loop.on_crash = self.crash
        self.finished = False
        self._result = Result(seed)

    def _rate(self) -> float:
        return self.loop.rng.uniform(0.995, 1.005)

    def log(self, process: Process | None, text: str) -> None:
        line = f"{self.loop.now:9.3f} {process or 'world'}: {text}"
        self.story.append(line)
        if self.verbose:
            print(line)

    def run(self) -> Result:
        result = self._result
        gc.disable()  # it has nothing to find before a world is over, and much to look through
        try:
            with patched(self):
                try:
                    self.loop.run_until_complete(self._story())
                    if not self.observer.violations:
                        self.observer.judge_end()
                except Violation as violation:
                    result.violations.append(str(violation))
                except Stuck as stuck:
                    result.violations.append(f"liveness: {stuck}")
                finally:
                    self.loop.bury()
                    self.commander.crash()
        finally:
            gc.enable()
            self.loop.close()
            self._close_files()
            shutil.rmtree(self.folder, ignore_errors=True)
        result.violations += self.observer.violations + self.loop.troubles
        result.faults, result.checks = self.faults.counts, self.observer.checks
        result.steps, result.seconds, result.callbacks = self.observer.steps, self.loop.now, self.loop.steps
        return result

    def _close_files(self) -> None:
        """What crashed processes had open."""
        for entry in list(Path("/proc/self/fd").iterdir()):
            with suppress(OSError):
                if entry.readlink().is_relative_to(self.folder):
                    os.close(int(entry.name))

    async def _story(self) -> None:
        PROCESS.set(self.loop.root)
        self.commander.start()
        for _ in range(self.plan.pods):
            self.new_pod()
        if self.plan.faulty_for:
            self.faults.begin()
        until = self.plan.faulty_for + self.plan.heals_within
        while not self.finished:
            await _sleep(1.0)
            if self.observer.violations or self.loop.troubles:
                return
            if self.loop.now > until:
                self.observer.fail(
                    "liveness", f"the run is not over {self.plan.heals_within:.0f} s after the last fault"
                )
                return
            if self.loop.now > self.plan.faulty_for and self._is_over():
                self.finished = True
            self._mind()

    def _status(self) -> RunStatus | None:
        core = self.commander.core
        view = core.board.runs.get(self.plan.run_id) if core is not None else None
        return view.run.status if view is not None else None

    def _is_over(self) -> bool:
        busy = any(pod.agent is not None and pod.agent.alive and pod.up for pod in self.pods)
        return self._status() is RunStatus.COMPLETED and not busy

    def _mind(self) -> None:
        """What a fleet does by itself: a pod starts its agent anew, and somebody queues again what failed."""
        status, core = self._status(), self.commander.core
        if status is RunStatus.COMPLETED:
            return
        for pod in self.pods:
            if self.loop.rng.random() < 0.4:
                pod.start_agent()
        if status is RunStatus.FAILED and core is not None and self.commander.process is not None:
            epoch = core.board.runs[self.plan.run_id].run.epoch
            self.commander.process.spawn(self._requeue(core, epoch), "requeue")

    async def _requeue(self, core: Core, epoch: int) -> None:
        with suppress(RelayError):
            await core.orders.requeue(self.plan.run_id, epoch, "op", "again")

    # -- pods and crashes ----------------------------------------------------------------------------------------

    def new_pod(self) -> PodHost:
        pod = PodHost(self, f"pod{len(self.pods)}", self._rate())
        self.pods.append(pod)
        return pod

    def crash(self, process: Process) -> None:
        self.log(process, "crashes")
        if process is self.commander.process:
            self.faults.crash_commander()
        else:
            process.kill()


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)
