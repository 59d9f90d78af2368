"""The publisher of an attempt: what it publishes, in which order, what it prunes and what it says."""

from __future__ import annotations

import asyncio
import errno
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import ManualClock, mine, names, new_run, stage, take, whole_names
from commander_kit import FakeClock
from preempt_kit import virtually

from relay_agent.checkpoints import begun
from relay_agent.checkpoints import publish as publish_module
from relay_agent.checkpoints import publisher as publisher_module
from relay_agent.checkpoints.exit_word import recorded_end
from relay_agent.checkpoints.heard import HEARD_WITHIN
from relay_agent.checkpoints.manifest import read
from relay_agent.checkpoints.missed import IF_WHOLE, Miss, Missed
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.publisher import CALM, LOOK_EVERY, RETRY_AFTER, ROOM_WITHIN, STILL_WITHIN, Publisher
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.staging import UNKNOWN_END, Staged
from relay_agent.checkpoints.tree import MAX_DEPTH, Torn, never
from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import Ended, judge
from relay_agent.output.progress import Progress
from relay_agent.volume.volume import RunFolder


@dataclass
class Told:
    """What a publisher recorded."""

    steps: list[int] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)

    def published(self, checkpoint: Published) -> None:
        self.steps.append(checkpoint.step)

    def pruned(self, name: str) -> None:
        self.gone.append(name)

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None:
        self.events.append((kind, message))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@dataclass
class Rig:
    run: RunFolder
    clock: ManualClock = field(default_factory=ManualClock)
    told: Told = field(default_factory=Told)

    def publisher(
        self,
        keep: int = 2,
        patient: Callable[[], bool] = mine,
        safe: Callable[[], bool] = mine,
        held: Callable[[], bool] = mine,
        marks: bool | None = None,
    ) -> Publisher:
        return Publisher(
            self.run, 1, "sft", "a trainer", 5.0, keep, self.clock, self.told,
            held=held, safe=safe, on_fenced=lambda: None, patient=patient, marks=marks,
        )  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


def refuses(monkeypatch: pytest.MonkeyPatch, step: int, error: Callable[[], Exception]) -> None:
    """Publishing that step fails, once."""
    failed: list[int] = []

    def publishes(run: RunFolder, staged: Staged, *rest: object, **options: object) -> Published:
        if staged.step == step and not failed:
            failed.append(step)
            raise error()
        return publish(run, staged, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(publisher_module, "publish", publishes)


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
    nested(rig.run, 6, 990.0, marker=False)
    await rig.publisher().finish(0, stopped=True)
    assert rig.told.steps == [5]
    second = rig.publisher()
    second.published_before()
    await second.finish(0)
    where = f"it lies in ckpt/.bad/e00000001.step_7{IF_WHOLE}"
    why = "an agent before this one set it aside"
    assert second.unpublished(7) == f"1 checkpoint could not be published: {why}; {where}"


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
    assert (missed.names, missed.only_room, missed.only_aside) == (
        ["step_7"], miss is Miss.NO_ROOM, miss is Miss.ASIDE
    )  # fmt: skip
    missed.published(20, 7)
    missed.published(1, 1)
    missed.add({"step_7": (20, 7), "step_4": (9, 4)}, "why", miss)
    assert missed.names == []


@pytest.mark.parametrize("miss", [Miss.NO_ROOM, Miss.REFUSED])
def test_a_last_save_with_the_times_of_what_it_was_copied_from_is_missed(miss: Miss) -> None:
    """`cp -a` of the best one, as the final one."""
    missed = Missed()
    missed.published(1000, 950)
    missed.add({"step_1000": (700, 1000)}, "why", miss)
    assert missed.names == ["step_1000"]
    missed.published(1001, 1001)
    assert missed.names == []


async def test_a_trainer_that_saves_nothing_misses_nothing(rig: Rig) -> None:
    publisher = rig.publisher()
    await publisher.look()
    await publisher.finish(0)
    assert publisher.unpublished(10) == ""


class Volume:
    """Full until `until` on the clock; each try of a publish takes `seconds`."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch, until: float, seconds: float = 10.0) -> None:
        self.tries = 0

        def publishes(run: RunFolder, staged: Staged, *rest: object, **options: object) -> Published:
            self.tries += 1
            rig.clock.now += seconds
            if rig.clock.now < until:
                raise OSError(errno.ENOSPC, "No space left on device")
            return publish(run, staged, *rest, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(publisher_module, "publish", publishes)
        monkeypatch.setattr(publisher_module, "ROOM_PAUSE", (0.0, 0.0))


async def test_the_last_checkpoint_waits_for_room_and_is_published_once_there_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Volume(rig, monkeypatch, rig.clock.now + 60)
    publisher = rig.publisher()
    stage(rig.run, 1, 5, marker=False)
    await publisher.finish(0)
    assert rig.told.steps == [5]
    assert (publisher.unpublished(5), publisher.kept) == ("", False)
    assert rig.told.kinds() == ["checkpoint.no_space"], "said once"
    assert capsys.readouterr().err.count("make room on it") == 1


async def test_what_got_no_room_in_time_is_kept_for_the_next_attempt(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = Volume(rig, monkeypatch, math.inf)
    publisher = rig.publisher()
    staged = stage(rig.run, 1, 5, marker=False)
    began = rig.clock.now
    await publisher.finish(0)
    assert ROOM_WITHIN <= rig.clock.now - began <= ROOM_WITHIN + 20
    assert volume.tries == 12 + 1
    assert publisher.kept
    assert publisher.unpublished(5) == "1 checkpoint could not be published: No space left on device"
    assert rig.told.kinds() == ["checkpoint.no_space", "checkpoint.left"]
    monkeypatch.undo()
    take(rig.run, 2)
    salvage = Salvage(rig.run, 2, mine, ended=lambda run, epoch: UNKNOWN_END).work()  # its word found no room either
    assert [done.step for done in salvage.published] == [5]
    assert not staged.path.exists()


async def test_a_pod_that_is_taken_away_does_not_wait_for_room(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = Volume(rig, monkeypatch, math.inf)
    publisher = rig.publisher(patient=lambda: False)
    stage(rig.run, 1, 5)
    await publisher.finish(0)
    assert (volume.tries, publisher.kept) == (1, True)


class Node:
    """Another one writes to that step's folder whenever it was read, until `until` on the clock."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch, step: int, until: float) -> None:
        self.tries = 0
        hashes = publish_module.hash_files

        def reads(root: int, files: Any, sync: Any = None, check: Any = never) -> dict[str, str]:
            found = hashes(root, files, sync, check)
            self.tries += 1
            rig.clock.now += 10
            if rig.clock.now < until:
                with (rig.run.staging(1) / f"step_{step}" / "weights.bin").open("ab") as shard:
                    shard.write(b"more")
            return found

        monkeypatch.setattr(publish_module, "hash_files", reads)
        monkeypatch.setattr(publisher_module, "STILL_PAUSE", 0.0)


async def test_the_last_checkpoint_waits_until_another_node_has_written_all_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Node(rig, monkeypatch, 5, rig.clock.now + 60)
    publisher = rig.publisher()
    stage(rig.run, 1, 5)
    await publisher.finish(0)
    assert (rig.told.steps, publisher.unpublished(5)) == ([5], "")
    (path,) = rig.run.ckpt.glob("step_*")
    assert (path / "weights.bin").read_bytes().endswith(b"more")
    assert capsys.readouterr().err.count("step_5 is written to still") == 1


@pytest.mark.parametrize("patient", [True, False])
async def test_one_that_is_written_to_all_the_time_is_missed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    node = Node(rig, monkeypatch, 5, math.inf)
    publisher = rig.publisher(patient=lambda: patient)
    stage(rig.run, 1, 5)
    began = rig.clock.now
    await publisher.finish(0)
    assert node.tries > 10 if patient else node.tries == 2
    assert rig.clock.now - began <= (STILL_WITHIN + 20 if patient else 20)
    assert publisher.unpublished(5) == "1 checkpoint could not be published: somebody wrote to it still"
    assert (publisher.kept, publisher.torn, rig.told.kinds()) == (False, False, ["checkpoint.left"])
    assert [path.name for path in rig.run.staging(1).glob("step_*")] == ["step_5"]


async def test_one_that_was_set_aside_beside_one_that_waits_is_not_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = rig.publisher()
    refuses(monkeypatch, 5, lambda: OSError(errno.EIO, "Input/output error"))
    stage(rig.run, 1, 5)
    await publisher.look()
    Volume(rig, monkeypatch, math.inf)
    stage(rig.run, 1, 6)
    await publisher.finish(0)
    assert not publisher.kept
    assert publisher.unpublished(6).startswith("2 checkpoints could not be published")


async def test_each_reason_is_told_with_those_it_is_of_and_a_full_volume_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Volume(rig, monkeypatch, math.inf)
    publisher = rig.publisher(patient=lambda: False)
    for step in (15, 20, 25, 30, 100):
        staged = stage(rig.run, 1, step)
        rig.clock.now += 60
        if step > 15:
            for file in filter(Path.is_file, staged.path.rglob("*")):
                file.write_bytes(b"")
    await publisher.finish(0)
    assert publisher.unpublished(100) == (
        "5 checkpoints could not be published: the volume is full: No space left on device (step_15);"
        " it holds no data (step_20, step_25, step_30 and 1 more)"
    )


@pytest.mark.parametrize(("kept", "outcome", "code"), [(True, "preempted", 74), (False, "failed", 1)])
def test_a_run_is_not_completed_before_its_newest_checkpoint_is_on_the_volume(
    kept: bool, outcome: str, code: int
) -> None:
    progress = Progress(0, 10)
    progress.see("step 10/10 loss 1", 1.0)
    verdict = judge(Ended(0, Stop(), progress, 5, "", "1 checkpoint could not be published: no room", kept))
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)
    assert "could not be published" in verdict.message


async def test_where_a_mark_is_demanded_that_is_why_one_without_it_is_not_published(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other of the run had one."""
    publisher = rig.publisher(marks=True)
    stage(rig.run, 1, 20, marker=False)
    for _ in rig.clock.watch(100):
        await publisher.look()
    words = "step_20 has no COMPLETE, which COMPLETE_MARKER=always wants: it is not published before it has"
    assert rig.told.events == [("checkpoint.unmarked", words)]
    assert words in capsys.readouterr().err
    await publisher.finish(0)
    assert rig.told.steps == []
    ((_, torn),) = rig.told.events[1:]
    assert torn.endswith("the trainer exited and had not written COMPLETE into it, which COMPLETE_MARKER=always wants")


async def test_what_a_trainer_of_this_run_marked_once_is_not_published_unmarked(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a later attempt; it is said once; and a trainer of another name is another one."""
    publisher = rig.publisher()
    stage(rig.run, 1, 1)
    await publisher.look()
    later = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    for _ in rig.clock.watch(100):
        await later.look()
    assert rig.told.steps == [1]
    assert rig.told.kinds() == ["checkpoint.unmarked"]
    assert capsys.readouterr().err.count("step_2 has no COMPLETE") == 1
    other = rig.publisher()
    other._trainer = "another trainer"
    for _ in rig.clock.watch(62):
        await other.look()
    assert rig.told.steps == [1, 2]


async def test_a_trainer_that_marks_none_is_known_in_the_next_attempt(rig: Rig) -> None:
    publisher = rig.publisher()
    for step in (1, 2):
        stage(rig.run, 1, step, marker=False)
        for _ in rig.clock.watch(6):
            await publisher.look()
    assert sorted(rig.told.steps) == [1, 2]
    later = rig.publisher()
    stage(rig.run, 1, 3, marker=False)
    for _ in rig.clock.watch(6):
        await later.look()
    assert rig.told.steps[-1] == 3


async def test_a_mark_of_ours_does_not_teach_the_next_attempt_that_the_trainer_marks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume was full to the end: the agent marks what is whole for who comes next. If that counted as the
    trainer's own, none of its later checkpoints, which have none, would be published while it lives."""
    monkeypatch.setattr(publisher_module, "ROOM_WITHIN", 0.0)
    refuses(monkeypatch, 1, lambda: OSError(errno.ENOSPC, "No space left on device"))
    publisher = rig.publisher()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0)
    assert publisher.kept
    take(rig.run, 2)
    (done,) = Salvage(rig.run, 2, mine).work().published
    assert read(done.path).manifest.marks is not True


async def test_of_a_trainer_that_was_asked_to_stop_and_exits_with_0_only_what_it_began_after_is_whole(rig: Rig) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 1, marker=False)
    await publisher.look()
    await publisher.trainer_stops()
    stage(rig.run, 1, 3, marker=False)
    await publisher.trainer_stops()  # asked again
    await publisher.finish(0)
    assert rig.told.steps == [3]
    assert (rig.run.bad / "e00000001.step_1").exists()


@pytest.mark.parametrize("how", ["later", "never", "no time"])
async def test_a_save_whose_last_lines_are_not_heard_waits_and_is_not_called_healthy(rig: Rig, how: str) -> None:
    publisher = rig.publisher(patient=lambda: how != "no time")
    answers = False

    async def catch_up() -> bool:
        return answers

    publisher.catch_up = catch_up
    stage(rig.run, 1, 1)
    await publisher.look()
    assert rig.told.steps == ([1] if how == "no time" else [])
    rig.clock.now += HEARD_WITHIN - 1
    await publisher.look()
    assert rig.told.steps == ([1] if how == "no time" else [])
    answers = how == "later"
    rig.clock.now += 1
    await publisher.look()
    assert rig.told.steps == [1]
    assert read(rig.run.ckpt / "step_00000001").manifest.healthy is (how == "later")


async def test_where_only_what_is_healthy_is_wanted_one_that_is_not_known_to_be_stays(rig: Rig) -> None:
    publisher = rig.publisher(patient=lambda: False)
    answers = False

    async def catch_up() -> bool:
        return answers

    publisher.catch_up, publisher.only_healthy = catch_up, True
    stage(rig.run, 1, 1)
    await publisher.look()
    assert rig.told.steps == []
    answers = True
    await publisher.look()
    assert rig.told.steps == [1]


async def test_an_exit_with_0_before_the_last_step_proves_no_save_of_before_it(rig: Rig) -> None:
    """Its launcher was told to stop by somebody else, say, and it ended in the middle of a save."""
    publisher = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    await publisher.finish(0, lambda step: step >= 100)
    assert rig.told.steps == []
    assert "exited with 0, but before its last step" in publisher.unpublished(2)
    assert (rig.run.bad / "e00000001.step_2").exists()


async def test_an_exit_with_0_after_a_save_of_the_last_step_is_its_end(rig: Rig) -> None:
    """Whatever it printed."""
    publisher = rig.publisher()
    stage(rig.run, 1, 50, marker=False)
    stage(rig.run, 1, 100, marker=False)
    await publisher.finish(0, lambda step: step >= 100)
    assert rig.told.steps == [100]


@pytest.mark.parametrize(
    ("stopped", "leftovers", "why"), [(True, 0, "as it was stopped"), (False, 1, "a process that it left behind")]
)
async def test_an_exit_with_0_of_one_that_was_stopped_somehow_proves_no_save(
    rig: Rig, stopped: bool, leftovers: int, why: str
) -> None:
    """By its guardian for want of an agent; or a process of it, which may have been saving."""
    publisher = rig.publisher()
    stage(rig.run, 1, 2, marker=False)
    await publisher.finish(0, stopped=stopped, leftovers=leftovers)
    assert rig.told.steps == []
    assert f"exited with 0, but {why}" in publisher.unpublished(2)
    assert (rig.run.bad / "e00000001.step_2").exists()


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


@pytest.mark.parametrize("marks", [None, False, True])
async def test_it_is_known_whether_a_save_is_to_keep_still(rig: Rig, marks: bool | None) -> None:
    publisher = rig.publisher(marks=marks)
    assert publisher.undecided, "nobody has looked yet"
    await publisher.look()
    assert not publisher.undecided
    stage(rig.run, 1, 1, marker=False)
    await publisher.look()
    assert publisher.undecided is not marks
    for _ in rig.clock.watch(5.0 if marks is False else 60.0):
        await publisher.look()
    await publisher.look()
    assert not publisher.undecided
    assert rig.told.steps == ([] if marks else [1])


async def test_what_began_after_the_stop_is_not_whole_where_processes_were_left(rig: Rig) -> None:
    publisher = rig.publisher()
    await publisher.trainer_stops()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0, stopped=True, leftovers=2)
    assert rig.told.steps == []


@pytest.mark.parametrize("word", ["0 order", "0 leftovers", "0 orphan", "0", "", None])
async def test_a_guardians_word_says_whether_it_was_asked(rig: Rig, word: str | None) -> None:
    """By an agent before this one, or by its guardian while there was none."""
    if word is not None:
        rig.run.log(1).with_suffix(".exit").write_text(f"{word}\n")
    publisher = rig.publisher()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0)
    by_itself = len((word or "").split()) < 2
    assert (rig.told.steps == [1]) is by_itself
    assert recorded_end(rig.run, 1) == (0 if word == "0" else UNKNOWN_END)


async def test_where_the_volume_does_not_answer_any_save_may_be_cut(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(root: Path) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(begun, "_listed", hangs)
    publisher = rig.publisher()
    await publisher.trainer_stops()
    stage(rig.run, 1, 1, marker=False)
    await publisher.finish(0)
    assert rig.told.steps == []
