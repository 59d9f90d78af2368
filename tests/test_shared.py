"""A trainer that begins again and saves under the names it had used: what was published of it stays what it was."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from checkpoint_kit import Crash, FaultyDisk, take
from taking_kit import SETTLE, Taker, contents, in_memory
from test_taking import Rig
from writers import hf_trainer
from writers.kit import run

from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.shared import Shared


def linked(place: Path) -> Taker:
    """Steps 5 and 6, published by hard links; skipped where there are none."""
    taker = Taker(place)
    for step in (5, 6):
        run(hf_trainer.save(taker.out, step))
        taker.steps(SETTLE + 1)
    (path, _) = (sealed.path for sealed in published(taker.run)[0])
    if (path / "optimizer.pt").stat().st_nlink == 1:
        pytest.skip("this filesystem has reflinks")
    return taker


def shared(taker: Taker) -> Shared:
    looked = Shared(taker.run, 1)
    looked.begin()
    return looked


def rewrite(out: Path, step: int, things: int) -> None:
    """The trainer saves that step again, and gets that far."""
    again = hf_trainer.save(out, step, seed="another life")
    for _ in range(things):
        next(again)
    again.close()


def things_of(out: Path) -> int:
    return len(list(hf_trainer.save(out / "counted", 5)))


async def test_saved_again_under_its_name_costs_nothing_but_the_one_that_is_written_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    for step in (5, 6):
        run(hf_trainer.save(rig.out, step))
        assert await rig.look() == [step]
    before = {sealed.name: contents(sealed.path) for sealed in published(rig.run)[0]}
    again = hf_trainer.save(rig.out, 5, seed="another life")
    for _ in again:  # looked at after each thing that it does
        await rig.look(5.0)
        for sealed in published(rig.run)[0]:
            verify(sealed.path)
    whole = {sealed.name: contents(sealed.path) for sealed in published(rig.run)[0]}
    assert whole["step_00000006"] == before["step_00000006"]
    assert choose(rig.run) is not None
    run(hf_trainer.save(rig.out, 6, seed="another life"))
    assert await rig.look(5.0) == [6]
    whole = {sealed.name: contents(sealed.path) for sealed in published(rig.run)[0]}
    assert whole["step_00000006"] == before["step_00000006"], "the one before is what it was"
    assert whole["step_00000006.e00000001"] != before["step_00000006"]
    assert all(os.lstat(sealed.path / "optimizer.pt").st_nlink == 1 for sealed in published(rig.run)[0])
    assert len(rig.told.said("checkpoint.rewritten")) == 1
    (words,) = rig.told.said("checkpoint.rewritten")
    assert "step_00000005" in words


async def test_a_name_that_comes_again_is_enough_to_look_at_the_others(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    for step in (5, 6):
        run(hf_trainer.save(rig.out, step))
        await rig.look()
    run(hf_trainer.save(rig.out, 5, seed="another life"))
    await rig.look(0.1)  # long before it is time for that
    rewrite(rig.out, 6, 18)
    verify(rig.run.ckpt / "step_00000006")


@pytest.mark.parametrize("things", [12, 18, 24])
def test_wherever_it_died_over_it_the_others_are_whole(tmp_path: Path, things: int) -> None:
    taker = linked(tmp_path)
    looked = shared(taker)
    assert looked.written() == []
    rewrite(taker.out, 5, things)  # the first ones are what they were
    assert looked.written() == ["step_00000005"]
    (told,) = looked.part(looked.written())
    assert told.name == "step_00000005"
    assert told.aside is not None
    assert told.aside.parent == taker.run.bad
    assert [sealed.name for sealed in published(taker.run)[0]] == ["step_00000006"]
    rewrite(taker.out, 6, 12)
    verify(taker.run.ckpt / "step_00000006")
    assert not looked.any
    assert not (taker.staging / ".own").exists()


def test_one_that_was_only_touched_is_kept_with_bytes_of_its_own(tmp_path: Path) -> None:
    taker = linked(tmp_path)
    looked = shared(taker)
    os.utime(taker.out / "checkpoint-5" / "optimizer.pt")
    (told,) = looked.part(looked.written())
    assert told == type(told)("step_00000005", None)
    rewrite(taker.out, 5, 12)
    verify(taker.run.ckpt / "step_00000005")


def test_a_later_agent_sees_what_was_written_before_it_came(tmp_path: Path) -> None:
    taker = linked(tmp_path)
    rewrite(taker.out, 5, things_of(tmp_path))
    assert shared(taker).written() == ["step_00000005"]


def test_a_clock_that_is_ahead_makes_no_copies(tmp_path: Path) -> None:
    """Files that were moved in from elsewhere keep the time that they had there."""
    taker = linked(tmp_path)
    ahead = (taker.run.ckpt / "step_00000006" / "manifest.json").stat().st_mtime_ns + 10**10
    for step in (5, 6):
        os.utime(taker.out / f"checkpoint-{step}" / "optimizer.pt", ns=(ahead, ahead))
    looked = Shared(taker.run, 1)
    looked.begin()
    assert looked.written() == []
    assert looked.any
    just = Shared(taker.run, 1)
    just.add(taker.run.ckpt / "step_00000005")
    assert just.written() == []
    rewrite(taker.out, 5, 18)
    assert looked.written() == just.written() == ["step_00000005"]


def test_what_the_trainer_or_pruning_deleted_is_watched_no_longer(tmp_path: Path) -> None:
    taker = linked(tmp_path)
    looked = shared(taker)
    run(hf_trainer.rotate(taker.out, 5))
    for file in sorted((taker.run.ckpt / "step_00000006").iterdir()):
        file.unlink()
    assert looked.written() == []
    assert not looked.any


def test_without_room_they_stay_shared_and_whole(tmp_path: Path) -> None:
    taker = linked(tmp_path)
    disk = FaultyDisk(2, lambda: OSError(errno.ENOSPC, "full"))
    looked = Shared(taker.run, 1, disk=disk)
    looked.begin()
    os.utime(taker.out / "checkpoint-5" / "optimizer.pt")
    first = looked.written()
    with pytest.raises(OSError, match="full"):
        list(looked.part(first))
    for sealed in published(taker.run)[0]:
        verify(sealed.path)
    assert looked.written() == first, "it is tried again"
    assert [told.aside for told in looked.part(first)] == [None]


def test_the_power_may_go_at_any_moment(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    gone = ExitStack()
    request.addfinalizer(gone.close)
    for at in range(0, 200, 13):
        place = in_memory(tmp_path) / f"relay-{secrets.token_hex(4)}"
        place.mkdir()
        gone.callback(shutil.rmtree, place)
        taker = linked(place)
        disk = FaultyDisk(at)
        looked = Shared(taker.run, 1, disk=disk)
        looked.begin()
        rewrite(taker.out, 5, 12)
        try:
            list(looked.part(looked.written()))
        except Crash:
            verify(taker.run.ckpt / "step_00000006")
            take(taker.run, 2)
            resumed = choose(taker.run)
            assert resumed is not None
            assert resumed.name == "step_00000006"
        else:
            break
    assert 20 < at < 190, "it got through, in the end"
