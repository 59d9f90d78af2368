"""What a dead attempt saved and nobody published: into the line, beside it, or set aside; never lost, never kept for
ever."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_kit import FaultyDisk, mine, names, new_run, not_mine, put, stage, take, whole_names

from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.salvage import Salvage, recorded_end
from relay_agent.volume.volume import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path)
    put(run, 1, 10)
    return run


def ended(code: int) -> Callable[[RunFolder, int], int]:
    return lambda run, epoch: code


def after(run: RunFolder, epoch: int, **options: object) -> Salvage:
    """The next holder comes: it chooses, claims and looks through what lies there."""
    resume = choose(run)
    take(run, epoch, resume.name if resume else None)
    return Salvage(run, epoch, mine, **options).work()  # type: ignore[arg-type]


def step_after(run: RunFolder) -> int:
    resume = choose(run)
    assert resume is not None
    return resume.step


def aside(run: RunFolder) -> tuple[list[str], list[str]]:
    """What lies in `.bad` and in `.orphans`."""
    bad, orphans = (sorted(path.name for path in place.glob("*")) for place in (run.bad, run.orphans))
    return bad, orphans


def told(done: Salvage) -> list[str]:
    return [told.kind for told in done.told]


def test_what_was_whole_when_the_agent_died_is_published_and_resumed_from(run: RunFolder) -> None:
    for step in (20, 30):
        stage(run, 1, step)
    done = after(run, 2)
    assert [published.step for published in done.published] == [20, 30]
    assert told(done) == ["checkpoint.salvaged"] * 2
    assert whole_names(run) == ["step_00000010", "step_00000020", "step_00000030"]
    made = verify(run.ckpt / "step_00000030")
    assert (made.epoch, made.saved_by, made.base, made.maker) == (2, 1, "step_00000020", 1)
    assert verify(run.ckpt / "step_00000010").maker == 1
    assert step_after(run) == 30
    assert not run.staging(1).exists()


def test_what_follows_an_unhealthy_one_is_not_called_healthy(run: RunFolder) -> None:
    put(run, 1, 20, healthy=False)
    stage(run, 1, 30)
    after(run, 2)
    assert not verify(run.ckpt / "step_00000030").healthy


def test_a_first_checkpoint_that_was_never_published_is_no_cold_start(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    stage(run, 1, 5)
    assert [published.step for published in after(run, 2).published] == [5]
    assert step_after(run) == 5


def test_an_empty_file_is_what_a_power_cut_left_of_one(run: RunFolder) -> None:
    """Marked whole, for the names were on the disk before the bytes were."""
    staged = stage(run, 1, 20)
    (staged.path / "shard" / "0.bin").write_bytes(b"")
    done = after(run, 2)
    assert done.published == []
    assert told(done) == ["checkpoint.torn"]
    assert "shard/0.bin" in done.told[0].message
    assert aside(run) == (["e00000001.step_20"], [])
    assert step_after(run) == 10


def test_half_a_save_is_set_aside_and_said(run: RunFolder) -> None:
    stage(run, 1, 20, marker=False)
    (run.staging(1) / ".step_30.tmp").mkdir()
    done = after(run, 2)
    assert (done.published, told(done)) == ([], ["checkpoint.torn"])
    assert "step_20 of epoch 1" in done.told[0].message
    assert "its agent died" in done.told[0].message
    assert aside(run) == (["e00000001.step_20"], [])
    assert not run.staging(1).exists(), "what is no checkpoint is nobody's"
    assert step_after(run) == 10


@pytest.mark.parametrize(("code", "published"), [(0, [20]), (143, []), (137, [])])
def test_unmarked_is_whole_where_the_trainer_is_known_to_have_ended_well(
    run: RunFolder, code: int, published: list[int]
) -> None:
    stage(run, 1, 20, marker=False)
    assert [done.step for done in after(run, 2, ended=ended(code)).published] == published


def test_one_that_its_trainer_would_have_marked_is_torn_however_it_ended(run: RunFolder) -> None:
    stage(run, 1, 20, marker=False)
    assert told(after(run, 2, ended=ended(0), marks=True)) == ["checkpoint.torn"]
    stage(run, 2, 30)
    assert told(after(run, 3, mode="sft", trainer="loop")) == ["checkpoint.salvaged"]
    stage(run, 3, 40, marker=False)
    done = after(run, 4, ended=ended(0), mode="sft", trainer="loop")
    assert told(done) == ["checkpoint.torn"], "the one before it says that this trainer marks"


def test_how_a_trainer_ended_is_read_from_beside_its_log(run: RunFolder) -> None:
    assert recorded_end(run, 1) == 256
    record = run.logs / "e00000001.exit"
    for text, code in (("0\n", 0), ("143\n", 143), ("", 256), ("nonsense", 256), ("-1", 256), ("9" * 50, 256)):
        record.write_text(text)
        assert recorded_end(run, 1) == code
    record.unlink()
    record.symlink_to("/etc/hostname")
    assert recorded_end(run, 1) == 256


def test_who_went_on_past_the_point_the_line_resumed_from_is_beside_it(run: RunFolder) -> None:
    take(run, 2, "step_00000010")
    put(run, 2, 15)
    stage(run, 1, 40)
    done = after(run, 3)
    assert (done.published, told(done)) == ([], ["checkpoint.orphan"])
    assert "step_40 of epoch 1" in done.told[0].message
    assert aside(run) == ([], ["e00000001.step_40"])
    assert step_after(run) == 15
    assert names(run) == ["step_00000010", "step_00000015"]


def test_the_later_attempt_that_saved_something_settles_it(run: RunFolder) -> None:
    stage(run, 1, 40)
    take(run, 2, "step_00000010")
    stage(run, 2, 15)
    assert [published.step for published in after(run, 3).published] == [15]
    assert aside(run) == ([], ["e00000001.step_40"])


def test_a_later_attempt_that_saved_nothing_costs_nothing(run: RunFolder) -> None:
    stage(run, 1, 40)
    take(run, 2, "step_00000010")
    assert [published.step for published in after(run, 3).published] == [40]


def test_older_than_what_was_published_is_never_the_newest(run: RunFolder) -> None:
    stage(run, 1, 5)
    stage(run, 1, 10, "other")
    assert after(run, 2).published == []
    assert step_after(run) == 10
    assert aside(run) == ([], ["e00000001.step_10", "e00000001.step_5"])


@pytest.mark.parametrize("atomic", [True, False])
def test_another_of_the_newest_ones_step_is_beside_the_line(run: RunFolder, atomic: bool) -> None:
    """Where folders are copied, a crash can leave one of that step behind: the same as is published, and only that."""
    run = replace(run, atomic=atomic)
    take(run, 2, "step_00000010")
    stage(run, 2, 10, "other content")
    done = after(run, 3)
    assert (done.published, told(done)) == ([], ["checkpoint.orphan"])
    assert (names(run), step_after(run)) == (["step_00000010"], 10)
    if not atomic:
        stage(run, 3, 10)
        assert told(after(run, 4)) == []
        assert (names(run), aside(run)) == (["step_00000010"], ([], ["e00000002.step_10"]))


def test_a_run_that_begins_anew_takes_nothing(run: RunFolder) -> None:
    stage(run, 1, 20)
    take(run, 2)
    assert Salvage(run, 2, mine, accept=False).work().published == []
    assert aside(run) == ([], ["e00000001.step_20"])


def test_orphans_and_torn_saves_are_bounded_and_damaged_ones_are_not(run: RunFolder) -> None:
    (run.bad / "step_00000007").mkdir()
    for epoch in range(2, 7):
        take(run, epoch, "step_00000010")
        stage(run, epoch, 3)
        stage(run, epoch, 20, marker=False)
    after(run, 7)
    assert aside(run) == (
        ["e00000005.step_20", "e00000006.step_20", "step_00000007"],
        ["e00000005.step_3", "e00000006.step_3"],
    )
    assert list(run.trash.iterdir()) == []


def test_its_own_staging_and_later_ones_are_left_alone(run: RunFolder) -> None:
    take(run, 2, "step_00000010")
    stage(run, 2, 20)
    stage(run, 3, 30)
    assert Salvage(run, 2, mine).work().told == []
    assert run.staging(2).exists()
    assert run.staging(3).exists()


def test_a_staging_folder_that_is_a_link_leads_nowhere(run: RunFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "step_20").mkdir(parents=True)
    (elsewhere / "step_20" / "COMPLETE").touch()
    (elsewhere / "step_20" / "data").write_bytes(b"1")
    run.staging(1).rmdir()
    run.staging(1).symlink_to(elsewhere)
    done = after(run, 2)
    assert (done.published, told(done)) == ([], ["checkpoint.unseen"])
    assert (elsewhere / "step_20" / "data").exists()


def test_without_the_lease_nothing_is_published(run: RunFolder) -> None:
    stage(run, 1, 20)
    take(run, 2, "step_00000010")
    with pytest.raises(Fenced):
        Salvage(run, 2, not_mine).work()
    assert (run.staging(1) / "step_20").exists()


def test_a_full_volume_costs_no_checkpoint(run: RunFolder) -> None:
    """Room is made by pruning; where that is not enough it stays where it is for the next attempt."""
    for step in (11, 12, 13):
        put(run, 1, step)
    stage(run, 1, 20)
    take(run, 2, "step_00000013")

    class Full(FaultyDisk):
        left = 1

        def write(self, fd: int, data: bytes) -> None:
            if self.left:
                self.left -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(fd, data)

    done = Salvage(run, 2, mine, disk=Full()).work()
    assert [published.step for published in done.published] == [20]
    assert done.pruned == ["step_00000011", "step_00000010"]
    stage(run, 2, 30)
    take(run, 3, "step_00000020")
    full = Full()
    full.left = 1_000
    assert told(Salvage(run, 3, mine, disk=full).work()) == ["checkpoint.no_space"]
    assert [published.step for published in after(run, 4).published] == [30]
