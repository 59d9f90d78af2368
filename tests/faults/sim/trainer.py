"""A simulated trainer under a simulated guardian, both outliving the agent; spoken to by the real `Supervised`."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from relay_agent import guardian
from relay_agent.trainer.supervise import Supervised
from tests.faults.sim.loop import EPOCH_OF_WALL, PROCESS, Process

if TYPE_CHECKING:
    from tests.faults.sim.pod import PodHost

FILES = ("model.bin", "shard/optimizer.bin")


def state_at(run_id: str, step: int) -> str:
    """What training gives at that step, whoever trains: the same bytes as in a run that nothing ever disturbed."""
    return hashlib.sha256(f"{run_id} {step}".encode()).hexdigest()


class Line:
    """What `Supervised` holds of its guardian: orders go in, framed words come out."""

    def __init__(self, guard: SimGuardian, agent: Process) -> None:
        self.guard = guard
        self.agent = agent
        self.reader: asyncio.StreamReader | None = None
        self._early = b""

    def tell(self, kind: bytes, payload: bytes, offset: int = 0) -> None:
        self.agent.post(self._feed, guardian.HEADER.pack(kind, offset, len(payload)) + payload)

    def _feed(self, data: bytes) -> None:
        if self.reader is None:
            self._early += data
        else:
            self.reader.feed_data(data)

    def end(self) -> None:
        self.agent.post(lambda: self.reader.feed_eof() if self.reader is not None else None)

    def open(self) -> asyncio.StreamReader:
        self.reader = asyncio.StreamReader(limit=guardian.CHUNK)
        self.reader.feed_data(self._early)
        return self.reader

    def close(self) -> None:
        pass


class SimSupervised(Supervised):
    """The real one but for the socket and the child."""

    def _spawn(
        self, argv: Any, env: Mapping[str, str], grace: float, orphan: float, folder: Path | None, orders: Any
    ) -> Any:
        process = PROCESS.get()
        assert process is not None
        guard = SimGuardian(process.host, self._log, self.guard, grace, orphan, folder, dict(env))  # type: ignore[arg-type]
        line = guard.attach(process)
        for order in orders:
            guard.obey(order, line)
        return line

    async def _hear(self, ours: Any) -> int:
        self._socket = ours
        self._task = asyncio.create_task(self._listen(ours.open(), ours), name="guardian")
        self._pid = await self._started
        self._told.set()
        return self._pid

    def pids(self) -> set[int]:
        """Of this machine's processes none is its."""
        return set()

    def knows(self, number: int) -> bool:
        """It saves on SIGTERM."""
        return True

    def _say(self, line: bytes) -> None:
        if self._socket is not None:
            guard: SimGuardian = self._socket.guard  # type: ignore[attr-defined]
            guard.process.post(guard.obey, line, self._socket)


class SimGuardian:
    def __init__(
        self,
        pod: PodHost,
        log: Path,
        guard: str,
        grace: float,
        orphan: float,
        folder: Path | None,
        env: dict[str, str],
    ) -> None:
        world = pod.world
        self.pod, self.world = pod, world
        self.log, self.guard, self.grace, self.orphan, self.folder = log, guard, grace, orphan, folder
        self.process = pod.new_process("guardian")
        self.trainer = SimTrainer(self, env)
        self.line: Line | None = None
        self.printed = 0
        self.code: int | None = None
        self.why = "itself"
        self.gone = False
        self.deadline = 0.0
        self.notice = grace
        self._kill_at: float | None = None
        self._stop_at: float | None = None
        pod.guardians.append(self)
        self.process.spawn(self._watch(), "guardian")

    def attach(self, agent: Process) -> Line:
        """A new agent; an earlier one is heard no more."""
        line = Line(self, agent)
        again = self.line is not None or self._stop_at is not None
        self.line, self._stop_at = line, None
        agent.on_death.append(lambda: self.process.post(self._lost, line))
        if again:
            self.world.log(self.process, "a new agent takes the trainer over")
        line.tell(guardian.STARTED, str(self.trainer.process.pid).encode())
        if again:
            line.tell(guardian.OUTPUT, b"", self.printed)
        if self.code is not None:
            self._tell_exit(line)
        return line

    def _lost(self, line: Line) -> None:
        if self.line is line:
            self.line = None
            orphan = self.orphan if self.folder is not None else 0.0
            self._stop_at = self.pod.mono() + orphan

    def obey(self, words: bytes, line: Line) -> None:
        if self.line is not line:
            return
        if words == guardian.KILL:
            self.stop(0.0, "order")
        elif words == guardian.STOP:
            self.stop(self.grace, "order")
        elif words.startswith(guardian.TAKE):
            line.tell(guardian.OUTPUT, b"", self.printed)
            line.tell(guardian.TAKEN, words[1:])
        elif words.startswith(guardian.NOTICE):
            self.notice = min(self.grace, float(words[1:]))
        elif words.startswith(guardian.DEADLINE):
            self.deadline = float(words[1:])
            self.world.observer.promised(self.trainer, self.pod.when_boot_is(self.deadline))

    def stop(self, grace: float, why: str) -> None:
        if self.deadline:
            grace = min(grace, max(0.0, self.deadline - guardian.EARLY - self.pod.boot()))
        at = self.pod.mono() + grace
        if self._kill_at is None:
            if self.code is None:
                self.why = why
                self.world.observer.stopping(self.trainer, why)
            self.trainer.process.post(self.trainer.terminate)
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def exited(self, code: int) -> None:
        """Called in the trainer's own process, or in the one that killed it."""
        if self.code is None:
            self.code = code
            self.trainer.end()
            self.process.post(self._told_of_exit)

    def _told_of_exit(self) -> None:
        if self.line is not None:
            self._tell_exit(self.line)

    def _tell_exit(self, line: Line) -> None:
        if (self.code or 0) > 128:
            line.tell(guardian.SIGNALLED, b"")
        line.tell(guardian.EXITED, str(self.code).encode())

    def print(self, data: bytes) -> None:
        offset, self.printed = self.printed, self.printed + len(data)
        with suppress(OSError):
            fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
        if self.line is not None:
            self.line.tell(guardian.OUTPUT, data, offset)

    def kill(self) -> bool:
        """With all of the tree, by SIGKILL; whether there was anything."""
        there = self.process.alive or self.code is None
        self.process.kill()
        if self.code is None:
            self.code = 137
            self.trainer.end()
        if self.line is not None:
            self.line.end()
        return there

    async def _watch(self) -> None:
        while self.code is None:
            await asyncio.sleep(0.5)
            now = self.pod.mono()
            if self._stop_at is not None and now >= self._stop_at:
                self._stop_at = None
                self.stop(self.grace if self.orphan else min(self.grace, 3.0), "orphan")
            if self.deadline:
                left = self.deadline - guardian.EARLY - self.pod.boot()
                if left <= (self.notice if self._kill_at is None else self.grace):
                    self.deadline = 0.0
                    self.stop(max(0.0, left), "deadline")
            if self._kill_at is not None and now >= self._kill_at and self.code is None:
                self.exited(137)
        await asyncio.sleep(0.02)
        exit_word = self.log.with_suffix(".exit")
        with suppress(OSError):
            exit_word.write_text(f"{self.code}\n")
        if self.folder is not None and self.folder.exists():
            (self.folder / guardian.ENDED).write_text(f"{self.code} {self.printed} 0 {self.why}")
        await asyncio.sleep(0.01)
        if self.line is not None:
            self.line.tell(guardian.OUTPUT, b"", self.printed)
            self.line.tell(guardian.GONE, b"0")
        self.gone = True
        self.process.kill()


class SimTrainer:
    """Makes a step every second or so, saves now and then, and at SIGTERM once more."""

    def __init__(self, guard: SimGuardian, env: dict[str, str]) -> None:
        self.guard = guard
        self.world = guard.world
        self.plan = guard.world.plan
        self.process = guard.pod.new_process("trainer")
        self.run_id, self.epoch = env["RELAY_RUN_ID"], int(env["RELAY_EPOCH"])
        self.staging = Path(env["RELAY_CKPT_STAGING_ROOT"])
        self.resume = Path(env["RELAY_RESUME_FROM"]) if env["RELAY_RESUME_FROM"] else None
        self.uid = self.world.observer.trainer_starts(self)
        self.step = self.world.observer.resumed_step(self, self.resume)
        self._asked: asyncio.Future[None] = self.world.loop.create_future()
        self.process.spawn(self._train(), "trainer")

    def terminate(self) -> None:
        if not self._asked.done():
            self._asked.set_result(None)

    def end(self) -> None:
        self.process.kill()
        self.world.observer.trainer_ends(self)

    async def _train(self) -> None:
        plan, rng = self.plan, self.world.loop.rng
        saved = self.step
        while self.step < plan.total and not self._asked.done():
            await asyncio.wait({self._asked}, timeout=plan.step_seconds * rng.uniform(0.7, 1.3))
            if self._asked.done():
                break
            self.step += 1
            self.world.observer.made_step(self)
            self.guard.print(b"step %d/%d loss %.4f\n" % (self.step, plan.total, 10 / self.step))
            if self.step % plan.save_every == 0 or self.step == plan.total:
                saved = self.step if await self._save() else saved
        while self.step >= plan.total and saved < self.step and not self._asked.done():  # it was out of space
            await asyncio.wait({self._asked}, timeout=1.0)
            saved = self.step if await self._save() else saved
        if saved >= plan.total:
            self.guard.exited(0)
            return
        if plan.saves_at_stop and self.step > saved:
            await self._save()
        self.guard.exited(143)

    async def _save(self) -> bool:
        rng, folder = self.world.loop.rng, self.staging / f"step_{self.step}"
        content = {name: f"{state_at(self.run_id, self.step)} {name}\n".encode() * rng.randint(1, 20) for name in FILES}
        content["trainer.txt"] = f"{self.uid}\n".encode()
        try:
            for name, data in content.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                half = len(data) // 2
                for mode, part in (("wb", data[:half]), ("ab", data[half:])):
                    await asyncio.sleep(rng.expovariate(1 / self.plan.save_seconds))
                    self._write(path, part, mode)
            self.world.observer.saved(self, content)
            if self.plan.marks:
                await asyncio.sleep(rng.expovariate(1 / self.plan.save_seconds))
                self._write(folder / "COMPLETE", b"", "wb")
        except OSError as error:
            self.world.log(self.process, f"could not save: {error}")
            shutil.rmtree(folder, ignore_errors=True)
            return False
        return True

    def _write(self, path: Path, data: bytes, mode: Literal["wb", "ab"]) -> None:
        if self.world.faults.volume_full and data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        with path.open(mode) as file:
            file.write(data)
        at = int((EPOCH_OF_WALL + self.world.loop.now) * 1e9)
        os.utime(path, ns=(at, at))
