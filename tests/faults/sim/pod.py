"""A pod: a host with a disk of its own on which agents run, one after another, each the real `Runner`."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from relay_agent.config import Settings, load
from relay_agent.runner import Runner
from relaytui.wire.errors import RelayError
from tests.faults.sim.loop import Dead, Host, HostClock, Process

if TYPE_CHECKING:
    from tests.faults.sim.trainer import Line, SimGuardian
    from tests.faults.sim.world import World


class PodHost(Host):
    def __init__(self, world: World, name: str, rate: float) -> None:
        super().__init__(world.loop, name, rate=rate, booted=world.loop.rng.uniform(10, 1e6))
        self.world = world
        self.clock = HostClock(world.loop, self)
        self.folder = world.folder / name
        self.folder.mkdir()
        self.guardians: list[SimGuardian] = []
        self.agent: Process | None = None
        self.processes: dict[int, Process] = {}
        self.full = False
        self.told_to_stop = False
        self.starts = 0
        self.synced: dict[int, int] = {}
        """Bytes of each file that were flushed, by inode."""
        self._pid = 6

    def new_process(self, name: str) -> Process:
        self._pid += 1
        process = self.world.loop.start(f"{self.name}.{name}.{self._pid}", self, self._pid)
        self.processes[self._pid] = process
        return process

    # -- agents --------------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        if not self.up or (self.agent is not None and self.agent.alive):
            return
        self.told_to_stop = False
        self.starts += 1
        self.agent = process = self.new_process("agent")
        process.spawn(self._agent(process), "agent")

    def settings(self) -> Settings:
        plan = self.world.plan
        return replace(
            base_settings(), run_id=plan.run_id, worker_id=self.name, l1_root=self.world.volume,
            agent_state=self.folder, settle_seconds=plan.settle, stop_grace=plan.grace, target_steps=plan.total,
            orphan_timeout=plan.orphan, on_lease_loss=plan.on_lease_loss,
        )  # fmt: skip

    async def _agent(self, process: Process) -> None:
        code = -1
        try:
            code = await Runner(self.settings(), self.clock).run()
        except RelayError as error:
            code = error.exit_code
            self.world.log(process, f"ended: {error}")
        except Dead:
            return
        except Exception:  # noqa: BLE001 - that is what is looked for
            self.world.loop.troubles.append(f"{process} failed: {traceback.format_exc()}")
        self.world.log(process, f"exit code {code}")
        process.kill()

    def sigterm(self) -> None:
        if self.agent is not None and self.agent.alive:
            self.told_to_stop = True
            self.agent.signal(signal.SIGTERM)

    def lose(self) -> None:
        """With its disk, and without a word to anybody."""
        self.up = False
        self._kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def power_cut(self) -> None:
        """Its disk stays, as far as it was flushed: of what was written since, any part may be there, or garbage."""
        self.up = False
        self._kill_all()
        rng = self.world.loop.rng
        for path in sorted(self.folder.rglob("*.log")):
            found = path.stat()
            size, synced = found.st_size, self.synced.get(found.st_ino, 0)
            if size > synced:
                kept = rng.randint(synced, size)
                with path.open("r+b") as file:
                    file.truncate(kept)
                    if kept < size and rng.random() < 0.3:
                        file.seek(kept)
                        file.write(bytes(size - kept))

    def _kill_all(self) -> None:
        for guard in self.guardians:
            if not guard.gone:
                guard.kill()
        for process in self.processes.values():
            process.kill()

    # -- what the agent finds of earlier ones --------------------------------------------------------------------

    def call_guardian(self, folder: Path) -> Line | None:
        for guard in reversed(self.guardians):
            if guard.folder == folder and guard.process.alive and not guard.gone:
                assert self.agent is not None
                return guard.attach(self.agent)
        return None

    def stop_leftovers(self, name: str) -> int:
        found = [guard for guard in self.guardians if guard.guard.startswith(name) and not guard.gone and guard.kill()]
        for guard in found:
            guard.gone = True
        return len(found)

    def start_of(self, pid: int) -> int:
        process = self.processes.get(pid)
        return int(process.started * 100) + 1 if process is not None and process.alive else 0


@functools.cache
def base_settings() -> Settings:
    variables = {"COMMANDER_URL": "http://commander:8080", "RELAY_SHARED_SECRET": "s", "SLIME_SFT_CMD": "true"}
    variables["PREEMPT"] = "none"  # whatever machine this runs on
    return load(variables)


def sync_noted(host: Host, fd: int) -> None:
    if isinstance(host, PodHost):
        found = os.fstat(fd)
        host.synced[found.st_ino] = found.st_size
