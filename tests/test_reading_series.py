"""Whole trainings as they come through a pipe or a terminal, and the steps, totals and losses they are read as."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commander_kit import FakeClock

from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relay_agent.spool.lane import Mark
from relaytui.wire.reports import Log, Step, TelemetryReport


class Read:
    """What a follower made of some output, written as it was, `pause` seconds between two writes."""

    def __init__(self, *writes: str, start: int = 0, target: int | None = None, pause: float = 0.2) -> None:
        clock, self.reports, self.bad, self.first = FakeClock(), list[TelemetryReport](), list[int](), list[int]()
        marks: list[Mark] = []
        self.follower = Follower(Progress(start, target), clock, self.reports.append, marks.append, lambda: None)
        self.follower.on_nonfinite = self.bad.append
        self.follower.on_first_step = lambda step, told: self.first.append(step)
        for write in writes:
            self.follower.feed(write.encode())
            clock.advance(pause)
            self.follower.tick()
        self.follower.finish()
        self.progress = self.follower.progress

    @property
    def steps(self) -> list[Step]:
        return [report for report in self.reports if isinstance(report, Step)]

    @property
    def series(self) -> list[tuple[int, int | None, object]]:
        """Step, total and loss of all that told a loss."""
        return [(step.step, step.total, step.metrics["loss"]) for step in self.steps if "loss" in step.metrics]

    @property
    def lines(self) -> list[str]:
        return [line for report in self.reports if isinstance(report, Log) for line in report.lines]


def bar(n: int, total: int, description: str = "", post: str = "", rate: str = "1.11it/s") -> str:
    head = f"{description}: " if description else ""
    return f"\r{head}{100 * n // total:3d}%|{'█' * (10 * n // total):10}| {n}/{total} [00:12<00:35, {rate}{post}]"


def hugging_face(first: int, last: int, total: int = 50, every: int = 10, quoted: bool = True) -> Iterator[str]:
    """Bars on stderr, dicts on stdout, an evaluation with a bar of its own below after every log."""
    yield bar(0, total, rate="?it/s").replace("00:12<00:35", "00:00<?")
    for n in range(first + 1, last + 1):
        yield bar(n, total)
        if n % every == 0:
            loss = f"'{3 - n / 25:.4g}'" if quoted else f"{3 - n / 25:.4f}"
            blank = "\r" + " " * 50 + "\r"
            yield blank + "\r"
            yield f"{{'loss': {loss}, 'grad_norm': {loss}, 'learning_rate': '1e-05', 'epoch': '{n / total:.4g}'}}\n"
            yield bar(n, total)
            for batch in range(1, 26, 8):
                yield "\n" + bar(batch, 25, rate="90.1it/s") + "\x1b[A"
            yield "\n" + " " * 50 + "\r\x1b[A"
            yield (
                blank
                + f"{{'eval_loss': '{4 - n / 25:.4g}', 'eval_runtime': '1.1', 'epoch': '{n / total:.4g}'}}\n"
                + bar(n, total)
            )
            yield bar(n, total)
            yield "\rWriting model shards: 100%|██████████| 1/1 [00:00<00:00, 11.2it/s]\n" + bar(n, total)
    if last == total:
        yield "\r" + " " * 50 + "\r"
        yield "{'train_runtime': '43.27', 'train_steps_per_second': '1.155', 'train_loss': '2.045', 'epoch': '1'}\n"
        yield bar(total, total) + bar(total, total) + "\n"


@pytest.mark.parametrize("quoted", [True, False])
def test_hugging_face_step_from_the_bar_and_loss_from_the_dict(quoted: bool) -> None:
    read = Read(*hugging_face(0, 50, quoted=quoted))
    assert read.series == [(n, 50, pytest.approx(3 - n / 25)) for n in range(10, 60, 10)]
    assert {step.total for step in read.steps} == {50}
    assert [step.step for step in read.steps] == sorted(step.step for step in read.steps)
    assert [(s.step, s.metrics["eval_loss"]) for s in read.steps if "eval_loss" in s.metrics] == [
        (n, pytest.approx(4 - n / 25)) for n in range(10, 60, 10)
    ]
    assert (read.progress.step, read.progress.total, read.progress.first) == (50, 50, 1)
    assert read.progress.complete(50)
    assert not read.progress.complete(49), "who counts from 1 is not done one before"
    assert len(read.lines) < 60, "a bar is one line that changes"


def test_hugging_face_resumed_begins_after_its_checkpoint() -> None:
    read = Read(*hugging_face(20, 50), start=20)
    assert read.first == [21], "a bar that was drawn at 0 is no step"
    assert read.series == [(n, 50, pytest.approx(3 - n / 25)) for n in (30, 40, 50)]


def test_hugging_face_that_ignored_the_checkpoint_is_seen_to_begin_below_it() -> None:
    assert Read(*hugging_face(0, 30), start=20).first == [1]


def test_an_evaluation_before_the_training_is_not_its_count() -> None:
    before = [bar(n, 25, rate="90.1it/s") for n in range(0, 26, 5)] + ["\n{'eval_loss': '9.1', 'epoch': '0'}\n"]
    read = Read(*before, *hugging_face(0, 50))
    assert read.series == [(n, 50, pytest.approx(3 - n / 25)) for n in range(10, 60, 10)]
    assert (read.progress.step, read.progress.total) == (50, 50)


def test_a_target_that_is_known_makes_no_evaluation_a_step() -> None:
    read = Read(*hugging_face(0, 50), target=50)
    assert [step.step for step in read.steps] == sorted(step.step for step in read.steps)
    assert read.progress.step == 50


def test_a_loss_of_nothing_beside_a_gradient_that_is_nan_is_no_number() -> None:
    read = Read(
        bar(4, 9),
        bar(5, 9),
        "\r{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.5'}\n",
        bar(5, 9),
    )
    assert read.bad == [5]
    assert read.progress.step == 5


def lightning(epochs: int, total: int = 57, style: str = "tqdm") -> Iterator[str]:
    yield "\rSanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 91.10it/s]"
    for epoch in range(epochs):
        for n in (0, 19, 38, 57):
            post = f", v_num=0, train_loss={3 - (epoch * total + n) / 100:.3f}" if n else ", v_num=0"
            yield bar(n, total, f"Epoch {epoch}", post)
        for n in (5, 10):
            yield "\n" + bar(n, 10, "Validation DataLoader 0", rate="200.1it/s") + "\x1b[A"
        yield bar(
            total, total, f"Epoch {epoch}", f", v_num=0, train_loss={3 - (epoch + 1) * total / 100:.3f}, val_loss=9.0"
        )
    yield "\n`Trainer.fit` stopped: `max_epochs=2` reached.\n"


def test_lightning_counts_on_over_its_epochs() -> None:
    read = Read(*lightning(3))
    expected = [epoch * 57 + n for epoch in range(3) for n in (19, 38, 57, 57)]
    assert [step for step, _, _ in read.series] == expected
    assert all(loss == pytest.approx(3 - step / 100) for step, _, loss in read.series)
    assert {total for _, total, _ in read.series} == {None}
    assert [step.step for step in read.steps] == sorted(step.step for step in read.steps)


def test_lightning_resumed_is_where_it_was() -> None:
    post = ", v_num=0, train_loss=1.5"
    read = Read(bar(0, 57, "Epoch 2"), bar(1, 57, "Epoch 2", post), bar(57, 57, "Epoch 2", post) + "\n", start=114)
    assert (read.first, read.progress.step) == ([115], 171)


def test_epochs_that_count_from_one_begin_at_the_beginning() -> None:
    writes = [bar(n, 10, f"Epoch {epoch}", ", loss=1.5") for epoch in (1, 2) for n in (5, 10)]
    assert [step for step, _, _ in Read(*writes).series] == [5, 10, 15, 20]


def test_lightning_under_a_terminal() -> None:
    """rich: one line drawn again and again, epochs from 0, the last one named."""
    writes = [
        f"\r\x1b[2KEpoch {epoch}/1  \x1b[35m━━━━━━\x1b[0m\x1b[90m╺\x1b[0m {n}/57 \x1b[2m0:00:09 • 0:00:02\x1b[0m "
        f"\x1b[2;4m5.53it/s\x1b[0m \x1b[3mv_num: 0.000 train_loss: 1.{n}\x1b[0m"
        for epoch in range(2)
        for n in (10, 30, 57)
    ]
    read = Read(*writes, "\r\n")
    assert read.series == [(e * 57 + n, 114, float(f"1.{n}")) for e in range(2) for n in (10, 30, 57)]


def test_a_block_that_is_drawn_again_does_not_flood() -> None:
    """Two rows of rich, twenty times a second: the cursor goes up, and both are written anew."""
    block = "Epoch 0/1 ━━━╺━━━ {}/57 0:00:09 • 0:00:02 5.53it/s train_loss: 1.5\n"
    block += "Validation ━━━ {}/10 0:00:00 • 0:00:01 9.00it/s"
    writes = [block.format(1, 0)]
    writes += ["\r\x1b[2K\x1b[1A\x1b[2K" + block.format(n, n % 10) for n in range(2, 58)]
    read = Read(*writes, "\n", pause=0.05)
    assert [step for step, _, _ in read.series] == list(range(1, 58))
    assert len(read.lines) <= 2 * (len(writes) * 0.05 / 0.5 + 3)


def keras(epochs: int, total: int = 7) -> Iterator[str]:
    for epoch in range(1, epochs + 1):
        yield f"Epoch {epoch}/{epochs}\n"
        width = 0
        for n in (1, 3, 7, 7):
            loss = 3 - ((epoch - 1) * total + n) / 10
            text = f"\x1b[1m{n}/7\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m0s\x1b[0m 26ms/step"
            text += f" - accuracy: 0.09 - loss: {loss:.4f}"
            yield "\b" * width + "\r" + text
            width = 60
        yield f"\b\r{text} - val_accuracy: 0.1 - val_loss: 9.0\n"


def test_keras_counts_on_over_its_epochs_and_its_evaluation_is_none() -> None:
    after = [
        "3/7 ━━━ 0s 5ms/step - accuracy: 0.9 - loss: 0.3\r",
        "7/7 ━━━━━━━ 0s 5ms/step - accuracy: 0.9 - loss: 0.3\n",
    ]
    read = Read(*keras(3), "\n", *after)
    steps = [step for step, _, _ in read.series]
    assert sorted(set(steps)) == [(epoch - 1) * 7 + n for epoch in (1, 2, 3) for n in (1, 3, 7)]
    assert steps == sorted(steps)
    assert {total for _, total, _ in read.series} == {21}
    assert all(loss == pytest.approx(3 - step / 10) for step, _, loss in read.series)
    assert (read.progress.step, read.progress.complete(21), read.progress.complete(20)) == (21, True, False)


def test_ultralytics_counts_epochs_by_the_heading_of_its_columns() -> None:
    writes = []
    row = "\r\x1b[K        {0}/3      2.37G      1.5      1.25      {0}.25         23        640:"
    row += " {1}% ━━━━ {1}/100 9.8it/s 12.7s"
    for epoch in (1, 2, 3):
        writes.append("\n      Epoch    GPU_mem   giou_loss   cls_loss    l1_loss  Instances       Size\n")
        writes += [row.format(epoch, percent) for percent in (10, 60, 100)]
        writes.append("\n                   all        128        929      0.641      0.537      0.604      0.448\n")
    read = Read(*writes)
    assert read.series == [(epoch, 3, 3.0 + epoch) for epoch in (1, 2, 3)]
    assert read.steps[-1].metrics["giou_loss"] == 1.5


def test_epochs_are_no_steps_where_there_are_steps() -> None:
    lines = [
        f"step {n}/40 loss 1.5\n" + (f"Epoch {n // 10}/4 - loss: 1.4\n" if n % 10 == 0 else "") for n in range(1, 41)
    ]
    read = Read(*lines)
    assert [step for step, _, _ in read.series] == list(range(1, 41))
    only = Read("Epoch 1/4 loss 2.0\n", "Epoch 2/4 loss 1.0\n")
    assert only.series == [(1, 4, 2.0), (2, 4, 1.0)]


def test_steps_within_epochs_count_on() -> None:
    lines = [f"Epoch [{e}/3], Step [{n}/500], Loss: 0.5\n" for e in (1, 2, 3) for n in (250, 500)]
    assert Read(*lines).series == [(n, 1500, 0.5) for n in (250, 500, 750, 1000, 1250, 1500)]


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("| step | loss | lr |\n|------|------|----|\n", "| {} | 0.35 | 3e-4 |\n"),
        ("step,loss,lr\n", "{},0.35,3e-4\n"),
        ("Step    Loss    LR\n", "{}    0.35    3e-4\n"),
        ("│ step │ loss │ lr │\n", "│ {} │ 0.35 │ 3e-4 │\n"),
    ],
)
def test_rows_below_a_heading(head: str, row: str) -> None:
    read = Read("| 7 | 0.1 | 2 |\n", head, row.format(120), "something else\n", row.format(130))
    assert read.series == [(120, None, 0.35), (130, None, 0.35)]


def test_rewards_of_a_rollout_go_with_the_step_the_training_is_at() -> None:
    read = Read(
        "(RolloutManager pid=4) rollout 0: {'rollout/raw_reward': 0.1}\n",
        "(Actor pid=5) step 0: {'train/loss': 0.5}\n",
        "(Actor pid=5) rollout 1: {'rollout/raw_reward': 0.25}\n",
        "(RolloutManager pid=4) eval 1: {'eval/aime': 0.5}\n",
        "(RolloutManager pid=4) eval 1: {'aime': 0.75}\n",
    )
    assert [(step.step, step.metrics) for step in read.steps] == [
        (0, {"loss": 0.5}), (0, {"reward": 0.25}), (0, {"eval/aime": 0.5}), (0, {"eval/aime": 0.75}),
    ]  # fmt: skip


def test_bars_of_loading_and_of_prompts_change_nothing() -> None:
    noise = [
        "\rLoading checkpoint shards:  50%|█████     | 2/4 [00:01<00:01,  1.51it/s]",
        "\rMap: 100%|██████████| 1000/1000 [00:00<00:00, 9123.10 examples/s]\n",
        "\rTokenizing train dataset:  40%|████      | 400/1000 [00:00<00:00, 91.3it/s]\n",
        '{"prompt": "step 9/9 loss 0", "reward": 0.5}\n',
        "prompt: step 5000/5000 loss 0.0\n",
        '{"lr": 0.1, "max_steps": 77, "loss": "mse"}\n',
    ]
    read = Read(*noise, *hugging_face(0, 10, total=10), *noise)
    assert read.series == [(10, 10, pytest.approx(2.6))]
    assert (read.progress.step, read.progress.total) == (10, 10)


def test_metrics_whose_bar_never_comes_go_with_the_last_one() -> None:
    read = Read(bar(9, 50), bar(10, 50), "\n{'loss': '2.5', 'learning_rate': '1e-05', 'epoch': '0.2'}\n", "killed\n")
    assert read.series == [(10, 50, 2.5)]


def test_a_bar_that_nothing_ended_is_read_after_a_moment() -> None:
    read = Read(bar(1, 9, "Steps", ", loss=1.5"), "", "", "")
    assert read.series == [(1, 9, 1.5)]
    clock, reports = FakeClock(), list[TelemetryReport]()
    follower = Follower(Progress(), clock, reports.append, lambda mark: None, lambda: None)
    follower.feed(bar(1, 9, "Steps", ", loss=1.5").encode())
    assert not [report for report in reports if isinstance(report, Step)], "more of it may come"
    clock.advance(1.0)
    follower.tick()
    assert [report.step for report in reports if isinstance(report, Step)] == [1]


def test_nanogpt_evaluates_between_its_steps_and_ends_with_it() -> None:
    lines = []
    for step in range(0, 501, 10):
        if step % 100 == 0:
            lines.append(f"step {step}: train loss 1.2000, val loss 1.{step // 100}000\n")
        lines.append(f"iter {step}: loss 0.{300 + step // 10}, time 132.10ms, mfu 12.34%\n")
    lines.append("step 500: train loss 1.2000, val loss 1.2000\n")
    read = Read(*lines)
    assert read.progress.step == 500
    assert {loss for _, _, loss in read.series} == {float(f"0.{300 + step}") for step in range(51)}
    assert [step.metrics["val_loss"] for step in read.steps if "val_loss" in step.metrics][-1] == 1.2
