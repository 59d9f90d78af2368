"""Trainers as people run them, unchanged: killed in the midst of training and in the midst of a save, resumed by other
agents, and in the end where a run is that was left alone.

`make test-real` builds `.venv-real` for them. Nothing is loaded from a hub; all of it runs on a CPU.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Agent, Rig, eventually

from relay_agent import guardian
from relay_agent.checkpoints.manifest import Manifest, verify

HERE = Path(__file__).parent
VENV = HERE.parent.parent / ".venv-real"
SLOW = 400.0
"""Seconds until a trainer that has to be imported first has come anywhere, on a machine with much to do."""


@dataclass(frozen=True)
class Case:
    """`command`: as its user would write it for a pod; `{real}` is where the scripts lie."""

    name: str
    command: str
    total: int
    adapter: str
    held: tuple[str, str, str]
    """Where it is killed, attempt by attempt, as `trainers/moments.py` has it: between two saves, and twice in one."""
    bases: tuple[int, int, int]
    """Steps of the checkpoints that the attempts after those begin with: the newest that was whole."""
    metric: str = "loss"
    near: float = 1e-3
    """How far the metric of a resumed run may be from one that was left alone: as it is rounded, unless it says why."""
    same: tuple[str, ...] = ()
    """Files of its last checkpoint that are the same to the byte, then; with a pattern, these members of an archive."""
    saved: int = 0
    """What its last checkpoint calls its step, where that is not the last step."""
    every: bool = True
    """Whether it prints each step; a bar leaves some out."""
    late: bool = False
    """Whether it may show a step with the metric of the one before: rich draws when it likes. It tells them itself."""
    over: bool = False
    """Whether it writes over its only file, so that not each save can be had."""
    stripped: bool = False
    """Whether it does so in the end with what no run can go on from."""
    settings: tuple[tuple[str, str], ...] = ()
    """Of the agent, besides."""

    @property
    def last_saved(self) -> int:
        return self.saved or self.total

    def __str__(self) -> str:
        return self.name


HF = '--output_dir $RELAY_OUTPUT_DIR --max_steps {total} --save_steps 8 "$@"'
HF_FILES = ("model.safetensors", "optimizer.pt")
CASES = (
    Case(
        "torch",
        'python {real}/torch_loop.py --out_dir $RELAY_OUTPUT_DIR --max_iters {total} --save_every 8 "$@"',
        40,
        "single_file",
        ("step 12", "end ckpt.pt 1", "end ckpt.pt 2"),
        (8, 8, 16),
        same=("ckpt.pt",),
        over=True,
    ),
    Case(
        "hf",
        "python {real}/hf.py " + HF,
        40,
        "hf_trainer",
        ("step 12", r"end checkpoint-\d+/optimizer.pt 1", r"open checkpoint-\d+/trainer_state.json 2"),
        (8, 8, 16),
        same=HF_FILES,
    ),
    Case(
        "peft",
        "python {real}/hf.py --lora " + HF,
        40,
        "hf_trainer",
        ("step 12", r"end checkpoint-\d+/scheduler.pt 1", r"open checkpoint-\d+/trainer_state.json 2"),
        (8, 8, 16),
        same=("adapter_model.safetensors", "optimizer.pt"),
    ),
    Case(
        "trl-sft",
        "python {real}/trl_train.py sft " + HF,
        32,
        "hf_trainer",
        ("step 12", r"open checkpoint-\d+/config.json 1", r"end checkpoint-\d+/rng_state.pth 2"),
        (8, 8, 16),
        same=HF_FILES,
    ),
    Case(
        "trl-grpo",
        "python {real}/trl_train.py grpo " + HF,
        32,
        "hf_trainer",
        ("step 12", r"end checkpoint-\d+/training_args.bin 1", r"open checkpoint-\d+/trainer_state.json 2"),
        (8, 8, 16),
        metric="reward",
        same=HF_FILES,
    ),
    Case(
        "lightning",
        "python {real}/lightning_train.py --out $RELAY_OUTPUT_DIR --epochs 2 --save_steps 8"
        " ${{RELAY_RESUME_FROM:+--ckpt_path $RELAY_RESUME_FROM}}",
        56,
        "lightning",
        ("step 12", r"rename .*\.ckpt 1", r"rename .*\.ckpt 2"),
        (8, 8, 16),
        late=True,
        same=(r"epoch=1-step=56.ckpt [^/]+/data/\d+",),
        every=False,
        settings=(("PTY", "true"),),  # with rich installed it shows nothing on a pipe before it ends
    ),
    Case(
        "accelerate",
        "python {real}/accelerate_loop.py --output_dir $RELAY_OUTPUT_DIR --max_train_steps {total}"
        " --checkpointing_steps 8 ${{RELAY_RESUME_FROM:+--resume_from_checkpoint $RELAY_RESUME_FROM}}",
        40,
        "diffusers",
        ("step 12", r"end checkpoint-\d+/optimizer.bin 1", r"end checkpoint-\d+/random_states_0.pkl 2"),
        (8, 8, 16),
        same=("model.safetensors", "optimizer.bin"),
        every=False,
    ),
    Case(
        "dcp",
        "torchrun --standalone --nproc_per_node 2 {real}/dcp.py --folder $RELAY_OUTPUT_DIR --steps {total} --interval 8"
        " ${{RELAY_RESUME_FROM:+--load $RELAY_RESUME_FROM}}",
        40,
        "torchtitan",
        ("step 12", r"open step-\d+/__1_0.distcp 1", r"rename step-\d+/.metadata 2"),
        (8, 8, 16),
        same=("__0_0.distcp", "__1_0.distcp"),
    ),
    Case(
        "keras",
        "python {real}/keras_train.py --out $RELAY_OUTPUT_DIR --epochs 4"
        " ${{RELAY_RESUME_FROM:+--load $RELAY_RESUME_FROM}}",
        60,
        "keras",
        ("step 20", r"end ck-\d+.keras 1", r"end ck-\d+.keras 2"),
        (1, 1, 2),
        same=("ck-04.keras model.weights.h5",),
        saved=4,
        every=False,
    ),
    Case(
        "yolo",
        'python {real}/yolo.py epochs={total} save_dir=$RELAY_OUTPUT_DIR/runs/detect/train "$@"',
        30,
        "ultralytics",
        ("step 12", r"end .*/last.pt 1", r"end .*/best.pt 3"),
        (11, 11, 14),
        over=True,
        stripped=True,
    ),
)


@pytest.fixture
def real(rig: Rig) -> Rig:
    assert (VENV / "bin" / "torchrun").exists(), "make test-real builds what these need"
    return rig


def start(rig: Rig, case: Case, worker: str, hold: str = "") -> Agent:
    command = case.command.format(real=shlex.quote(str(HERE / "trainers")), total=case.total)
    return rig.agent(
        None,
        worker,
        TRAIN_CMD=command,
        TARGET_STEPS=str(case.total),
        PATH=f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
        STEP_SECONDS="0.1",
        HOLD_AT=hold,
        HOLD_MARK=str(rig.root / f"{worker}.held"),
        TRUTH=str(truth(rig, worker)),
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        OMP_NUM_THREADS="1",
        **dict(case.settings),
    )


def truth(rig: Rig, worker: str) -> Path:
    """Where the trainer of that pod tells what each step came to, if it does; `trainers/text.py` has it."""
    return rig.root / f"{worker}.truth"


def waits(agent: Agent, condition: Callable[[], Any], what: str) -> None:
    def come() -> Any:
        with suppress(TimeoutError):  # of a commander that has no time to answer
            return condition() or agent.process.poll() is not None

    eventually(come, what, SLOW)
    assert agent.process.poll() is None, agent.says()


def kill_pod(agent: Agent) -> None:
    """As a pod goes: all of it, and without a word to anybody."""
    agent.process.send_signal(signal.SIGSTOP)
    parents = {pid: parent for pid, (parent, _) in guardian.processes().items()}
    pod = {agent.process.pid}
    while more := {pid for pid, parent in parents.items() if parent in pod} - pod:
        pod |= more
    for pid in pod:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    agent.process.wait()


def series(rig: Rig, metric: str) -> dict[int, float]:
    """By step; of what was trained twice the later."""
    points = rig.call(f"/api/runs/{rig.run_id}/series?metric={metric}&points=5000")["points"]
    return {step: float(value) for _, step, value in points}


def told_by_itself(rig: Rig, worker: str) -> dict[int, float]:
    lines = (line.split() for line in truth(rig, worker).read_text().splitlines())
    return {int(step): float(value) for step, value in lines}


def last_step(rig: Rig, epoch: int) -> int:
    """Of that attempt, as far as it is known."""
    return next((row.get("last_step", 0) for row in rig.run()["attempts"] if row["epoch"] == epoch), 0)


def offered(rig: Rig, case: Case) -> list[Manifest]:
    """What is published: all of it whole, and of the kind that it is."""
    manifests = [verify(path, rig.run_id) for path in sorted((rig.folder / "ckpt").glob("step_*"))]
    assert {manifest.adapter for manifest in manifests} == {case.adapter}
    return sorted(manifests, key=lambda manifest: manifest.seq)


def differing(rig: Rig, case: Case, alone: dict[int, float], cut: bool = True) -> dict[int, tuple[float, float | None]]:
    """Where it is not what it was in the run that was left alone. `cut`: a bar shows its last step with the values of
    the one before, until it was drawn once more."""
    told = series(rig, case.metric)
    common = told.keys() & alone.keys()
    assert len(common) >= len(told) / 2, (told, alone)
    return {
        step: (told[step], alone.get(step))
        for step in (told if case.every else sorted(common)[: -1 if cut else None])
        if not any(
            told[step] == pytest.approx(alone.get(at), abs=case.near) for at in range(step - case.late, step + 1)
        )
    }


def sums(rig: Rig, case: Case, manifest: Manifest) -> dict[str, int]:
    """Of what is to be the same in it."""
    found = {}
    for wanted in case.same:
        name, _, members = wanted.partition(" ")
        (path,) = (rig.folder / "ckpt" / manifest.name).rglob(name)
        if members:
            with zipfile.ZipFile(path) as archive:
                each = {member.filename: member.CRC for member in archive.infolist()}
            found |= {f"{name} {member}": crc for member, crc in each.items() if re.fullmatch(members, member)}
        else:
            found[name] = zlib.crc32(path.read_bytes())
    assert len(found) >= len(case.same)
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_in_training_and_in_saves_and_resumed_it_ends_as_if_left_alone(real: Rig, case: Case) -> None:
    rig, run_id = real, real.run_id
    rig.run_id = f"{run_id}-alone"
    assert start(rig, case, "pod-0").wait(SLOW) == 0, rig.agents[-1].says()
    assert rig.run()["status"] == "completed"
    alone = told_by_itself(rig, "pod-0") if case.late else series(rig, case.metric)
    assert not differing(rig, case, alone, cut=False)
    assert max(alone.values()) - min(alone.values()) > 5 * case.near, "one that began anew would not be seen"
    kept = offered(rig, case)[-1]
    wanted = sums(rig, case, kept)

    rig.run_id = run_id
    for epoch, (hold, before, base) in enumerate(zip(case.held, (0, *case.bases), case.bases, strict=False), 1):
        agent = start(rig, case, f"pod-{epoch}", hold)
        mark = rig.root / f"pod-{epoch}.held"
        waits(agent, lambda mark=mark: mark.exists() and mark.read_text(), f"{hold} of attempt {epoch}")
        waits(agent, lambda epoch=epoch, before=before: last_step(rig, epoch) > before, f"a step of attempt {epoch}")
        # What only the pod's own agent has heard is lost with it; the next one does not train it again.
        waits(agent, lambda base=base: max(series(rig, case.metric), default=0) >= base, f"step {base}")
        if epoch == 1:
            waits(agent, lambda base=base: rig.run()["newest_step"] == base, "what it saved before")
        kill_pod(agent)
        assert re.fullmatch(hold.rpartition(" ")[0], mark.read_text())
        assert offered(rig, case)[-1].step <= base, f"it was killed before this: {mark.read_text()}"
        assert not differing(rig, case, alone)

    last = start(rig, case, "pod-4")
    assert last.wait(SLOW) == 0, last.says()
    run = rig.run()
    assert (run["status"], run["step"]) == ("completed", case.total)
    assert not differing(rig, case, alone, cut=False)
    assert max(series(rig, case.metric)) == max(alone)
    assert len(series(rig, case.metric)) == len(alone) or not case.every

    begun = [int(event["name"][5:13]) for event in rig.events() if event["event"] == "resume.checkpoint"]
    assert begun[:2] == list(case.bases[:2])
    assert begun[2:] == [case.bases[2]] or (case.over and begun[2:] == [case.bases[1]])
    assert "resume.ignored" not in rig.kinds()
    newest = offered(rig, case)[-1]
    for manifest in (kept, newest):
        assert manifest.step == case.last_saved or (case.stripped and manifest.step > case.bases[2])
    assert sums(rig, case, newest) == wanted
