"""Trainers as people run them, unchanged: killed in the midst of training and in the midst of a save, resumed by other
agents, and in the end where a run is that was left alone.

`make test-real` builds `.venv-real` for them. Nothing is loaded from a hub; all of it runs on a CPU.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Agent, Rig, eventually

from relay_agent.checkpoints.manifest import verify

HERE = Path(__file__).parent
VENV = HERE.parent.parent / ".venv-real"
SLOW = 240.0
"""Seconds until a trainer that has to be imported first has come anywhere, on a machine with much to do."""


@dataclass(frozen=True)
class Case:
    """`command`: as its user would write it for a pod; `{real}` is where the scripts lie."""

    name: str
    command: str
    total: int
    adapter: str
    metric: str = "loss"
    near: float = 0.0
    """How far the metric of a resumed run may be from one that was left alone."""
    saved: int = 0
    """What its last checkpoint calls its step, where that is not the last step."""

    every: bool = True
    """Whether it prints each step; a bar leaves some out."""
    settings: tuple[tuple[str, str], ...] = ()
    """Of the agent, besides."""

    @property
    def last_saved(self) -> int:
        return self.saved or self.total

    def __str__(self) -> str:
        return self.name


HF = '--output_dir $RELAY_OUTPUT_DIR --max_steps {total} --save_steps 8 "$@"'
CASES = (
    Case(
        "torch",
        'python {real}/torch_loop.py --out_dir $RELAY_OUTPUT_DIR --max_iters {total} --save_every 8 "$@"',
        48,
        "single_file",
    ),
    Case("hf", "python {real}/hf.py " + HF, 48, "hf_trainer"),
    Case("peft", "python {real}/hf.py --lora " + HF, 48, "hf_trainer"),
    Case("trl-sft", "python {real}/trl_train.py sft " + HF, 40, "hf_trainer"),
    Case("trl-grpo", "python {real}/trl_train.py grpo " + HF, 40, "hf_trainer", metric="reward", near=1.0),
    Case(
        "lightning",
        "python {real}/lightning_train.py --out $RELAY_OUTPUT_DIR --epochs 2 --save_steps 8"
        " ${{RELAY_RESUME_FROM:+--ckpt_path $RELAY_RESUME_FROM}}",
        58,
        "lightning",
        near=0.1,  # where in a shuffled epoch it was is not kept
        saved=56,
        every=False,
        settings=(("PTY", "true"),),  # with rich installed it shows nothing on a pipe before it ends
    ),
    Case(
        "accelerate",
        "python {real}/accelerate_loop.py --output_dir $RELAY_OUTPUT_DIR --max_train_steps {total}"
        " --checkpointing_steps 8 ${{RELAY_RESUME_FROM:+--resume_from_checkpoint $RELAY_RESUME_FROM}}",
        48,
        "diffusers",
        every=False,
    ),
    Case(
        "dcp",
        "torchrun --standalone --nproc_per_node 2 {real}/dcp.py --folder $RELAY_OUTPUT_DIR --steps {total} --interval 8"
        " ${{RELAY_RESUME_FROM:+--load $RELAY_RESUME_FROM}}",
        48,
        "torchtitan",
        near=1.0,  # of two ranks, either may say the last word
    ),
    Case(
        "keras",
        "python {real}/keras_train.py --out $RELAY_OUTPUT_DIR --epochs 4"
        " ${{RELAY_RESUME_FROM:+--load $RELAY_RESUME_FROM}}",
        60,
        "keras",
        near=0.2,
        saved=4,
        every=False,
    ),
)


@pytest.fixture
def real(rig: Rig) -> Rig:
    assert (VENV / "bin" / "torchrun").exists(), "make test-real builds what these need"
    return rig


def start(rig: Rig, case: Case, worker: str) -> Agent:
    command = case.command.format(real=shlex.quote(str(HERE / "trainers")), total=case.total)
    return rig.agent(
        None,
        worker,
        TRAIN_CMD=command,
        TARGET_STEPS=str(case.total),
        PATH=f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
        STEP_SECONDS="0.1",
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        OMP_NUM_THREADS="1",
        **dict(case.settings),
    )


def waits(agent: Agent, condition: Callable[[], Any], what: str) -> None:
    eventually(lambda: condition() or agent.process.poll() is not None, what, SLOW)
    assert agent.process.poll() is None, agent.says()


def kill_pod(agent: Agent) -> None:
    """As a pod goes: without a word to anybody."""
    agent.process.send_signal(signal.SIGKILL)
    agent.process.wait()


def series(rig: Rig, metric: str) -> dict[int, float]:
    """By step; of what was trained twice the later."""
    points = rig.call(f"/api/runs/{rig.run_id}/series?metric={metric}&points=5000")["points"]
    return {step: float(value) for _, step, value in points}


def reached(rig: Rig, epoch: int) -> int:
    """The last step of that attempt."""
    return next((row.get("last_step", 0) for row in rig.run()["attempts"] if row["epoch"] == epoch), 0)


def contents(rig: Rig, epoch: int) -> set[tuple[str, int, int]]:
    """What lies in the trainer's own folder just now."""
    found = set()
    for path in (rig.folder / "out" / f"e{epoch:08d}").rglob("*"):
        with suppress(FileNotFoundError):
            stat = path.stat()
            found.add((str(path), stat.st_size, stat.st_mtime_ns))
    return found


def offered(rig: Rig, case: Case) -> Iterator[int]:
    """Steps of what is published: all of it whole, and of the kind that it is."""
    for path in sorted((rig.folder / "ckpt").glob("step_*")):
        manifest = verify(path, rig.run_id)
        assert manifest.adapter == case.adapter
        yield manifest.step


@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_in_training_and_in_a_save_and_resumed_it_ends_as_if_left_alone(real: Rig, case: Case) -> None:
    rig, run_id = real, real.run_id
    rig.run_id = f"{run_id}-alone"
    assert start(rig, case, "pod-0").wait(SLOW) == 0, rig.agents[-1].says()
    alone = series(rig, case.metric)
    assert rig.run()["status"] == "completed"
    assert list(offered(rig, case))[-1] == case.last_saved

    rig.run_id = run_id
    first = start(rig, case, "pod-a")
    waits(first, lambda: rig.run()["newest_step"] and rig.run()["step"] > rig.run()["newest_step"], "a save")
    kill_pod(first)
    newest = list(offered(rig, case))[-1]

    second = start(rig, case, "pod-b")
    waits(second, lambda: reached(rig, 2) > newest, "a step of the second attempt")
    before = contents(rig, 2)
    waits(second, lambda: contents(rig, 2) != before, "a save of the second attempt")
    kill_pod(second)  # while it is written, as a rule
    assert list(offered(rig, case))[-1] >= newest

    third = start(rig, case, "pod-c")
    assert third.wait(SLOW) == 0, third.says()
    run = rig.run()
    assert (run["status"], run["step"]) == ("completed", case.total)
    assert list(offered(rig, case))[-1] == case.last_saved
    began = [attempt.get("started_step", 0) for attempt in run["attempts"]]
    assert began[0] == 0
    assert newest <= began[1] <= began[2] < case.total
    assert "resume.ignored" not in rig.kinds()
    resumed = series(rig, case.metric)
    assert set(resumed) == set(alone) or not case.every
    last = max(alone)
    assert last == max(resumed)
    assert resumed[last] == pytest.approx(alone[last], abs=max(case.near, 1e-3))
