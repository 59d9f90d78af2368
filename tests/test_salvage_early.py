"""An exit with 0 that no agent saw proves no save of before the last step: what an attempt's log tells of that."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import ManualClock, mine, new_run, put, stage, take
from commander_kit import FakeClock
from writers import accelerate
from writers.kit import run as written

from relay_agent.attempt.beginning import Beginning
from relay_agent.checkpoints.adapters import KINDS
from relay_agent.checkpoints.rescue import rescue
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.retention import NEWEST_ONLY
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.outcome.stop import Stop
from relay_agent.output import recorded
from relay_agent.output.progress import Progress
from relay_agent.output.recorded import Recorded
from relay_agent.volume.volume import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Epoch 1 exited with 0, and nobody saw it."""
    run = new_run(tmp_path)
    put(run, 1, 5)
    run.logs.mkdir(exist_ok=True)
    run.log(1).with_suffix(".exit").write_text("0\n")
    return run


def prints(run: RunFolder, first: int, last: int, total: str = "/100") -> None:
    run.log(1).write_text("".join(f"step {step}{total} loss: 0.5\n" for step in range(first, last + 1)))


def after(run: RunFolder, target: int | None = None) -> Salvage:
    """The next holder comes."""
    take(run, 2, "step_00000005")
    over = Recorded(run, partial(Progress, total=target), FakeClock(), lambda: None).over
    return Salvage(
        run, 2, mine, over=over, rescue=lambda dead: rescue(run, dead, run.output(dead), KINDS, over=over)
    ).work()  # fmt: skip


def steps(done: Salvage) -> list[int]:
    return [each.step for each in done.published]


def test_an_unmarked_save_of_before_the_last_step_is_torn(run: RunFolder) -> None:
    prints(run, 1, 9)
    stage(run, 1, 9, marker=False)
    done = after(run)
    assert steps(done) == []
    (torn,) = [told.message for told in done.told if told.kind == "checkpoint.torn"]
    assert "the trainer exited with 0, but before its last step, maybe in the middle of a save" in torn
    assert (run.bad / "e00000001.step_9").exists()


def test_that_of_the_last_step_is_whole_whatever_was_printed(run: RunFolder) -> None:
    prints(run, 1, 9)
    stage(run, 1, 100, marker=False)
    assert steps(after(run)) == [100]


@pytest.mark.parametrize(("first", "last", "step"), [(1, 100, 98), (0, 99, 99)])
def test_so_is_any_where_that_was_reached(run: RunFolder, first: int, last: int, step: int) -> None:
    prints(run, first, last)
    stage(run, 1, step, marker=False)
    assert steps(after(run)) == [step]


@pytest.mark.parametrize(("target", "published"), [(None, [9]), (9, [9]), (40, [])])
def test_where_it_printed_no_last_step_that_of_the_run_counts(
    run: RunFolder, target: int | None, published: list[int]
) -> None:
    prints(run, 1, 9, total="")
    stage(run, 1, 9, marker=False)
    assert steps(after(run, target)) == published


@pytest.mark.parametrize(("last", "published"), [(99, [99]), (98, [])])
def test_of_a_log_whose_beginning_is_not_read_nobody_knows_whether_it_counts_from_0(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, last: int, published: list[int]
) -> None:
    monkeypatch.setattr(recorded, "END", 500)
    prints(run, 0, last)
    stage(run, 1, last, marker=False)
    assert steps(after(run)) == published


@pytest.mark.parametrize("last", [8, 100])
def test_it_is_so_in_the_trainers_own_folder(run: RunFolder, last: int) -> None:
    """A save without a mark of its own, two of whose files never came."""
    prints(run, 1, last)
    written(accelerate.save(run.output(1), 8))
    assert steps(after(run)) == ([8] if last == 100 else [])


@pytest.mark.parametrize("own", [False, True], ids=["staged", "its own folder"])
@pytest.mark.parametrize("last", [9, 100])
async def test_where_an_attempt_begins_that_is_known(run: RunFolder, own: bool, last: int) -> None:
    prints(run, 1, last)
    if own:
        written(accelerate.save(run.output(1), 9))
    else:
        stage(run, 1, 9, marker=False)
    take(run, 2, "step_00000005")
    teller: Any = SimpleNamespace(
        event=lambda kind, message, data=None: None,
        published=lambda done: None,
        journal=SimpleNamespace(latest_ckpt=None),
    )
    settings: Any = SimpleNamespace(
        complete_marker="auto", counter_restarts=False, mode="sft", retention=NEWEST_ONLY, target_steps=None,
        patterns=(), base_model="", checkpoint_dir="", checkpoints="auto", run_id=run.run_id,
    )  # fmt: skip
    tenure: Any = SimpleNamespace(lease=SimpleNamespace(epoch=2), held=True)
    begun = Beginning(settings, run, None, 3, "mock", tenure, teller, Stop(), clock=ManualClock())
    found = await begun.salvage(choose(run))
    assert found is not None
    assert found.step == (9 if last == 100 else 5)
