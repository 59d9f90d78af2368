"""An agent that looks into its trainer's folder, takes what is whole and publishes it; and trainers that die."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from checkpoint_kit import ManualClock, mine, new_run
from writers.kit import Steps, run

from relay_agent.checkpoints import adapters
from relay_agent.checkpoints.adapters.base import Adapter
from relay_agent.checkpoints.disk import SYSTEM, Disk
from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.output_watch import HEARD, SEEN, OutputWatch
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.staging import StagingWatch
from relay_agent.checkpoints.take import Taken
from relay_agent.checkpoints.tree import Torn
from relay_agent.volume.volume import RunFolder

SETTLE = 5.0


class Taker:
    """Epoch 1 of a run, `out` its trainer's folder. Nothing in that folder may ever change by what is done here."""

    def __init__(
        self, place: Path, *, kinds: tuple[Adapter, ...] = adapters.KINDS, atomic: bool = True, disk: Disk = SYSTEM
    ) -> None:
        place.mkdir(exist_ok=True)
        self.run: RunFolder = replace(new_run(place), atomic=atomic)
        self.out = self.run.output(1)
        self.clock = ManualClock()
        self.disk = disk
        self.kinds = kinds
        self.staging = self.run.staging(1)
        self.begin()

    def begin(self) -> None:
        """As an agent does, at first and after another one of the same attempt."""
        self.watch = OutputWatch(
            self.out,
            self.staging,
            SETTLE,
            self.clock,
            kinds=self.kinds,
            atomic=self.run.atomic,
            disk=self.disk,
            step_now=lambda: 77,
        )
        self.before = self.watch.begin()

    def look(self, seconds: float = 0.0, exited: int | None = None) -> list[Taken]:
        """Time passes with looks, then one: what was taken. What turned out to be torn, or changed, is not."""
        taken = [each for _ in self.clock.watch(seconds) for each in self.next()]
        return taken + self.next(exited=exited)

    def next(self, seconds: float = 0.0, exited: int | None = None) -> list[Taken]:
        """The next look comes so much later only."""
        self.clock.now += seconds
        taken = []
        for ready in self.watch.scan(exited):
            try:
                taken.append(self.watch.take(ready))
            except Torn:
                continue
        return taken

    def publish(self) -> list[Published]:
        """What waits in the staging folder."""
        staging = StagingWatch(self.staging, SETTLE, self.clock, marks=None)
        found = staging.scan()
        assert staging.marks is None, "what an agent took says nothing of its trainer"
        return [publish(self.run, staged, 1, mine) for staged in found]

    def steps(self, seconds: float = 0.0, exited: int | None = None) -> list[int]:
        """Looks, takes, publishes: the steps that came."""
        self.look(seconds, exited)
        return [done.step for done in self.publish()]

    def adapters(self) -> set[str]:
        return {sealed.manifest.adapter for sealed in published(self.run)[0]}


def contents(path: Path, ignore: Iterable[str] = ("manifest.json",)) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ignore
    }


def state(path: Path) -> dict[str, tuple[int, int, int]]:
    """Of all that lies below, what shows whether it was written to."""
    found = {str(each.relative_to(path)): each.lstat() for each in sorted(path.rglob("*"))}
    return {name: (info.st_ino, info.st_size, info.st_mtime_ns) for name, info in found.items()}


def never_torn(
    place: Path,
    save: Callable[[Path, int], Steps],
    whole: Callable[[Path, int], dict[str, bytes]],
    steps: tuple[int, int] = (1, 2),
    *,
    kinds: tuple[Adapter, ...] = adapters.KINDS,
    after: Callable[[Path, int], Steps] | None = None,
) -> set[int]:
    """A trainer saves twice. An agent looks after every single thing that it did; and in as many other worlds it dies
    after one of them, and an agent looks only then. What was published is, byte for byte, what `whole` says that a save
    looks like in the end, and the trainer's folder is as the trainer left it. `after`: what it does then, such as
    deleting the first. The steps that were published, over all worlds."""
    first, second = steps
    reference = place / "reference"
    reference.mkdir()
    list(save(reference, first))
    wanted = {first: whole(reference, first)}
    list(save(reference, second))
    wanted[second] = whole(reference, second)

    def life(out: Path) -> Steps:
        yield from save(out, second)
        yield from after(out, first) if after else ()

    def is_sound(taker: Taker) -> None:
        for sealed in published(taker.run)[0]:
            verify(sealed.path)
            assert contents(sealed.path) == wanted[sealed.manifest.step], sealed.name
        assert [path.name for path in taker.staging.iterdir() if path.name not in (SEEN, HEARD)] == []

    taker = Taker(place / "watched", kinds=kinds)
    list(save(taker.out, first))
    taker.steps()
    assert taker.steps(SETTLE + 1) or published(taker.run)[0]
    seen = {first}
    count = 0
    for count, done in enumerate(life(taker.out), 1):  # noqa: B007
        left = state(taker.out)
        seen.update(taker.steps(0.5))
        assert state(taker.out) == left, done
        is_sound(taker)
    for died in range(count + 1):
        taker = Taker(place / "world", kinds=kinds)
        list(save(taker.out, first))
        doing = life(taker.out)
        for _ in range(died):
            next(doing)
        doing.close()
        seen.update(taker.steps(0.5, -9))
        is_sound(taker)
        shutil.rmtree(taker.run.root.parents[1])
    return seen


def in_memory(tmp_path: Path) -> Path:
    """Where flushes cost nothing, if that can be had."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else tmp_path


def taken(place: Path, *saves: Steps | Callable[[Path], Steps], kinds: tuple[str, ...] = ()) -> Taker:
    """An agent that looked after each of these saves until nothing more came."""
    taker = Taker(place, kinds=tuple(adapters.BY_NAME[name] for name in kinds) or adapters.KINDS)
    for save in saves:
        run(save(taker.out) if callable(save) else save)
        taker.steps()
        taker.steps(SETTLE + 1)
    return taker


def steps_of(taker: Taker) -> dict[int, str]:
    """What was published, in its order: the step, and of which kind it was found to be."""
    found = sorted(published(taker.run)[0], key=lambda sealed: sealed.manifest.seq)
    return {sealed.manifest.step: sealed.manifest.adapter for sealed in found}


def aged(out: Path, seconds: int = 1) -> None:
    """All of it was written that much earlier: the clock of a filesystem is coarse."""
    for path in (out, *out.rglob("*")):
        then = path.stat().st_mtime_ns - seconds * 10**9
        os.utime(path, ns=(then, then))
