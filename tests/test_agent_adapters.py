"""Trainers that know nothing of Relay, under an agent as a pod starts it: killed in a save, resumed by the next."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from agent_rig import Rig

TRAINER = """
import io, json, os, pickle, signal, sys, time, zipfile
from pathlib import Path

sys.path.insert(0, {tests!r})
from writers import hf_trainer, megatron, single_file

kind, total, dies = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
flags = dict(zip(sys.argv[4::2], sys.argv[5::2]))
out = Path(os.environ["RELAY_OUTPUT_DIR"])
at = 0
if kind == "hf_trainer" and "--resume_from_checkpoint" in flags:
    at = json.loads((Path(flags["--resume_from_checkpoint"]) / "trainer_state.json").read_text())["global_step"]
if kind == "megatron" and "--load" in flags:
    at = int((Path(flags["--load"]) / megatron.TRACKER).read_text())
    assert (Path(flags["--load"]) / f"iter_{{at:07d}}" / ".metadata").exists()
if kind == "single_file" and sys.argv[4:] == ["--init_from=resume"]:
    at = pickle.loads(zipfile.ZipFile(out / "ckpt.pt").read("ckpt/data.pkl"))["iter_num"]
save = {{"hf_trainer": hf_trainer.save, "megatron": megatron.save, "single_file": single_file.save}}[kind]
more = {{"total": total}} if kind == "hf_trainer" else {{}}
print("resumed at", at, "from", repr(os.environ["RELAY_RESUME_FROM"]), flush=True)
for step in range(at + 1, total + 1):
    print(f"step {{step}}/{{total}} loss 1.0", flush=True)
    if step % 10 == 0:
        for number, _ in enumerate(save(out, step, **more)):
            if step == dies and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        sealed = Path(os.environ["RELAY_RUN_ROOT"], "ckpt", f"step_{{step:08d}}", "manifest.json")
        until = time.monotonic() + 20
        while not sealed.exists() and time.monotonic() < until and step < total:  # the next save comes after that
            time.sleep(0.02)
"""


@pytest.mark.parametrize("kind", ["hf_trainer", "megatron", "single_file"])
def test_killed_in_a_save_and_resumed_by_the_next_agent(rig: Rig, kind: str) -> None:
    script = rig.root / "train.py"
    script.write_text(TRAINER.format(tests=str(Path(__file__).resolve().parent)))

    def command(total: int, dies: int) -> str:
        return f'exec {shlex.quote(sys.executable)} {script} {kind} {total} {dies} "$@"'

    first = rig.agent(command(20, 20))
    assert first.wait() != 0
    assert rig.checkpoints()[-1] == "step_00000010", first.says()
    assert "resumed at 0 from ''" in rig.lines()
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=1, why="again")
    second = rig.agent(command(20, 0), worker="pod-b")
    assert second.wait() == 0, second.says()
    assert any(line.startswith("resumed at 10 from '/") for line in rig.lines()), rig.lines()
    run = rig.run()
    assert (run["status"], run["step"], run["newest_step"]) == ("completed", 20, 20)
    assert [attempt.get("started_step", 0) for attempt in run["attempts"]] == [0, 10]
    assert rig.checkpoints()[-1] == "step_00000020"
    assert "checkpoint.adapter" in rig.kinds()
