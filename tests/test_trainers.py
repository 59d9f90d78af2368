"""The shipped trainers: they learn, they resume to the same bytes, and the mock misbehaves as it says."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

LAUNCHERS = Path(__file__).parents[1] / "launchers"
CHAR_LM = LAUNCHERS / "char_lm.py"
MOCK = LAUNCHERS / "mock_trainer.py"
STEPS = {"sft": 40, "rl": 60}
"""By then each has learned enough to show."""


def environment(**variables: str | Path) -> dict[str, str]:
    """A pod's: small, no UTF-8 locale, nothing of this test's."""
    return {"PATH": os.environ["PATH"], "LC_ALL": "C", **{name: str(value) for name, value in variables.items()}}


@dataclass
class Pod:
    """One attempt after another in the same place, each resuming from the newest marked checkpoint."""

    root: Path
    mode: str

    @property
    def steps(self) -> int:
        return STEPS[self.mode]

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def final(self) -> bytes:
        return (self.root / "out" / "final.bin").read_bytes()

    def marked(self) -> list[Path]:
        found = [path for path in self.staging.glob("step_*") if (path / "COMPLETE").exists()]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step_")))

    def start(self, *options: str, **variables: str) -> subprocess.Popen[str]:
        newest = self.marked()[-1] if self.marked() else ""
        return subprocess.Popen(
            [sys.executable, str(CHAR_LM), "--mode", self.mode, f"--steps={self.steps}", "--save-every=7", *options],
            env=environment(
                RELAY_CKPT_STAGING_ROOT=self.staging,
                RELAY_OUTPUT_DIR=self.root / "out",
                RELAY_RESUME_FROM=newest,
                **variables,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, **variables: str) -> list[str]:
        """To the end; the step lines it printed."""
        output, errors = self.start(*options, **variables).communicate(timeout=60)
        assert errors == ""
        return [line for line in output.splitlines() if line.startswith("step ")]


def step_lines(process: subprocess.Popen[str]) -> Iterator[int]:
    """The steps it prints, as it prints them."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            yield int(line.split()[1].split("/")[0])


def end(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=30)
    return process.returncode


def value(line: str, name: str) -> float:
    words = line.split()
    return float(words[words.index(name) + 1])


def mean(lines: list[str], name: str) -> float:
    return sum(value(line, name) for line in lines) / len(lines)


@pytest.fixture(scope="module", params=["sft", "rl"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pod, list[str]]:
    """A run that nobody interrupts, and its step lines."""
    pod = Pod(tmp_path_factory.mktemp("whole"), request.param)
    return pod, pod.run()


def test_it_learns(whole: tuple[Pod, list[str]]) -> None:
    pod, lines = whole
    assert [line.split()[1] for line in lines] == [f"{step}/{pod.steps}" for step in range(1, pod.steps + 1)]
    assert mean(lines[-10:], "loss") < 0.9 * mean(lines[:10], "loss")
    if pod.mode == "rl":
        assert mean(lines[-10:], "reward") > 2 * mean(lines[:10], "reward")
    assert [int(path.name.removeprefix("step_")) for path in pod.marked()] == [*range(7, pod.steps, 7), pod.steps]


def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_bytes(
    whole: tuple[Pod, list[str]], tmp_path: Path
) -> None:
    pod = Pod(tmp_path, whole[0].mode)
    moments = random.Random(f"moments {pod.mode}")
    for lines in (9, 15, 12, 5):
        process = pod.start()
        for _, step in zip(range(lines), step_lines(process), strict=False):
            assert step <= pod.steps
        time.sleep(moments.uniform(0, 0.05))  # anywhere in the next step, or in saving it
        process.kill()
        assert end(process) == -signal.SIGKILL
    assert len(pod.run()) < pod.steps, "it should have resumed"
    assert pod.final == whole[0].final
    assert (pod.marked()[-1] / "adam.bin").read_bytes() == (whole[0].marked()[-1] / "adam.bin").read_bytes()


def test_sigterm_saves_the_step_it_printed_and_exits_143(whole: tuple[Pod, list[str]], tmp_path: Path) -> None:
    pod = Pod(tmp_path, whole[0].mode)
    process = pod.start()
    steps = step_lines(process)
    while next(steps) < 10:
        pass
    process.terminate()
    last = max([10, *steps])
    assert end(process) == 143
    assert pod.marked()[-1].name == f"step_{last:08d}"
    assert not (pod.root / "out").exists()
    lines = pod.run()
    assert lines[0].split()[1] == f"{last + 1}/{pod.steps}"
    assert pod.final == whole[0].final


def test_sigterm_does_not_wait_for_a_slow_step(tmp_path: Path) -> None:
    pod = Pod(tmp_path, "sft")
    process = pod.start("--step-seconds", "600")
    # Nothing is printed before the first, slow, step: the kernel says when the handler is there.
    deadline = time.monotonic() + 10
    status = Path(f"/proc/{process.pid}/status")
    while not int(status.read_text().split("SigCgt:")[1].split()[0], 16) & 1 << (signal.SIGTERM - 1):
        assert time.monotonic() < deadline
    asked = time.monotonic()
    process.terminate()
    assert end(process) == 143
    assert time.monotonic() - asked < 5
    assert pod.marked()[-1].name == "step_00000001"


def test_resumed_at_its_end_it_says_so_and_writes_the_weights(whole: tuple[Pod, list[str]]) -> None:
    pod, lines = whole
    again = pod.run()
    assert again == lines[-1:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of mode sft."""
    pod = Pod(tmp_path_factory.mktemp("saved"), "sft")
    pod.run("--steps", "2")
    return pod.marked()[-1]


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "nothing", "mode", "garbage", "shape"])
def test_what_it_cannot_read_it_refuses(saved: Path, tmp_path: Path, damage: str) -> None:
    source = tmp_path / "checkpoint"
    shutil.copytree(saved, source)
    weights = source / "weights.bin"
    mode = "sft"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif damage == "flipped":
        weights.write_bytes(b"\x01" + weights.read_bytes()[1:])
    elif damage == "missing":
        weights.unlink()
    elif damage == "nothing":
        source = tmp_path / "nowhere"
    elif damage == "garbage":
        (source / "trainer.json").write_bytes(b"\xff{")
    elif damage == "shape":
        state = json.loads((source / "trainer.json").read_text())
        (source / "trainer.json").write_text(json.dumps({**state, "shapes": [[1, 1]]}))
    else:
        mode = "rl"
    done = subprocess.run(
        [sys.executable, str(CHAR_LM), "--mode", mode],
        env=environment(RELAY_CKPT_STAGING_ROOT=tmp_path / "staging", RELAY_RESUME_FROM=source),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert str(source) in done.stderr
    assert not (tmp_path / "staging").exists()


def test_lines_carry_their_time_when_asked(tmp_path: Path) -> None:
    before = time.time()
    process = Pod(tmp_path, "sft").start(RELAY_STAMP="1")
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("step "))
    process.kill()
    end(process)
    assert before < float(line.rsplit(" t=", 1)[1]) <= time.time()


def test_a_reader_that_went_away_does_not_stop_it(tmp_path: Path) -> None:
    pod = Pod(tmp_path, "sft")
    process = pod.start("--steps", "12")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
    assert pod.final
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("mode", ["sft", "rl"])
def test_launchers_hand_over_signals_and_exit_codes(tmp_path: Path, mode: str) -> None:
    script = LAUNCHERS / f"launch_{mode}.sh"
    process = subprocess.Popen(
        [str(script), "--save-every", "1000"],
        env=environment(RELAY_CKPT_STAGING_ROOT=tmp_path),
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    next(step_lines(process))
    process.terminate()
    assert end(process) == 143
    (saved,) = tmp_path.iterdir()
    assert json.loads((saved / "trainer.json").read_text())["mode"] == mode

    own = environment(**{f"SLIME_{mode.upper()}_CMD": "echo 'its own' && exit 5"})
    done = subprocess.run([str(script)], env=own, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "its own\n")


@pytest.mark.parametrize("path", sorted(LAUNCHERS.glob("*.py")), ids=lambda path: path.name)
def test_the_pods_python_may_be_old(path: Path) -> None:
    ast.parse(path.read_text(encoding="ascii"), feature_version=(3, 9))


# -- the mock --------------------------------------------------------------------------------------------------------


def mock(tmp_path: Path, *options: str, resume_from: Path | str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(MOCK), "--step-seconds", "0", *options],
        env=environment(RELAY_CKPT_STAGING_ROOT=tmp_path, RELAY_RESUME_FROM=resume_from),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def test_the_mock_counts_saves_and_resumes(tmp_path: Path) -> None:
    first = mock(tmp_path, "--steps", "10", "--crash-at", "8", "--exit-code", "7", "--nan-at", "6")
    output, _ = first.communicate(timeout=20)
    assert first.returncode == 7
    assert output.splitlines()[-1].startswith("step 7/10 loss nan ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_5"]
    second = mock(tmp_path, "--steps", "10", "--total", "unknown", resume_from=tmp_path / "step_5")
    output, _ = second.communicate(timeout=20)
    assert second.returncode == 0
    assert output.splitlines()[:2] == ["resumed at step 5", "step 6 loss 2.6786 lr 0.0100"]


def test_the_mock_ignores_sigterm_while_it_hangs(tmp_path: Path) -> None:
    process = mock(tmp_path, "--hang-at", "3", "--ignore-sigterm")
    steps = step_lines(process)
    assert [next(steps), next(steps)] == [1, 2]
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.kill()
    assert end(process) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["torn", "truncated", "empty", "symlink", "fifo"])
def test_the_mock_spoils_one_checkpoint(tmp_path: Path, kind: str) -> None:
    process = mock(tmp_path, "--steps", "10", "--bad-checkpoint", kind, "--bad-at", "6")
    assert end(process) == (-signal.SIGKILL if kind == "torn" else 0)
    good, bad = tmp_path / "step_5", tmp_path / "step_10"
    assert (good / "COMPLETE").exists()
    assert (bad / "COMPLETE").exists() == (kind != "torn")
    data = bad / "data.bin"
    assert {
        "torn": data.is_file() and data.stat().st_size == 2048,
        "truncated": data.is_file() and data.stat().st_size == 2048,
        "empty": [path.name for path in bad.iterdir()] == ["COMPLETE"],
        "symlink": data.is_symlink(),
        "fifo": data.is_fifo(),
    }[kind]
    if kind == "truncated":
        assert end(mock(tmp_path, resume_from=bad)) == 3


def test_the_mock_leaves_children(tmp_path: Path) -> None:
    process = mock(tmp_path, "--steps", "2", "--children", "2", "--daemons")
    assert process.wait(20) == 0
    children = []
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"RELAY_CKPT_STAGING_ROOT={tmp_path}".encode() in status.read_bytes():
                children.append(int(status.parent.name))
        except OSError:
            continue
    assert len(children) == 2
    assert all(os.getsid(pid) != process.pid for pid in children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    end(process)


def test_the_mock_prints_what_hurts(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(MOCK), "--steps", "1", "--step-seconds", "0", "--print-bytes", "100000"],
        env=environment(),
        stdout=subprocess.PIPE,
    )
    output, _ = process.communicate(timeout=20)
    torture, rest = output[:100_000], output[100_000:]
    assert b"\n" not in torture
    assert b"\0\xff" in torture
    assert rest == b"\nstep 1/1 loss 2.9412 lr 0.0100\n"
