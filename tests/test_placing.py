"""A checkpoint that was brought back lies in `ckpt` to the byte as it was; after a crash whole, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkpoint_kit import Crash, FaultyDisk, ObjectDisk, mine, names, new_run, not_mine, put, take, whole_names

from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import Sealed, Torn, read
from relay_agent.checkpoints.placing import Taken, place
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.receiving import place_for
from relay_agent.checkpoints.resume import choose
from relay_agent.volume.volume import RunFolder


def brought(tmp_path: Path, run: RunFolder, step: int = 500) -> tuple[Path, Sealed]:
    """What came in of a checkpoint that another volume had in epoch 3."""
    other = tmp_path / f"other-{step}"
    if not other.exists():
        other.mkdir()
        put(new_run(other, 3), 3, step)
    sealed = read(other / "runs" / run.run_id / "ckpt" / f"step_{step:08d}")
    received = place_for(run, sealed.sha256) / sealed.name
    if not received.exists():
        received.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(sealed.path, received)
    return received, sealed


@pytest.mark.parametrize("atomic", [True, False])
def test_it_is_what_it_was_and_the_next_claim_puts_it_into_the_line(tmp_path: Path, atomic: bool) -> None:
    run = RunFolder(new_run(tmp_path, None).root, atomic)
    received, sealed = brought(tmp_path, run)
    placed = place(run, received, mine)
    assert (placed.sha256, placed.manifest) == (sealed.sha256, sealed.manifest)
    assert not received.exists()
    resume = choose(run)
    assert resume is not None
    assert (resume.name, resume.epoch, resume.on_line) == (sealed.name, 3, True)
    take(run, 5, resume.name)
    put(run, 5, 600)
    assert [each.name for each in survey(run).line] == ["step_00000600", "step_00000500"]
    assert survey(run).line[0].manifest.seq == sealed.manifest.seq + 1, "the order goes on"


def test_twice_is_once(tmp_path: Path) -> None:
    run = new_run(tmp_path, None)
    for _ in range(2):
        received, sealed = brought(tmp_path, run)
        assert place(run, received, mine).sha256 == sealed.sha256
    assert names(run) == [sealed.name]


def test_what_is_not_whole_or_not_ours_to_put_is_not_put(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    received, sealed = brought(tmp_path, run)
    with pytest.raises(Fenced):
        place(run, received, not_mine)
    put(run, 1, 500, "another")
    with pytest.raises(Taken, match="another checkpoint has its name"):
        place(run, received, mine)
    assert read(run.ckpt / sealed.name).sha256 != sealed.sha256
    (received / "weights.bin").write_bytes(b"weights" * 100)
    with pytest.raises(Torn):
        place(run, received, mine)
    assert received.exists()


@pytest.mark.parametrize("disk", [FaultyDisk, ObjectDisk])
def test_a_crash_at_any_call_leaves_it_whole_or_not_there(tmp_path: Path, disk: type[FaultyDisk]) -> None:
    for at in range(200):
        run = RunFolder(new_run(tmp_path, None).root, disk is FaultyDisk)
        received, sealed = brought(tmp_path, run)
        faulty = disk(at, after=bool(at % 2))
        try:
            place(run, received, mine, disk=faulty)
        except Crash:
            assert whole_names(run) in ([], [sealed.name])
            if not whole_names(run):  # never neither here nor there
                assert place(run, received, mine).sha256 == sealed.sha256, "the next one can"
            shutil.rmtree(run.ckpt / sealed.name)
            shutil.rmtree(received, ignore_errors=True)
        else:
            assert at > 3
            return
    raise AssertionError("it never ended")
