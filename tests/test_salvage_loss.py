"""What an attempt saved and did not publish is judged by what the volume still has of it: its log, and its events."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import ManualClock, mine, new_run, put, stage, take
from commander_kit import FakeClock

from relay_agent.attempt.beginning import Beginning
from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.resume import Resume, choose
from relay_agent.checkpoints.retention import NEWEST_ONLY
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.tree import Cancelled
from relay_agent.outcome.stop import Stop
from relay_agent.output import recorded
from relay_agent.output.progress import Progress
from relay_agent.output.recorded import Recorded
from relay_agent.volume.volume import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path)
    put(run, 1, 5)
    return run


def known(run: RunFolder) -> Recorded:
    return Recorded(run, Progress, FakeClock(), lambda: None)


def prints(run: RunFolder, *losses: tuple[int, float], epoch: int = 1, end: str = "\n") -> None:
    run.logs.mkdir(exist_ok=True)
    text = "\n".join(f"step {step}/40 loss: {loss}" for step, loss in losses)
    run.log(epoch).write_text(text + end)


def notes(run: RunFolder, kind: str, step: object, epoch: int = 1) -> None:
    with run.events.open("a") as file:
        file.write(json.dumps({"at": 1.0, "event": kind, "epoch": epoch, "worker": "w", "message": "", "step": step}))
        file.write("\n")


def salvaged(run: RunFolder, epoch: int = 2, base: str = "step_00000005") -> dict[int, bool]:
    """Whether each that the next holder publishes is healthy."""
    take(run, epoch, base)
    done = Salvage(run, epoch, mine, well=known(run).well).work()
    found = {each.step: verify(run.ckpt / each.name).healthy for each in done.published}
    assert {step for step, healthy in found.items() if not healthy} == {
        each.step for each in done.published if each.name in done.unhealthy
    }
    return found


@pytest.mark.parametrize("end", ["\n", ""])
def test_what_was_saved_while_the_loss_was_nan_is_not_called_healthy_by_whoever_publishes_it(
    run: RunFolder, end: str
) -> None:
    prints(run, (8, 0.5), (10, 0.5), (19, 0.4), (20, float("nan")), end=end)
    for step in (10, 20):
        stage(run, 1, step)
    assert salvaged(run) == {10: True, 20: False}


def test_a_loss_that_was_well_again_makes_what_was_saved_then_healthy(run: RunFolder) -> None:
    put(run, 1, 8, healthy=False)
    prints(run, (8, float("nan")), (10, float("nan")), (11, 0.5), (20, 0.4))
    for step in (10, 20):
        stage(run, 1, step)
    assert salvaged(run, base="step_00000008") == {10: False, 20: True}


def test_the_log_of_who_saved_it_counts_and_no_other(run: RunFolder) -> None:
    prints(run, (8, float("nan")))
    notes(run, "loss.nonfinite", "8")
    take(run, 2, "step_00000005")
    prints(run, (6, 0.5), (10, 0.5), epoch=2)
    stage(run, 2, 10)
    assert salvaged(run, 3) == {10: True}


def test_without_a_log_the_events_tell_and_without_those_the_one_before(run: RunFolder) -> None:
    notes(run, "loss.nonfinite", "15")
    for step in (10, 20):
        stage(run, 1, step)
    assert salvaged(run) == {10: True, 20: False}
    stage(run, 2, 30)
    assert salvaged(run, 3, "step_00000020") == {30: False}


def test_of_a_long_log_the_end_is_read_and_the_events_tell_what_was_before(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "END", 1000)
    prints(run, *((step, 0.5) for step in range(6, 100)), *((step, 90.0) for step in range(100, 200)))
    assert known(run).well(1, 150) is None
    assert known(run).well(1, 199)
    notes(run, "loss.diverging", "100")
    assert known(run).well(1, 99) is None
    assert [known(run).well(1, step) for step in (150, 199)] == [False, False]
    run.events.unlink()
    notes(run, "loss.nonfinite", "100")
    assert known(run).well(1, 150) is False
    assert known(run).well(1, 199), "the loss is a number at the end"


def test_what_lies_there_is_not_trusted(run: RunFolder, tmp_path: Path) -> None:
    run.logs.mkdir(exist_ok=True)
    os.mkfifo(run.log(1))
    run.events.write_bytes(
        b'{"event": "loss.nonfinite", "epoch": 1, "step": 7}\n"loss."\n\xff"loss.\n'
        b'{"event": "loss.nonfinite", "epoch": 1, "step": "\xd9\xa3"}\n' + b"[" * 9000 + b'"loss.\n'
        b'{"event": "loss.nonfinite", "epoch": 1, "step": "' + b"9" * 5000 + b'"}\n'
    )
    assert known(run).well(1, 20) is None
    run.events.unlink()
    os.mkfifo(run.events)
    assert known(run).well(1, 20) is None
    run.events.unlink()
    os.truncate(os.open(run.events, os.O_CREAT | os.O_WRONLY), 1 << 40)
    assert known(run).well(1, 20) is None


def test_nobody_who_does_not_wait_any_more_waits_for_it(run: RunFolder) -> None:
    def hurried() -> None:
        raise Cancelled

    prints(run, (8, 0.5))
    with pytest.raises(Cancelled):
        Recorded(run, Progress, FakeClock(), hurried).well(1, 10)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ((), "step 20/40 loss: nan"),
        ((r"(?P<step>\d+) is at (?P<loss>\S+)",), "20 is at nan"),
        (("(?P<loss>x+x+x+x+x+x+x+x+y)", r"(?P<step>\d+) is at (?P<loss>\S+)"), "x" * 1500 + "\n20 is at nan"),
    ],
)
def test_who_resumes_from_it_says_that_the_loss_was_not_well(
    run: RunFolder, patterns: tuple[str, ...], said: str
) -> None:
    prints(run, (8, 0.5))
    with run.log(1).open("a") as file:
        file.write(f"{said}\n")
    stage(run, 1, 20)
    take(run, 2, "step_00000005")
    told = list[tuple[str, str]]()
    teller: Any = SimpleNamespace(
        event=lambda kind, message, data=None: told.append((kind, message)),
        published=lambda done: None,
        journal=SimpleNamespace(latest_ckpt=None),
    )
    settings: Any = SimpleNamespace(
        complete_marker="auto",
        counter_restarts=False, mode="sft", retention=NEWEST_ONLY, target_steps=None, patterns=patterns, base_model="",
        checkpoint_dir="", checkpoints="none", run_id=run.run_id,
    )  # fmt: skip
    tenure: Any = SimpleNamespace(lease=SimpleNamespace(epoch=2), held=True)

    async def resume() -> Resume | None:
        begun = Beginning(settings, run, None, 3, "mock", tenure, teller, Stop(), clock=ManualClock())
        return await begun.salvage(choose(run))

    found = asyncio.run(resume())
    assert found is not None
    assert (found.step, found.healthy, found.last_healthy) == (20, False, "step_00000005")
    assert [words for kind, words in told if kind == "resume.unhealthy"] == [
        "step_00000020 is not known to have been saved while the loss was well; the last one that is: step_00000005"
    ]
