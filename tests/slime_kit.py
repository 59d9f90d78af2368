"""Stand-ins for what slime needs and a test machine has not: `ray`, `train.py`, and a script that begins as slime's do.

Nothing real can be hit: PATH has these and a few harmless programs, and no pkill but one that only says it was called.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from agent_rig import LAUNCHERS

RAY = r"""
import json, os, signal, subprocess, sys, time
from pathlib import Path
home = Path(os.environ["FAKE_RAY"])
words = sys.argv[1:]
with (home / "calls").open("a") as file:
    file.write(" ".join(words) + "\n")

def value(flag):
    return words[words.index(flag) + 1] if flag in words else None

def job(name):
    return home / ("job-" + name)

if words[0] == "start":
    port, folder = value("--dashboard-port"), Path(value("--temp-dir"))
    (folder / "session_latest" / "logs").mkdir(parents=True)
    daemon = [sys.executable, "-c", "import time; time.sleep(600)", "raylet"]
    child = subprocess.Popen(daemon, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (home / ("cluster-" + port)).write_text(str(folder))
    sys.exit(0)
if words[0] == "stop":
    sys.exit("every Ray on this machine would end")
port = value("--address").rpartition(":")[2]
if not (home / ("cluster-" + port)).exists():
    sys.exit("no cluster at " + port)
if words[1] == "submit":
    assert "--no-wait" in words, words
    folder = job(value("--submission-id"))
    folder.mkdir()
    logs = Path((home / ("cluster-" + port)).read_text()) / "session_latest" / "logs"
    (folder / "log").symlink_to(logs / ("job-driver-" + value("--submission-id") + ".log"))
    command = words[words.index("--") + 1:]
    runner = [sys.executable, __file__, "run", str(folder), *command]
    subprocess.Popen(runner, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
elif words[1] == "logs":
    folder, at = job(words[-1]), 0
    cut = int(os.environ.get("FAKE_FOLLOW_BYTES", "0"))
    first = not (folder / "followed").exists()
    (folder / "followed").touch()
    while True:
        over = (folder / "status").exists()
        data = (folder / "log").read_bytes()[at:] if (folder / "log").exists() else b""
        if cut and first:
            data = data[: max(0, cut - at)]
        at += len(data)
        os.write(1, data)
        if over and not data or (cut and first and at >= cut):
            break
        time.sleep(0.02)
elif words[1] == "status":
    folder = job(words[-1])
    status = (folder / "status").read_text() if (folder / "status").exists() else "RUNNING"
    said = {"SUCCEEDED": "Job '%s' succeeded", "FAILED": "Job '%s' failed", "STOPPED": "Job '%s' was stopped"}
    print("-----\n" + said.get(status, "Status for job '%s': " + status) % words[-1] + "\n-----")
elif words[1] == "stop":
    folder = job(words[-1])
    (folder / "stopped").touch()
    try:
        os.killpg(int((folder / "pid").read_text()), signal.SIGTERM)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
"""
RUN = r"""
if words[0] == "run":
    folder = Path(words[1])
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(words[2:], stdout=log, stderr=log, start_new_session=True)
        (folder / "pid").write_text(str(child.pid))
        code = child.wait()
    status = "STOPPED" if (folder / "stopped").exists() else "FAILED" if code else "SUCCEEDED"
    (folder / "status.tmp").write_text(status)
    (folder / "status.tmp").replace(folder / "status")
    sys.exit(0)
"""
TRAIN = r"""
import os, sys, time, zipfile
from pathlib import Path
words = sys.argv[1:]

def value(flag, default=None):
    found = default
    for at, word in enumerate(words):
        if word == flag:
            found = words[at + 1]
    return found

print("flags " + " ".join(words), flush=True)
save, load = Path(value("--save")), Path(value("--load"))
tracker = load / "latest_checkpointed_iteration.txt"
start = int(tracker.read_text()) + 1 if tracker.exists() else 0
if tracker.exists():
    assert (load / ("iter_%07d" % (start - 1)) / "mp_rank_00" / "model_optim_rng.pt").exists()
    state = load / ("rollout/global_dataset_state_dict_%d.pt" % (start - 1))
    print("load metadata from %s" % state if state.exists() else "Checkpoint %s does not exist." % state, flush=True)
start = int(value("--start-rollout-id", start))
last, interval = int(value("--num-rollout")), int(value("--save-interval"))
for rollout in range(start, last):
    time.sleep(float(os.environ.get("FAKE_ROLLOUT_SECONDS", "0")))
    if str(rollout) == os.environ.get("FAKE_CRASH_AT"):
        sys.exit(int(os.environ.get("FAKE_EXIT", "1")))
    at = "[2026-03-01 10:00:09]"
    print("(RolloutManager pid=4990) %s data.py:135 - rollout %d: {'rollout/raw_reward': 0.4}" % (at, rollout))
    print("(MegatronTrainRayActor pid=5121) %s model.py:918 - step %d: {'train/loss': 0.5}" % (at, rollout))
    sys.stdout.flush()
    if (rollout + 1) % interval == 0 or rollout == last - 1:
        folder = save / ("iter_%07d" % rollout) / "mp_rank_00"
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "model_optim_rng.pt", "w") as file:
            file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
            file.writestr("archive/version", b"3\n")
        (save / "latest_checkpointed_iteration.txt").write_text(str(rollout))
        (save / "rollout").mkdir(exist_ok=True)
        with zipfile.ZipFile(save / ("rollout/global_dataset_state_dict_%d.pt" % rollout), "w") as file:
            file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
"""
HEAD = """#!/bin/bash
# begins as scripts of slime's do, in words of its own
pkill -9 sglang
ray stop --force
pkill -9 ray
pkill -9 python
"""
BODY = r"""#!/bin/bash
set -e
ARGS=(--save /root/elsewhere --load /root/elsewhere/ --save-interval 2 --num-rollout ${ROLLOUTS:-5})
ray start --head --node-ip-address 127.0.0.1 --num-gpus 8 --dashboard-host=0.0.0.0 --dashboard-port=8265
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"env_vars": {"A": "b c"}}' \
   -- python3 %(train)s ${ARGS[@]} %(more)s
"""
PYTHON = Path(sys.executable).resolve()
PROGRAMS = ("bash", "sh", "env", "sleep", "cat", "dirname", "mkdir", "touch", "test")


class Slime:
    """A folder with the stand-ins. `whole` is the script, `stock` the same without what it begins with."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.ray_home = root / "ray"
        self.output = root / "out"
        self.train = root / "train.py"
        for folder in (self.bin, self.ray_home):
            folder.mkdir(parents=True)
        self.train.write_text(TRAIN)
        first, _, rest = RAY.partition('if words[0] == "start":')
        self.program("ray", first + RUN + 'if words[0] == "start":' + rest)
        for name in ("pkill", "killall"):
            self.program(name, f"open({str(root / 'real-kills')!r}, 'a').write({name!r})")
        for name in PROGRAMS:
            found = shutil.which(name)
            assert found, name
            (self.bin / name).symlink_to(found)
        # Without site-packages: of the many that are started here none needs them.
        (self.bin / "python3").write_text(f'#!/bin/sh\nexec {PYTHON} -S -E "$@"\n')
        (self.bin / "python3").chmod(0o755)
        self.whole = self.script(text=HEAD + BODY).rename(root / "run-whole.sh")
        self.stock = self.script()

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!{PYTHON} -SE\n{text}")
        (self.bin / name).chmod(0o755)

    def script(self, more: str = "", text: str = BODY) -> Path:
        path = self.root / "run-stock.sh"
        path.write_text(text % {"train": self.train, "more": more} if "%(" in text else text)
        path.chmod(0o755)
        return path

    def env(self, **variables: object) -> dict[str, str]:
        return {
            "PATH": str(self.bin),
            "FAKE_RAY": str(self.ray_home),
            "RELAY_OUTPUT_DIR": str(self.output),
            "RELAY_RUN_ID": "run.1",
            "RELAY_EPOCH": "3",
            "HOME": str(self.root),
            "SLIME_DIR": str(self.root),
            **{name: str(value) for name, value in variables.items()},
        }

    def start(self, *words: object, mode: str = "rl", **variables: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [LAUNCHERS / f"slime_{mode}.sh", *map(str, words)],
            env=self.env(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=self.root,
        )

    def run(self, *words: object, mode: str = "rl", **variables: object) -> tuple[int, str]:
        process = self.start(*words, mode=mode, **variables)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def calls(self, *begin: str) -> list[str]:
        """Of the real `ray`, those that begin so."""
        path = self.ray_home / "calls"
        return [line for line in path.read_text().splitlines() if line.startswith(begin)] if path.exists() else []

    def left(self) -> list[int]:
        """What still runs of any of its attempts."""
        wanted = f"FAKE_RAY={self.ray_home}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def published(self, rollout: int) -> Path:
        """What an attempt that saved this rollout has left, as Relay publishes it."""
        folder = self.root / "published"
        weights = folder / f"iter_{rollout:07d}" / "mp_rank_00" / "model_optim_rng.pt"
        weights.parent.mkdir(parents=True)
        weights.touch()
        (folder / "latest_checkpointed_iteration.txt").write_text(str(rollout))
        (folder / "rollout").mkdir()
        (folder / "rollout" / f"global_dataset_state_dict_{rollout}.pt").touch()
        return folder

    @property
    def saved(self) -> Path:
        return self.output / "slime"
