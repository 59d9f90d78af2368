"""The publisher of an attempt: what it publishes, in which order, what it prunes and what it says."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import mine, names, new_run, stage, take, whole_names
from commander_kit import FakeClock
from preempt_kit import virtually
from publisher_kit import Rig, refuses

from relay_agent.checkpoints.manifest import read
from relay_agent.checkpoints.missed import IF_WHOLE, Miss, Missed
from relay_agent.checkpoints.publisher import CALM, LOOK_EVERY, RETRY_AFTER, Publisher
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.tree import MAX_DEPTH, Torn
from relay_agent.volume.volume import RunFolder


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


async def test_what_had_to_wait_is_not_published_as_the_newest(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(monkeypatch, 1, lambda: OSError(errno.ENOSPC, "No space left on device"))
    publisher = rig.publisher()
    stage(rig.run, 1, 1)
    stage(rig.run, 1, 2)
    await publisher.look()
    assert rig.told.steps == [2]
    rig.clock.now += RETRY_AFTER
    await publisher.look()
    assert rig.told.steps == [2]
    resume = choose(rig.run)
    assert resume is not None
    assert resume.step == 2
    assert names(rig.run) == ["step_00000002"]
    assert rig.told.kinds() == ["checkpoint.no_space", "checkpoint.orphan"]
    assert [path.name for path in rig.run.orphans.iterdir()] == ["e00000001.step_1"]
    assert publisher.unpublished(2) == ""


async def test_cut_off_it_publishes_in_its_line_and_moves_no_pointer_and_prunes_nothing(rig: Rig) -> None:
    safe = True
    publisher = rig.publisher(safe=lambda: safe)
    for step in (1, 2):
        stage(rig.run, 1, step)
        await publisher.look()
    safe = False
    for step in (3, 4):
        stage(rig.run, 1, step)
        await publisher.look()
    assert (rig.told.steps, rig.told.gone) == ([1, 2, 3, 4], [])
    assert (rig.run.ckpt / "latest").readlink().name == "step_00000002"
    assert b"step_00000002" in (rig.run.ckpt / "latest.json").read_bytes()
    safe = True  # it was the newest epoch still, and was revived
    stage(rig.run, 1, 5)
    await publisher.look()
    assert rig.told.gone == ["step_00000003", "step_00000002", "step_00000001"]
    assert (rig.run.ckpt / "latest").readlink().name == "step_00000005"


async def test_where_folders_are_not_renamed_in_one_step_checkpoints_are_copied_and_pruned_in_place(rig: Rig) -> None:
    rig.run = replace(rig.run, atomic=False)
    publisher = rig.publisher()
    for step in (1, 2, 3, 4):
        staged = stage(rig.run, 1, step)
        saved = (staged.path / "weights.bin").read_bytes()
        await publisher.look()
        assert not staged.path.exists()
        assert (rig.run.ckpt / f"step_{step:08d}" / "weights.bin").read_bytes() == saved
    assert rig.told.steps == [1, 2, 3, 4]
    assert rig.told.gone == ["step_00000001", "step_00000002"]
    assert whole_names(rig.run) == ["step_00000003", "step_00000004"]
    assert [path.name for path in (rig.run.ckpt / "step_00000004").glob(".*")] == []
    assert list(rig.run.trash.iterdir()) == []
    assert rig.told.events == []


def spoil(run: RunFolder, step: int, how: str) -> None:
    """What a trainer marks whole and nobody can take for a checkpoint."""
    path = stage(run, 1, step).path
    if how == "deep":
        (path / "/".join(["d"] * (MAX_DEPTH + 1))).mkdir(parents=True)
        return
    for file in (path / "weights.bin", path / "shard" / "0.bin"):
        file.unlink()
    if how == "symlink":
        (path / "weights.bin").symlink_to("/etc/hostname")
    elif how == "fifo":
        os.mkfifo(path / "weights.bin")


@pytest.mark.parametrize("how", ["symlink", "fifo", "empty", "deep"])
async def test_a_run_whose_last_checkpoint_was_set_aside_is_not_whole(rig: Rig, how: str) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 5)
    await publisher.look()
    spoil(rig.run, 10, how)
    await publisher.look()
    await publisher.finish(0)
    assert rig.told.steps == [5]
    assert rig.told.kinds() == ["checkpoint.torn"]
    assert publisher.unpublished(10).startswith("1 checkpoint could not be published: ")


async def test_a_volume_that_goes_while_a_checkpoint_is_published_is_said_to_be_gone(rig: Rig) -> None:
    def goes() -> bool:
        rig.run.root.rename(rig.run.root.with_name("away"))
        return True

    publisher = rig.publisher(held=goes)
    stage(rig.run, 1, 1)
    await publisher.look()
    assert rig.told.kinds() == ["volume.lost"]
    await publisher.finish(0)
    assert publisher.unpublished(1) == f"1 checkpoint could not be published: {rig.run.root} is gone"


async def test_a_volume_that_goes_and_comes_back_is_told_each_time_on_the_pod_too(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher = rig.publisher()
    away = rig.run.root.with_name("away")
    for _ in range(2):
        rig.run.root.rename(away)
        await publisher.look()
        await publisher.look()
        away.rename(rig.run.root)
        await publisher.look()
        await publisher.look()
    lost = f"{rig.run.root} is gone; what is saved now is not published until it is back"
    back = f"the volume is back ({rig.run.root} was gone); what is saved is published again"
    assert rig.told.events == [("volume.lost", lost), ("volume.back", back)] * 2
    said = capsys.readouterr().err
    assert said.count("the volume is lost: ") == 2
    assert said.count(back) == 2


async def test_what_is_saved_whole_after_a_torn_one_makes_up_for_it(rig: Rig) -> None:
    publisher = rig.publisher()
    spoil(rig.run, 5, "fifo")
    await publisher.look()
    stage(rig.run, 1, 10)
    await publisher.look()
    await publisher.finish(0)
    assert rig.told.steps == [10]
    assert rig.told.kinds() == ["checkpoint.torn"]
    assert publisher.unpublished(10) == ""


async def test_a_counter_that_went_back_hides_no_torn_checkpoint(rig: Rig) -> None:
    """The order of saving counts, not the step."""
    publisher = rig.publisher()
    stage(rig.run, 1, 10)
    await publisher.look()
    spoil(rig.run, 8, "symlink")
    await publisher.finish(0)
    assert publisher.unpublished(8).startswith("1 checkpoint could not be published: ")


async def test_one_found_torn_while_it_is_published_counts_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(monkeypatch, 10, lambda: Torn("a file of it went"))
    publisher = rig.publisher()
    stage(rig.run, 1, 10)
    await publisher.finish(0)
    assert rig.told.kinds() == ["checkpoint.torn"]
    words = f"1 checkpoint could not be published: a file of it went; it lies in ckpt/.bad/e00000001.step_10{IF_WHOLE}"
    assert publisher.unpublished(10) == words


async def test_of_several_that_are_torn_the_newest_is_named(rig: Rig) -> None:
    publisher = rig.publisher()
    for step in (8, 9, 10):  # by their names the last one is 9
        stage(rig.run, 1, step, marker=False)
    await publisher.look()
    await publisher.finish(143)
    words = publisher.unpublished(10)
    assert words.startswith("3 checkpoints could not be published: ")
    assert words.endswith(f"; the newest of them lies in ckpt/.bad/e00000001.step_10{IF_WHOLE}")


async def test_what_is_said_to_be_whole_after_all_is_put_back_for_the_next_attempt(rig: Rig) -> None:
    """As docs/agent.md has it."""
    publisher = rig.publisher()
    stage(rig.run, 1, 5)
    stage(rig.run, 1, 10, marker=False)
    await publisher.look()
    await publisher.finish(143)
    back = rig.run.staging(1) / "step_10"
    (rig.run.bad / "e00000001.step_10").rename(back)
    (back / "COMPLETE").touch()
    take(rig.run, 2, "step_00000005")
    (done,) = Salvage(rig.run, 2, mine).work().published
    assert (done.name, read(done.path).manifest.saved_by) == ("step_00000010", 1)
    resume = choose(rig.run)
    assert resume is not None
    assert resume.step == 10


async def test_what_an_agent_before_published_makes_up_for_what_was_torn_before_that(rig: Rig) -> None:
    spoil(rig.run, 5, "fifo")
    first = rig.publisher()
    stage(rig.run, 1, 10)
    await first.look()
    second = rig.publisher()
    second.published_before()
    await second.finish(0)
    assert rig.told.kinds() == ["checkpoint.torn"]
    assert second.unpublished(10) == ""


def nested(run: RunFolder, step: int, at: float, *, marker: bool) -> None:
    """All that is saved lies in folders below, as accelerate, DCP and orbax do it."""
    path = stage(run, 1, step, marker=False).path
    (path / "weights.bin").unlink()
    for each in (path / "shard" / "0.bin", path / "shard", path):
        os.utime(each, (at, at))
    if marker:
        (path / "COMPLETE").touch()
        os.utime(path / "COMPLETE", (at, at))


@pytest.mark.parametrize("atomic", [True, False])
async def test_what_is_torn_and_was_saved_last_is_missed_by_who_takes_over(rig: Rig, atomic: bool) -> None:
    rig.run = replace(rig.run, atomic=atomic)
    nested(rig.run, 5, 1_000.0, marker=True)
    nested(rig.run, 7, 1_010.0, marker=False)
    nested(rig.run, 4, 990.0, marker=False)
    await rig.publisher().finish(0, stopped=True)
    assert rig.told.steps == [5]
    second = rig.publisher()
    second.published_before()
    await second.finish(0)
    where = f"it lies in ckpt/.bad/e00000001.step_7{IF_WHOLE}"
    why = "an agent before this one set it aside"
    assert second.unpublished(7) == f"1 checkpoint could not be published: {why}; {where}"


async def test_a_torn_last_save_is_missed_though_the_clock_was_set_back(rig: Rig) -> None:
    nested(rig.run, 5, 5_000.0, marker=True)
    nested(rig.run, 6, 900.0, marker=False)
    publisher = rig.publisher()
    await publisher.finish(0)
    assert rig.told.steps == [5]
    assert publisher.torn
    assert publisher.unpublished(6).endswith(f"; it lies in ckpt/.bad/e00000001.step_6{IF_WHOLE}")


async def test_an_older_save_that_comes_later_makes_up_for_no_newer_one(rig: Rig) -> None:
    """It had waited for room when the agent died that set the newer one aside."""
    nested(rig.run, 7, 1_010.0, marker=False)
    await rig.publisher().finish(143)
    nested(rig.run, 5, 1_000.0, marker=True)
    second = rig.publisher()
    assert second.published_before() == []
    await second.finish(0)
    assert rig.told.steps == [5]
    assert second.unpublished(7).endswith(f"; it lies in ckpt/.bad/e00000001.step_7{IF_WHOLE}")


@pytest.mark.parametrize("miss", list(Miss))
def test_only_what_was_saved_later_makes_up_for_what_is_missed(miss: Miss) -> None:
    missed = Missed()
    missed.add({"step_7": (20, 7), "step_4": (9, 4)}, "why", miss)
    missed.published(10, 5)
    assert (missed.names, missed.only_room, missed.only_waits, missed.only_aside) == (
        ["step_7"], miss is Miss.NO_ROOM, miss in (Miss.NO_ROOM, Miss.HELD), miss is Miss.ASIDE
    )  # fmt: skip
    missed.published(20, 7)
    missed.published(1, 1)
    missed.add({"step_7": (20, 7), "step_4": (9, 4)}, "why", miss)
    assert missed.names == []


@pytest.mark.parametrize("miss", list(Miss))
def test_a_last_save_with_the_times_of_what_it_was_copied_from_is_missed(miss: Miss) -> None:
    """`cp -a` of the best one, as the final one."""
    missed = Missed()
    missed.published(1000, 950)
    if miss is Miss.ASIDE:
        missed.add_aside("step_1000", "why", (700, 1000), "")
    else:
        missed.add({"step_1000": (700, 1000)}, "why", miss)
    assert missed.names == ["step_1000"]
    missed.published(1001, 1001)
    assert missed.names == []


def test_what_was_set_aside_is_made_up_for_by_what_is_saved_later_whatever_its_step() -> None:
    """A second stage counts anew: its run failed for a torn save of the first."""
    missed = Missed()
    missed.add_aside("step_1000", "why", (10, 1000), "")
    missed.published(20, 100)
    assert missed.names == []
    missed.add_aside("step_900", "an agent before this one set it aside", (11, 900), "", before=True)
    assert missed.names == []


async def test_who_is_replaced_while_nothing_is_saved_hears_of_it(rig: Rig) -> None:
    """The next holder's salvage clears the staging folder, and the volume is as it was."""
    fenced: list[bool] = []
    publisher = Publisher(
        rig.run, 1, "sft", "a trainer", 5.0, 2, rig.clock, rig.told, held=mine, safe=mine,
        on_fenced=lambda: fenced.append(True),
    )  # fmt: skip
    await publisher.look()
    take(rig.run, 2)
    Salvage(rig.run, 2, mine).work()
    await publisher.look()
    assert fenced


async def test_a_trainer_that_saves_nothing_misses_nothing(rig: Rig) -> None:
    publisher = rig.publisher()
    await publisher.look()
    await publisher.finish(0)
    assert publisher.unpublished(10) == ""


class AtOnce(ThreadPoolExecutor):
    """Its work takes no time: that is moved by hand."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done = Future[Any]()
        done.set_result(work(*args, **named))
        return done


def test_looks_are_rarer_while_nothing_is_saved_and_come_at_once_when_a_save_is_asked_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    publisher = Publisher(
        rig.run, 1, "sft", "a trainer", 5.0, 2, clock, rig.told, held=mine, safe=mine, on_fenced=lambda: None
    )
    look, looks = publisher.look, list[float]()

    async def noted() -> None:
        looks.append(clock.boot())
        await look()

    monkeypatch.setattr(publisher, "look", noted)

    async def within(seconds: float) -> int:
        before = len(looks)
        await asyncio.sleep(seconds)
        return len(looks) - before

    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(AtOnce())
        running = asyncio.create_task(publisher.run())
        await asyncio.sleep(0.25)
        calm, often = round(8 / LOOK_EVERY / CALM), round(8 / LOOK_EVERY)
        assert await within(8) == often, "a short run saves soon"
        assert await within(8) < often
        assert await within(8) == calm
        stage(rig.run, 1, 1)
        assert await within(LOOK_EVERY * CALM) == 1
        assert rig.told.steps == [1]
        assert await within(8) == often
        assert await within(8) < often
        assert await within(8) == calm
        asked = clock.boot()
        await publisher.asked_to_save()
        assert await within(8) >= often
        assert asked in looks
        publisher.close()
        await running

    virtually(clock, work)
