"""Whether a trainer has stalled, on a clock that is told what time it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from relay_agent.watchdog.pace import Pace
from relay_agent.watchdog.phases import Phase, counts_in, named_in
from relay_agent.watchdog.stalls import Budgets, Moving, Seen, Stalled, Watch

BUDGETS = Budgets(starting=100, loading=200, training=60, evaluating=300, saving=400)


@dataclass
class Trainer:
    """What a watch is shown, look by look, a second apart."""

    watch: Watch
    now: float = 0.0
    step: int | None = None
    heard: int = 0
    told: list[Stalled | Moving] = field(default_factory=list)

    def passes(self, seconds: float, *lines: str, saves: bool = False, every: float = 1.0) -> Stalled | Moving | None:
        """That long, `lines` printed at the end of it; what is new then, and in `told` all that was."""
        until = self.now + seconds
        while self.now < until - every:
            self._look()
        return self._look(*lines, saves=saves, at=until)

    def steps(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.step = (self.step or 0) + 1
            self.passes(seconds, f"step {self.step} loss 2.0")

    def prints(self, line: str, seconds: float) -> None:
        """The same again and again."""
        for _ in range(int(seconds)):
            self.passes(1.0, line)

    def sleeps(self, seconds: float) -> None:
        self.now += seconds

    def _look(self, *lines: str, saves: bool = False, at: float | None = None) -> Stalled | Moving | None:
        self.now = self.now + 1.0 if at is None else at
        self.heard += sum(map(len, lines))
        told = self.watch.look(self.now, Seen(self.step, self.heard, lines, saves))
        if told is not None:
            self.told.append(told)
        return told


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(Watch(BUDGETS, 0.0))


def stall(trainer: Trainer) -> Stalled:
    (told,) = trainer.told
    assert isinstance(told, Stalled)
    return told


def test_one_that_never_prints_has_stalled_in_starting(trainer: Trainer) -> None:
    trainer.passes(100)
    assert not trainer.told
    trainer.passes(500)
    assert (stall(trainer).phase, stall(trainer).budget) == (Phase.STARTING, 100)
    assert 100 < stall(trainer).seconds < 103


def test_one_that_prints_without_a_step_has_stalled_in_loading(trainer: Trainer) -> None:
    trainer.passes(90, "importing torch")
    trainer.prints("(SGLangEngine pid=1) INFO: 127.0.0.1:4 - GET /health HTTP/1.1 200 OK", 199)
    assert not trainer.told
    trainer.prints("(SGLangEngine pid=1) INFO: 127.0.0.1:4 - GET /health HTTP/1.1 200 OK", 5)
    assert stall(trainer).phase is Phase.LOADING


def test_a_bar_that_moves_is_a_sign_of_life_while_loading(trainer: Trainer) -> None:
    trainer.passes(1, "starting")
    for done in range(8):
        trainer.passes(150, f"Loading checkpoint shards:  {done}%|██ | {done}/8 [00:10<00:10]")
    assert not trainer.told
    for _ in range(300):  # up and down is no progress
        trainer.passes(1, "queue 3/8")
        trainer.passes(1, "queue 2/8")
    assert stall(trainer).phase is Phase.LOADING


def test_printing_but_not_stepping_is_a_stall(trainer: Trainer) -> None:
    trainer.passes(1, "hello")
    trainer.steps(20, 2.0)
    trainer.prints("INFO: 127.0.0.1 - GET /health HTTP/1.1 200 OK", 59)
    assert not trainer.told
    trainer.prints("INFO: 127.0.0.1 - GET /health HTTP/1.1 200 OK", 5)
    assert stall(trainer) == Stalled(Phase.TRAINING, 61.0, 60.0)


def test_the_budget_of_training_is_learnt_from_its_steps(trainer: Trainer) -> None:
    trainer.steps(10, 25.0)
    assert trainer.watch.budget == 500
    trainer.passes(400)
    trainer.steps(1)
    assert not trainer.told
    trainer.passes(2_000)
    assert isinstance(trainer.told[-1], Stalled)


def test_before_there_are_steps_enough_the_first_ones_may_take_as_long_as_loading(trainer: Trainer) -> None:
    trainer.steps(2)
    trainer.passes(190)
    assert not trainer.told
    trainer.passes(20)
    assert stall(trainer).budget == 200


def test_it_is_said_once_and_again_when_it_moves(trainer: Trainer) -> None:
    trainer.steps(10)
    trainer.passes(1_000)
    trainer.steps(3)
    stalled, moving = trainer.told
    assert isinstance(stalled, Stalled)
    assert isinstance(moving, Moving)
    assert (moving.phase, moving.stalled, moving.seconds) == (Phase.TRAINING, stalled, 1_001)
    trainer.passes(5_000)
    assert isinstance(trainer.told[-1], Stalled), "the next one is another one"


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        (["step {step} loss 2.0", "***** Running Evaluation *****", "  3%|▎ | 1/32 [00:01<00:40]"], Phase.EVALUATING),
        (["{{'loss': 2.0}}", " 20%|██ | {step}/55 [00:12<00:35]", "Saving model checkpoint to out"], Phase.SAVING),
        (["***** Running Evaluation *****", "{{'eval_loss': 2.0}}", "step {step} loss 2.0", "hello"], Phase.TRAINING),
        (["{{'eval_loss': 2.0}}", " 20%|██ | {step}/55 [00:12<00:35]", ""], Phase.TRAINING),
    ],
)
def test_what_begins_right_after_a_step_is_the_phase_from_there(
    trainer: Trainer, lines: list[str], phase: Phase
) -> None:
    """Both within one look, as is the rule: whoever evaluates does so at once after a step."""
    trainer.steps(10)
    trainer.step = 11
    trainer.passes(1.0, *(line.format(step=11) for line in lines))
    assert trainer.watch.phase is phase


@pytest.mark.parametrize(
    "line", ["Evaluating:   3%|▎ | 1/32 [00:01<00:40]", "***** Running Evaluation *****", "评估中"]
)
def test_an_evaluation_has_a_budget_of_its_own(trainer: Trainer, line: str) -> None:
    trainer.steps(10)
    trainer.passes(5, line)
    trainer.passes(299)
    assert not trainer.told
    trainer.passes(10)
    assert stall(trainer).phase is Phase.EVALUATING


def test_a_bar_of_an_evaluation_keeps_it_alive_and_the_same_state_of_it_does_not(trainer: Trainer) -> None:
    trainer.steps(10)
    for done in range(5):
        trainer.passes(1, f"Evaluating: {done}/32")
        trainer.passes(250)
    assert not trainer.told
    trainer.prints("Evaluating: 4/32", 310)
    assert stall(trainer).phase is Phase.EVALUATING


def test_a_bar_without_a_name_is_a_sign_of_life_as_long_as_it_moves(trainer: Trainer) -> None:
    """An evaluation as transformers shows it; and again after the next steps."""
    for _ in range(2):
        trainer.steps(10)
        for done in range(5):
            trainer.passes(50, f"  {done}%|██ | {done}/32 [00:10<00:10,  1.11it/s]")
    assert not trainer.told
    for _ in range(760):  # three times as long as the pause before
        trainer.passes(1, " 12%|██ | 4/32 [00:10<00:10,  1.11it/s]")
    assert stall(trainer).phase is Phase.TRAINING


def test_a_save_that_grows_is_alive_and_one_that_does_not_has_stalled(trainer: Trainer) -> None:
    trainer.steps(10)
    for _ in range(10):
        trainer.passes(1, saves=True)
        trainer.passes(350)
    assert not trainer.told
    trainer.passes(60)
    assert stall(trainer).phase is Phase.SAVING


def test_a_save_is_known_by_its_line_also_right_after_a_step(trainer: Trainer) -> None:
    trainer.steps(10)
    trainer.step = 11
    trainer.passes(1, "step 11 loss 2.0", "Saving model checkpoint to out/checkpoint-11")
    assert trainer.watch.phase is Phase.SAVING
    trainer.passes(390)
    assert not trainer.told
    trainer.steps(1)
    assert trainer.watch.phase is Phase.TRAINING


def test_pauses_seen_before_do_not_become_step_times(trainer: Trainer) -> None:
    trainer.steps(20)
    for _ in range(3):
        trainer.passes(30, "Saving the checkpoint.")
        trainer.passes(140)
        trainer.steps(20)
    assert trainer.watch.budget == 60, "20 times a save would be hours"
    assert not trainer.told
    trainer.passes(70)
    assert stall(trainer).phase is Phase.TRAINING


def test_a_pause_that_nobody_announces_is_allowed_again(trainer: Trainer) -> None:
    trainer.steps(20)
    trainer.passes(55)
    trainer.steps(40)
    assert trainer.watch.budget == 3 * 56
    trainer.passes(150)
    assert not trainer.told


def test_bursts_of_buffered_output_are_no_stall(trainer: Trainer) -> None:
    for _ in range(5):
        trainer.passes(50)
        for _ in range(3):
            trainer.steps(30, 0.01)
    assert not trainer.told
    trainer.passes(100)
    assert not trainer.told, "a hundred seconds are two bursts of this trainer"


def test_a_machine_that_sleeps_is_no_stall(trainer: Trainer) -> None:
    trainer.steps(10)
    trainer.passes(50)
    trainer.sleeps(8 * 3_600)
    trainer.passes(8)
    assert not trainer.told
    trainer.passes(10)
    assert stall(trainer).seconds < 62
    trainer.steps(10)
    trainer.sleeps(8 * 3_600)
    trainer.steps(10)
    assert trainer.watch.budget == 60, "and no step took eight hours"


@pytest.mark.parametrize("phase", ["starting", "loading", "training", "evaluating", "saving"])
def test_a_budget_of_zero_is_none(phase: str) -> None:
    budgets = dict.fromkeys(("starting", "loading", "training", "evaluating", "saving"), 50.0) | {phase: 0.0}
    watch = Watch(Budgets(**budgets), 0.0)
    trainer = Trainer(watch)
    if phase != "starting":
        trainer.passes(1, "hello")
    if phase not in ("starting", "loading"):
        trainer.steps(10)
    if phase == "evaluating":
        trainer.passes(1, "evaluating")
    trainer.passes(1, saves=phase == "saving")
    assert watch.phase == phase
    trainer.passes(10_000)
    assert not trainer.told


def test_a_step_counter_that_goes_back_moves_too(trainer: Trainer) -> None:
    trainer.steps(20)
    trainer.step = 0
    trainer.steps(5)
    assert not trainer.told


def test_one_that_was_taken_over_may_be_in_the_middle_of_anything() -> None:
    watch = Watch(BUDGETS, 0.0, heard=1_000, step=40)
    assert watch.phase is Phase.TRAINING
    trainer = Trainer(watch, heard=1_000, step=40)
    trainer.passes(190)
    assert not trainer.told
    trainer.passes(20)
    assert stall(trainer).phase is Phase.TRAINING


def test_of_slow_steps_three_times_is_enough() -> None:
    pace = Pace()
    for _ in range(10):
        pace.stepped(1_500.0)
    assert pace.allows(Phase.TRAINING) == 4_500
    assert Pace().allows(Phase.TRAINING) == 0


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Evaluating: 10%|█ | 1/10 [00:01<00:09]", Phase.EVALUATING),
        ("Validation DataLoader 0:  50%|█████ | 2/4 [00:00<00:00]", Phase.EVALUATING),
        ("{'eval_loss': 2.01, 'eval_runtime': 3.1, 'epoch': 1.0}", Phase.EVALUATING),
        ("(RolloutManager pid=4990) rollout_metrics.py:247 - eval 20: {'eval/aime': 0.3125}", Phase.EVALUATING),
        ("Saving model checkpoint to out/checkpoint-500", Phase.SAVING),
        ("[titan] 2026-03-01 10:05:00,001 - root - INFO - Saving the checkpoint.", Phase.SAVING),
        ("accelerate.accelerator - Saving current state to out/checkpoint-250", Phase.SAVING),
        ("Writing model shards: 100%|██| 1/1", Phase.SAVING),
        ("保存检查点到 out/500", Phase.SAVING),
        ("saving checkpoint to out", Phase.SAVING),
        ("Epoch 3:  17%|█▊ | 10/57 [00:00<00:00, 72.9it/s, v_num=3, train_loss_step=0.5, val_loss=0.7]", None),
        ("7/7 ━━━━━━━━ 1s 100ms/step - accuracy: 0.2204 - loss: 2.1663 - val_loss: 2.0", None),
        (" successfully saved checkpoint from iteration     500 to /data/ckpt", None),
        ("step 120/400 loss 2.3 lr 1e-3", None),
        ("GET /health HTTP/1.1 200 OK", None),
        ("Loading checkpoint shards:  50%|██ | 2/4", None),
        ("retrieval medieval evaluator_count=3", None),
        ("x" * 3_000 + " evaluating", None),
    ],
)
def test_what_a_line_says_of_the_phase(line: str, phase: Phase | None) -> None:
    assert named_in(line) is phase


def test_counts_of_bars_and_none_of_dates() -> None:
    assert counts_in("Map: 100%|█| 20/1000 [00:01<00:02, 3/s]") == [("1000", 20.0)]
    assert counts_in("model.safetensors:  35%|███▌ | 1.73G/4.95G [00:10<00:20]") == [("4.95G", 1.73e9)]
    assert counts_in("03/01/2026 10:00:00 - INFO - 10.0.0.7/24 up") == []
    assert counts_in("epoch 3 of 10") == []
    assert counts_in("/" * 500 + "1" * 1_500) == []
