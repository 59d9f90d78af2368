"""Which of a dead attempt's saves go on from the line where numbers do not tell: a counter that restarts, a fork."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_kit import ManualClock, mine, new_run, put, stage, take
from writers import hf_trainer
from writers.kit import run as written

from relay_agent.checkpoints.adapters import KINDS
from relay_agent.checkpoints.manifest import Origin
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.rescue import rescue
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.staging import StagingWatch
from relay_agent.checkpoints.tip import Tip
from relay_agent.volume.volume import RunFolder

PARENT = Origin("parent", "step_00000500", 500, 3, "ab" * 32)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Epoch 1 has published step 500, and epoch 2 resumed from it."""
    run = new_run(tmp_path)
    put(run, 1, 500)
    take(run, 2, "step_00000500")
    return run


def saved(run: RunFolder, epoch: int, step: int, at: int, content: str = "") -> None:
    for path in stage(run, epoch, step, content).path.rglob("*"):
        os.utime(path, (at, at))


def after(run: RunFolder, epoch: int, *, restarts: bool = True) -> list[int]:
    """The steps that the next holder publishes."""
    resume = choose(run)
    take(run, epoch, resume.name if resume else None)
    salvage = Salvage(
        run, epoch, mine, restarts=restarts,
        rescue=lambda dead: rescue(run, dead, run.output(dead), KINDS, restarts=restarts),
    ).work()  # fmt: skip
    return [done.step for done in salvage.published]


def orphans(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.orphans.glob("*"))


def newest(run: RunFolder) -> int:
    resume = choose(run)
    assert resume is not None
    return resume.step


def test_a_counter_that_restarts_is_no_reason_to_drop_what_was_saved_last(run: RunFolder) -> None:
    saved(run, 2, 10, 2_000_000_000)
    saved(run, 2, 20, 2_000_000_010)
    assert after(run, 3) == [10, 20]
    assert (newest(run), orphans(run)) == (20, [])
    saved(run, 3, 20, 2_000_000_020, "of a counter that began anew once more")
    assert after(run, 4) == [20], "of the same step as what it resumed from, and another"
    assert choose(run).name == "step_00000020.e00000004"  # type: ignore[union-attr]


def test_where_none_was_declared_a_step_below_is_a_resume_that_did_not_take(run: RunFolder) -> None:
    saved(run, 2, 10, 2_000_000_000)
    assert after(run, 3, restarts=False) == []
    assert (newest(run), orphans(run)) == (500, ["e00000002.step_10"])


def test_what_a_fork_saved_goes_on_from_what_it_began_with_whatever_its_numbers(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put(run, 1, 500, forked_from=PARENT)
    saved(run, 1, 10, 1_000)  # its pod's clock is behind that of the parent's
    assert after(run, 2, restarts=False) == [10]
    assert newest(run) == 10
    saved(run, 2, 5, 2_000)
    assert after(run, 3, restarts=False) == [], "from there on it is a run like others"
    assert newest(run) == 10


def test_within_one_attempt_the_later_save_is_the_newer_one(run: RunFolder) -> None:
    """Its trainer began anew by itself, as a launcher has it do."""
    for path in put(run, 2, 40).path.rglob("*"):
        os.utime(path, (2_000_000_000, 2_000_000_000))
    saved(run, 2, 50, 1_999_999_999, "was passed over")
    saved(run, 2, 10, 2_000_000_001)
    assert after(run, 3) == [10]
    assert (newest(run), orphans(run)) == (10, ["e00000002.step_50"])


@pytest.mark.parametrize("atomic", [True, False])
def test_when_it_was_saved_is_known_of_one_that_was_published_later(run: RunFolder, atomic: bool) -> None:
    """All of it lies in folders below, or was copied to its place: no time of a file tells any more."""
    run = replace(run, atomic=atomic)
    for step, at in ((40, 1_000), (10, 1_010)):
        (stage(run, 2, step).path / "weights.bin").unlink()
        for path in (run.staging(2) / f"step_{step}").rglob("*"):
            os.utime(path, (at, at))
    (first, _) = StagingWatch(run.staging(2), 5.0, ManualClock()).scan()
    assert publish(run, first, 2, mine).step == 40
    assert after(run, 3) == [10]
    assert (newest(run), orphans(run)) == (10, [])


def test_an_earlier_attempts_saves_stay_beside_the_line(run: RunFolder) -> None:
    saved(run, 1, 600, 2_000_000_000)
    saved(run, 2, 10, 2_000_000_000)
    assert after(run, 3) == [10]
    assert orphans(run) == ["e00000001.step_600"]


def test_what_nobody_came_to_take_from_its_own_folder_goes_on_by_the_same_rule(run: RunFolder) -> None:
    run.staging(2).mkdir(parents=True, exist_ok=True)
    run.output(2).mkdir(parents=True, exist_ok=True)
    written(hf_trainer.save(run.output(2), 7))
    assert after(run, 3, restarts=False) == []
    take(run, 4, "step_00000500")
    run.staging(4).mkdir(parents=True, exist_ok=True)
    run.output(4).mkdir(parents=True, exist_ok=True)
    written(hf_trainer.save(run.output(4), 7))
    assert after(run, 5) == [7]
    assert newest(run) == 7


@pytest.mark.parametrize(
    ("tip", "maker", "step", "at", "restarts", "goes_on"),
    [
        (Tip(), 1, 0, 0, False, True),
        (Tip(10, 1, 5), 2, 11, 0, False, True),
        (Tip(10, 1, 5), 2, 10, 9, False, False),
        (Tip(10, 1, 5), 2, 3, 0, True, True),
        (Tip(10, 2, 5), 1, 30, 9, True, False),
        (Tip(10, 0, 5), 1, 3, 1, False, True),
        (Tip(10, 2, 5), 2, 3, 6, True, True),
        (Tip(10, 2, 5), 2, 30, 4, True, False),
        (Tip(10, 2, 0), 2, 30, 4, True, True),  # nothing tells when: steps do
        (Tip(10, 2, 5), 2, 3, 0, True, False),
        (Tip(10, 2, 5), 2, 11, 5, True, True),
        (Tip(10, 2, 5), 2, 10, 5, True, False),
    ],
)
def test_the_rule(tip: Tip, maker: int, step: int, at: int, restarts: bool, goes_on: bool) -> None:
    assert tip.goes_on(maker, step, at, restarts) is goes_on
