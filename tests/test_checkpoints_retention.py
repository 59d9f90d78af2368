"""What stays besides the newest: milestones, the best by a metric, and how much a line of thousand may cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_kit import ManualClock, mine, new_run, put, stage, take

from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.retention import Best, Retention
from relay_agent.config import load
from relay_agent.volume.volume import RunFolder
from relaytui.wire.errors import RelayError


def left(run: RunFolder) -> list[int]:
    return sorted(sealed.manifest.step for sealed in published(run)[0])


@pytest.mark.parametrize(
    ("saved", "every", "stay"),
    [
        (range(100, 1100, 100), 300, [300, 600, 900, 1000]),
        (range(19, 400, 20), 100, [119, 219, 319, 379, 399]),  # the counter of slime is one behind
        ((250, 500, 750, 1000), 1000, [750, 1000]),
        ((10, 5000, 5010, 5020), 1000, [5000, 5010, 5020]),
        ((1, 2, 3), 0, [2, 3]),
    ],
)
def test_milestones_stay(tmp_path: Path, saved: range, every: int, stay: list[int]) -> None:
    run = new_run(tmp_path)
    for step in saved:
        put(run, 1, step)
        prune(run, 2, retention=Retention(every))
    assert [step for step in left(run) if step in stay] == stay
    assert len(left(run)) == len(stay)


@pytest.mark.parametrize(("best", "step"), [(Best("eval_loss"), 3), (Best("eval_loss", highest=True), 1)])
def test_the_best_stays_and_of_equals_the_earliest(tmp_path: Path, best: Best, step: int) -> None:
    run = new_run(tmp_path)
    for number, value in enumerate((0.9, 0.5, 0.2, 0.2, 0.4, 0.6), 1):
        put(run, 1, number, metrics={"eval_loss": value})
    put(run, 1, 7)
    put(run, 1, 8, metrics={"eval_loss": 0.0001, "other": 5.0}, healthy=False)
    prune(run, 2, retention=Retention(0, best))
    assert left(run) == sorted({step, 6, 7, 8})


def test_of_another_line_none_is_the_best(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put(run, 1, 1, metrics={"loss": 0.5})
    put(run, 1, 2, metrics={"loss": 0.1})
    put(run, 1, 3, metrics={"loss": 0.4})
    take(run, 2, "step_00000001")
    for step in (4, 5, 6):
        put(run, 2, step, metrics={"loss": 0.3})
    prune(run, 2, retention=Retention(0, Best("loss")))
    assert left(run) == [1, 3, 4, 5, 6], "1 is a base, 3 the tip of what lies beside, 4 the best"


def test_what_is_set() -> None:
    def metric(text: str) -> Best | None:
        return load({"COMMANDER_URL": "http://a:1", "CKPT_BEST_METRIC": text}).retention.best

    assert metric("eval_loss") == metric("eval_loss min") == Best("eval_loss")
    assert metric("-reward") == metric("reward max") == Best("reward", highest=True)
    assert load({"COMMANDER_URL": "http://a:1"}).retention == Retention()
    assert load({"COMMANDER_URL": "http://a:1", "CKPT_KEEP_EVERY": "1000"}).retention == Retention(1000)
    for wrong in ("-reward max", "eval loss", "5", "eval_loss lowest"):
        with pytest.raises(RelayError, match="CKPT_BEST_METRIC"):
            metric(wrong)


async def test_the_manifest_has_what_was_known_at_its_step(tmp_path: Path) -> None:
    known = {1: 0.5, 2: float("nan"), 3: float("inf")}

    class Told:
        def published(self, checkpoint: object) -> None: ...
        def pruned(self, name: str) -> None: ...
        def event(self, kind: str, message: str, data: object = None) -> None: ...

    run = new_run(tmp_path)
    publisher = Publisher(
        run, 1, "sft", "a trainer", 5.0, 9, ManualClock(), Told(),
        held=mine, safe=mine, on_fenced=lambda: None,
        retention=Retention(0, Best("loss")), metric=lambda name, step: known.get(step),
    )  # fmt: skip
    for step in (1, 2, 3, 4):
        stage(run, 1, step)
    await publisher.look()
    found = {sealed.manifest.step: sealed.manifest.metrics for sealed in published(run)[0]}
    assert found == {1: {"loss": 0.5}, 2: {}, 3: {}, 4: {}}


def test_one_of_many_is_chosen_with_a_few_calls_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are read, and nothing of the others besides."""
    run = new_run(tmp_path)
    for step in range(1, 21):
        put(run, 1, step)
    opened: list[str] = []
    real = published.__globals__["read"]

    def reads(path: Path, run_id: str | None = None) -> object:
        opened.append(path.name)
        return real(path, run_id)

    monkeypatch.setitem(published.__globals__, "read", reads)
    resume = choose(run)
    assert resume is not None
    assert resume.step == 20
    assert len(opened) == len(set(opened)) == 20
