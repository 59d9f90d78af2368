"""Going back to a healthy checkpoint: the notes on the volume, and what the next attempt makes of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_kit import FaultyDisk, names, new_run, put, take

from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.rollback import Rollback, count, note, notes, spoilt_last, target
from relay_agent.volume.volume import RunFolder, claimed_epochs


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Saved at 10, 20 and 30 while all was well, at 40 and 50 while it was not; the loss went bad at 35."""
    run = new_run(tmp_path)
    for step in (10, 20, 30):
        put(run, 1, step)
    for step in (40, 50):
        put(run, 1, step, healthy=False)
    return run


def chosen(run: RunFolder) -> str | None:
    resume = choose(run)
    return resume.name if resume else None


def test_a_run_goes_back_to_before_its_loss_went_bad_whoever_takes_it_up(run: RunFolder) -> None:
    assert chosen(run) == "step_00000050", "nobody said anything yet"
    assert target(run, 1, 35) == "step_00000030"
    note(run, Rollback(1, 35, "nan", 1.7e9))
    assert spoilt_last(run)
    assert chosen(run) == "step_00000030"
    take(run, 2, "step_00000030")
    assert not spoilt_last(run), "the next one is judged by itself"
    put(run, 2, 40)
    assert chosen(run) == "step_00000040.e00000002"
    prune(run, 2)
    assert "step_00000050" in names(run), "what it left lies beside the line, the newest of it kept"


def test_what_was_saved_as_well_and_was_not_is_passed_over_by_its_step(tmp_path: Path) -> None:
    """It was published before anybody knew."""
    run = new_run(tmp_path)
    for step in (10, 20, 30):
        put(run, 1, step)
    note(run, Rollback(1, 25, "diverging", 1.7e9))
    assert chosen(run) == "step_00000020"


def test_one_that_never_had_a_number_spoils_what_it_resumed_from(run: RunFolder) -> None:
    note(run, Rollback(1, 35, "nan", 1.7e9))
    take(run, 2, "step_00000030")
    assert target(run, 2, 31, "step_00000030") == "step_00000020"
    note(run, Rollback(2, 31, "nan", 1.7e9, "step_00000030"))
    assert chosen(run) == "step_00000020"


def test_how_often_it_went_back_is_known_to_every_agent(run: RunFolder) -> None:
    note(run, Rollback(1, 35, "nan", 1.7e9))
    note(run, Rollback(1, 45, "nan", 1.7e9))
    assert notes(run)[1].step == 35, "the first of an epoch stays"
    take(run, 2, "step_00000030")
    note(run, Rollback(2, 36, "nan", 1.7e9))
    take(run, 3, "step_00000030")
    note(run, Rollback(3, 36, "nan", 1.7e9, counts=False))
    assert count(notes(run)) == 2, "the third one ended the run"
    assert claimed_epochs(run) == [1, 2, 3], "and they are no claims"


def test_nothing_to_go_back_to(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert target(run, 1, 5) is None
    put(run, 1, 10, healthy=False)
    assert target(run, 1, 5) is None
    assert not spoilt_last(run)


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_damaged_target_is_passed_over_for_the_one_before(run: RunFolder, epoch: int) -> None:
    note(run, Rollback(1, 35, "nan", 1.7e9))
    if epoch == 2:
        take(run, 2, "step_00000030")
    (run.ckpt / "step_00000030" / "weights.bin").write_bytes(b"")
    assert chosen(run) == "step_00000020"


def test_when_all_is_damaged_what_lies_beyond_is_still_not_used(run: RunFolder) -> None:
    note(run, Rollback(1, 35, "nan", 1.7e9))
    for step in (10, 20, 30):
        (run.ckpt / f"step_{step:08d}" / "weights.bin").write_bytes(b"")
    assert chosen(run) is None
    take(run, 2)
    assert chosen(run) is None, "not beside the line either"


@pytest.mark.parametrize("kind", ["garbage", "deep", "huge", "fifo", "link", "folder", "another's", "no number"])
def test_a_note_that_is_none_says_nothing(run: RunFolder, tmp_path: Path, kind: str) -> None:
    path = run.claims / "00000001.rollback"
    good = b'{"epoch":1,"step":35,"why":"nan","at":1.0}'
    match kind:
        case "garbage":
            path.write_bytes(b"\xff\x00{")
        case "deep":
            path.write_bytes(b"[" * 60_000)
        case "huge":
            path.write_bytes(good)
            os.truncate(path, 1 << 40)
        case "fifo":
            os.mkfifo(path)
        case "link":
            (tmp_path / "elsewhere").write_bytes(good)
            path.symlink_to(tmp_path / "elsewhere")
        case "folder":
            path.mkdir()
        case "another's":
            path.write_bytes(good.replace(b'"epoch":1', b'"epoch":7'))
        case "no number":
            path.write_bytes(good.replace(b'"step":35', b'"step":-1'))
    assert notes(run) == {}
    assert chosen(run) == "step_00000050"


@pytest.mark.parametrize("at", range(1, 6))
def test_a_volume_that_takes_no_note_says_so_and_takes_it_later(run: RunFolder, at: int) -> None:
    disk = FaultyDisk(at, lambda: OSError(28, "No space left on device"))
    wish = Rollback(1, 35, "nan", 1.7e9)
    with pytest.raises(OSError, match="No space"):
        note(run, wish, disk)
    assert set(notes(run).values()) <= {wish}, "all of it, or nothing"
    note(run, wish)
    assert notes(run) == {1: wish}
