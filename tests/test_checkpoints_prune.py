"""Pruning: the newest of the line stay, never fewer than two, and nothing that something rests on goes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from checkpoint_kit import FaultyDisk, names, new_run, not_mine, put, take, whole_names

from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.resume import choose
from relay_agent.volume.volume import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path)
    for step in range(1, 7):
        put(run, 1, step)
    return run


def steps(run: RunFolder) -> list[int]:
    return [int(name.removeprefix("step_").split(".")[0]) for name in names(run)]


@pytest.mark.parametrize(("keep", "left"), [(3, [4, 5, 6]), (2, [5, 6]), (1, [5, 6]), (0, [5, 6]), (-5, [5, 6])])
def test_the_newest_stay_and_never_fewer_than_two(run: RunFolder, keep: int, left: list[int]) -> None:
    removed = prune(run, keep)
    assert steps(run) == left
    assert removed == [f"step_{step:08d}" for step in range(left[0] - 1, 0, -1)]
    assert list(run.trash.iterdir()) == []
    assert prune(run, keep) == []


def test_a_step_with_one_digit_more_is_no_older_one(tmp_path: Path) -> None:
    """In the order of names `step_100000000` comes before `step_99999998`."""
    run = new_run(tmp_path)
    for step in (99_999_998, 99_999_999, 100_000_000, 100_000_001):
        put(run, 1, step)
    assert prune(run, 2) == ["step_99999999", "step_99999998"]
    resume = choose(run)
    assert resume is not None
    assert resume.step == 100_000_001


def test_more_to_keep_than_there_are(run: RunFolder) -> None:
    assert prune(run, 100) == []
    assert len(steps(run)) == 6


def test_newest_is_the_last_published(run: RunFolder) -> None:
    put(run, 1, 2, "rolled back")
    prune(run, 2)
    assert names(run) == ["step_00000002.e00000001", "step_00000006"]


def test_bases_of_claims_and_the_protected_are_spared(run: RunFolder) -> None:
    take(run, 2, "step_00000002")
    take(run, 3, "step_00000006")
    for step in (7, 8, 9):
        put(run, 3, step)
    prune(run, 2, {"step_00000004"})
    assert steps(run) == [2, 4, 6, 8, 9]


def test_the_last_ones_before_the_loss_was_nan_are_spared(run: RunFolder) -> None:
    for step in range(7, 15):
        put(run, 1, step, healthy=step < 8)
        prune(run, 2)
    assert names(run) == [f"step_{step:08d}" for step in (6, 7, 13, 14)]
    resume = choose(run)
    assert resume is not None
    assert (resume.step, resume.healthy, resume.last_healthy) == (14, False, "step_00000007")
    for step in (15, 16):
        put(run, 1, step)
        prune(run, 2)
    assert names(run) == ["step_00000015", "step_00000016"], "it has recovered"


def test_only_whole_ones_count(run: RunFolder) -> None:
    for step in (4, 5, 6):
        os.truncate(run.ckpt / f"step_0000000{step}" / "weights.bin", 1)
    prune(run, 2)
    assert steps(run) == [2, 3, 4, 5, 6], "the torn neither count nor go"
    resume = choose(run)
    assert resume is not None
    assert resume.step == 3


def test_a_stale_holder_removes_nothing_its_successor_needs(run: RunFolder) -> None:
    """Its own newest ones are off the line now, whatever it believes."""
    take(run, 2, "step_00000003")
    for step in (90, 91, 92):
        put(run, 1, step, "stale")
    prune(run, 2)
    assert {1, 2, 3} & set(steps(run)) == {2, 3}
    put(run, 2, 4, "new")
    prune(run, 2)
    assert whole_names(run) == ["step_00000003", "step_00000004", "step_00000092"]
    resume = choose(run)
    assert resume is not None
    assert (resume.name, resume.epoch) == ("step_00000004", 2)


def test_no_lease_no_pruning(run: RunFolder) -> None:
    assert prune(run, 2, still_mine=not_mine) == []
    assert len(steps(run)) == 6


def test_it_stops_where_the_lease_ends(run: RunFolder) -> None:
    answers = iter([True, False])
    assert prune(run, 2, still_mine=lambda: next(answers)) == ["step_00000004"]
    assert steps(run) == [1, 2, 3, 5, 6]


def test_what_cannot_be_deleted_now_is_deleted_next_time(run: RunFolder) -> None:
    counted = FaultyDisk()
    put(run, 1, 7)
    prune(run, 6, disk=counted)
    first_unlink = next(number for number, call in enumerate(counted.calls) if call.startswith("unlink"))
    put(run, 1, 8)
    busy = FaultyDisk(first_unlink, lambda: OSError(errno.EBUSY, "Device or resource busy"))
    assert prune(run, 6, disk=busy) == ["step_00000002"]
    assert [path.name for path in run.trash.iterdir()] == ["step_00000002"]
    assert prune(run, 6) == []
    assert list(run.trash.iterdir()) == []


def test_a_link_in_the_trash_is_not_followed(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (run.trash / "link").symlink_to(tmp_path / "precious")
    (run.trash / "folder").mkdir()
    (run.trash / "folder" / "link").symlink_to(tmp_path / "precious")
    prune(run, 3)
    assert list(run.trash.iterdir()) == []
    assert (tmp_path / "precious" / "file").exists()


def test_what_is_no_checkpoint_is_not_touched(run: RunFolder) -> None:
    (run.ckpt / "step_final").mkdir()
    (run.ckpt / "notes.txt").touch()
    (run.ckpt / "step_00000000").mkdir()
    prune(run, 2)
    assert {path.name for path in run.ckpt.iterdir()} >= {"step_final", "notes.txt", "step_00000000"}
