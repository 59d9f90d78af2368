"""The world ends before or after any single call: what is found afterwards is the old state or the new, and works."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_kit import RUN, Crash, FaultyDisk, ObjectDisk, names, new_run, put, stage, take, whole_names

from relay_agent.checkpoints.disk import SYSTEM, Disk
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.staging import Staged
from relay_agent.volume.volume import RunFolder, highest_claim, open_run, read_claim
from relaytui.wire.errors import RelayError


def mine() -> bool:
    return True


def worlds(
    template: RunFolder, tmp_path: Path, act: Callable[[RunFolder, Disk], object], make: Callable[[], BaseException]
) -> Iterator[tuple[RunFolder, FaultyDisk]]:
    """`act` in a fresh copy of the world for every call it makes, struck before, after, and halfway through a write.
    Of a crash, after one call is before the next; and before a flush is after it, for no power is cut here."""
    volume = template.root.parents[1]

    def fresh(number: int, way: str) -> RunFolder:
        copy = tmp_path / f"world-{number}-{way}"
        shutil.copytree(volume, copy, symlinks=True)
        return RunFolder(copy / "runs" / RUN, template.atomic)

    kind = FaultyDisk if template.atomic else ObjectDisk
    counted = kind()
    act(fresh(-1, "counted"), counted)
    assert len(counted.calls) > 5
    for number, call in enumerate(counted.calls):
        ways = {"before"} | ({"half"} if call == "write" else set())
        if make is Crash and number and is_flush(counted.calls[number - 1]):
            ways.discard("before")
        if number == len(counted.calls) - 1 or (make is not Crash and not is_flush(call)):
            ways.add("after")
        for way in sorted(ways):
            run = fresh(number, way)
            yield run, kind(number, make, after=way == "after", half=way == "half")
            shutil.rmtree(run.root.parents[1])


def is_flush(call: str) -> bool:
    return call.startswith("fsync ")


def goes_on(run: RunFolder) -> None:
    """The next holder claims, publishes, prunes and is resumed from."""
    open_run(run.root.parents[1], RUN)
    base = choose(run)
    assert base is not None
    assert base.bad == (), "a crash tears nothing that was published"
    epoch = highest_claim(run) + 1
    take(run, epoch, base.name)
    put(run, epoch, base.step + 100)
    prune(run, 2)
    resume = choose(run)
    assert resume is not None
    assert (resume.step, resume.epoch) == (base.step + 100, epoch)
    assert len(whole_names(run)) >= 2
    assert list(run.trash.iterdir()) == []


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: a thousand flushes take their time, and no power is cut here."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


@pytest.fixture(params=[True, False], ids=["rename", "manifest"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> RunFolder:
    """With two checkpoints, on a volume of either kind."""
    (tmp_path / "template").mkdir()
    run = replace(new_run(tmp_path / "template"), atomic=request.param)
    for step in (1, 2):
        put(run, 1, step)
    return run


def step_after(run: RunFolder) -> int:
    resume = choose(run)
    assert resume is not None
    assert (resume.path / "weights.bin").read_bytes().startswith(f"weights {resume.step} ".encode())
    return resume.step


def test_publish_crashes_anywhere(run: RunFolder, tmp_path: Path) -> None:
    stage(run, 1, 3)
    seen = set()
    for world, disk in worlds(run, tmp_path, publish_3, Crash):
        with pytest.raises(Crash):
            publish_3(world, disk)
        assert whole_names(world) == names(world)
        assert names(world)[:2] == ["step_00000001", "step_00000002"]
        seen.add(step_after(world))
        goes_on(world)
    assert seen == {2, 3}


def publish_3(run: RunFolder, disk: Disk) -> None:
    publish(run, Staged(3, run.staging(1) / "step_3"), 1, mine, disk=disk)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_publish_fails_anywhere(run: RunFolder, tmp_path: Path, code: int) -> None:
    """One call fails, once: nothing torn is published, and the trainer's next checkpoint is."""
    stage(run, 1, 3)
    for world, disk in worlds(run, tmp_path, publish_3, lambda: OSError(code, "refused")):
        try:
            publish_3(world, disk)
        except OSError as error:
            assert error.errno == code  # noqa: PT017 - some calls may fail without harm
        assert whole_names(world) == names(world)
        assert step_after(world) in (2, 3)
        put(world, 1, 4)
        assert step_after(world) == 4
        assert (world.ckpt / "latest").resolve().name == "step_00000004"


def test_dropping_a_second_copy_crashes_anywhere(run: RunFolder, tmp_path: Path) -> None:
    stage(run, 1, 2)

    def act(world: RunFolder, disk: Disk) -> None:
        publish(world, Staged(2, world.staging(1) / "step_2"), 1, mine, disk=disk)

    for world, disk in worlds(run, tmp_path, act, Crash):
        with pytest.raises(Crash):
            act(world, disk)
        assert names(world) == ["step_00000001", "step_00000002"]
        assert step_after(world) == 2
        goes_on(world)


def test_salvaging_what_a_dead_agent_left_crashes_anywhere(run: RunFolder, tmp_path: Path) -> None:
    """Whole ones are published sooner or later, each once; what is not whole or lies beside the line never is."""
    take(run, 2, "step_00000001")
    stage(run, 2, 3)
    stage(run, 2, 4)
    stage(run, 2, 5, marker=False)
    stage(run, 1, 9)
    take(run, 3, "step_00000002")

    def act(world: RunFolder, disk: Disk) -> None:
        Salvage(world, 3, mine, disk=disk).work()

    for world, disk in worlds(run, tmp_path, act, Crash):
        with pytest.raises(Crash):
            act(world, disk)
        assert whole_names(world) == names(world)
        base = choose(world)
        assert base is not None
        take(world, 4, base.name)
        Salvage(world, 4, mine).work()
        assert [name for name in names(world) if name > "step_00000002"] == ["step_00000003", "step_00000004"]
        assert step_after(world) == 4
        # Half of a folder that was on its way aside file by file is no orphan any more.
        aside = {path.name for place in (world.orphans, world.bad) for path in place.glob("*")}
        assert {"e00000001.step_9", "e00000002.step_5"} <= aside
        if run.atomic:
            assert [path.name for path in world.orphans.iterdir()] == ["e00000001.step_9"]
            assert [path.name for path in world.bad.iterdir()] == ["e00000002.step_5"]
        assert not any(world.staging(epoch).exists() for epoch in (1, 2))


def test_prune_crashes_anywhere(run: RunFolder, tmp_path: Path) -> None:
    for step in (3, 4):
        put(run, 1, step)

    def act(world: RunFolder, disk: Disk) -> None:
        prune(world, 2, disk=disk)

    seen = set()
    for world, disk in worlds(run, tmp_path, act, Crash):
        with pytest.raises(Crash):
            act(world, disk)
        assert whole_names(world) == names(world)
        assert names(world)[-2:] == ["step_00000003", "step_00000004"]
        seen.add(len(names(world)))
        assert step_after(world) == 4
        goes_on(world)
    assert seen == {4, 3, 2}


def test_setting_a_torn_one_aside_crashes_anywhere(run: RunFolder, tmp_path: Path) -> None:
    (put(run, 1, 3).path / "weights.bin").write_bytes(b"torn")

    def act(world: RunFolder, disk: Disk) -> None:
        choose(world, disk=disk)
        choose(world, disk=disk)
        take(world, 2, "step_00000002", disk)

    for world, disk in worlds(run, tmp_path, act, Crash):
        with pytest.raises(Crash):
            act(world, disk)
        assert step_after(world) == 2
        goes_on(world)


def test_claiming_crashes_anywhere(run: RunFolder, tmp_path: Path) -> None:
    def act(world: RunFolder, disk: Disk) -> None:
        take(world, 2, "step_00000001", disk)

    for world, disk in worlds(run, tmp_path, act, Crash):
        with pytest.raises(Crash):
            act(world, disk)
        held = highest_claim(world)
        if held == 2:
            claimed = read_claim(world, 2)
            if claimed is None:
                assert not run.atomic, "its content comes after its name only where there are no hard links"
                assert step_after(world) == 2
            else:
                assert claimed.base == "step_00000001"
                assert step_after(world) == 1
            with pytest.raises(RelayError):
                take(world, 2, "step_00000002")
        else:
            assert held == 1
            assert step_after(world) == 2
            take(world, 2, "step_00000002")
        goes_on(world)


def test_making_the_run_crashes_anywhere(tmp_path: Path) -> None:
    counted = FaultyDisk()
    (tmp_path / "counted").mkdir()
    open_run(tmp_path / "counted", RUN, counted)
    for number in range(len(counted.calls)):
        volume = tmp_path / f"volume-{number}"
        volume.mkdir()
        with pytest.raises(Crash):
            open_run(volume, RUN, FaultyDisk(number))
        run = open_run(volume, RUN)
        assert choose(run) is None
        take(run, 1)
        put(run, 1, 1, disk=SYSTEM)
        assert step_after(run) == 1
