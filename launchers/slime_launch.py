#!/usr/bin/env python3
"""slime under relay-agent: what slime_sft.sh and slime_rl.sh run.

Relay's variables become slime's flags, in whatever `ray job submit` the command makes (`slime_ray.py`); the `pkill -9
python` and `ray stop --force` with which slime's own scripts begin reach nothing but this attempt (`slime_tame.py`); on
SIGTERM the Ray job is stopped by its id. The exit code is the job's own, or

  3    RELAY_RESUME_FROM holds no checkpoint that slime could go on from
  81   the job ended well without a single rollout: nothing was trained
  82   the command ended well and had submitted no job
  143  it was stopped

Standard library only, for whatever python3 the image has (3.9 or newer).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import slime_flags
import slime_pace
import slime_ray
import slime_tame
from slime_tame import say

EXIT_CANNOT_RESUME, EXIT_NOTHING_TRAINED, EXIT_NO_JOB = 3, 81, 82
STOPPED = 128 + signal.SIGTERM
TRAIN = {"rl": "train.py", "sft": "train_async.py"}
JOB_STOP, JOB_STOP_AGAIN = 20.0, 5.0
"""Seconds that the command has to end once its job was stopped, and until that is tried again. Ray gives a job 3 s."""


class Launch:
    def __init__(self, mode: str, words: list[str]) -> None:
        self.mode = mode
        self.words = words
        self.stopping = False
        self.child: subprocess.Popen[bytes] | None = None
        self.state = Path(os.devnull)

    def run(self) -> int:
        load = self.load()
        # Sockets of Ray lie some 70 letters below this folder, and a socket's path may have 107.
        self.state = Path(tempfile.mkdtemp(prefix="relay-slime-", dir="/tmp"))
        try:
            env = self.environment(load)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, frame: self.stop())
            code = self.wait(self.command(env), env)
            return self.judge(code)
        finally:
            slime_tame.end_all(self.state)
            shutil.rmtree(self.state, ignore_errors=True)

    # -- before --------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, object]:
        """What slime is to load, and the rollout it begins with. Empty: a cold start."""
        given = os.environ.get("RELAY_RESUME_FROM", "")
        if not given:
            return {}
        found = slime_flags.checkpoint_in(Path(given))
        if found is None:
            say(f"{given} holds no checkpoint of slime's: no iter_N that a tracker names, or that is the only one")
            raise SystemExit(EXIT_CANNOT_RESUME)
        return {"from": str(found.folder), "rollout": found.rollout, "layout": found.names}

    def environment(self, load: dict[str, object]) -> dict[str, str]:
        output = Path(os.environ.get("RELAY_OUTPUT_DIR") or Path.cwd() / "relay-output")
        save = output / "slime"
        save.mkdir(parents=True, exist_ok=True)
        if load.get("layout"):  # the tracker is lacking: slime would start from the beginning without a word
            load["from"] = str(slime_flags.lay_out(self.state / "load", load))
        wish = {
            "save": str(save),
            "before": slime_ray.read(save / slime_flags.TRACKER),
            "load": load,
            "interval": self.interval(output),
        }
        (self.state / "wish.json").write_text(json.dumps(wish), encoding="utf-8")
        env = dict(os.environ)
        env.update(PYTHONUNBUFFERED="1", RAY_DEDUP_LOGS="0")  # lines that look alike are steps that were made
        slime_tame.tame(self.state, env)
        return env

    def interval(self, output: Path) -> str:
        """Rollouts between saves, where it is not the script's own that counts."""
        wish, seconds = os.environ.get("SLIME_SAVE_INTERVAL", ""), os.environ.get("RELAY_CKPT_INTERVAL", "")
        found = slime_pace.interval(wish, seconds, output)
        if wish == "auto":
            known = f"every {found} rollouts, as RELAY_CKPT_INTERVAL is {seconds} s" if found else ""
            say(f"saving {known or 'as the script says: how long a rollout takes is known to the next attempt'}")
        return found

    def command(self, env: dict[str, str]) -> list[str]:
        """A script or program as it is; flags alone are those of slime's own training script."""
        if self.words and not self.words[0].startswith("-"):
            first = self.words[0]
            return ["bash", *self.words] if first.endswith(".sh") else self.words
        here = Path(os.environ.get("SLIME_DIR") or ("." if Path(TRAIN[self.mode]).exists() else "/root/slime"))
        script = here / TRAIN[self.mode]
        flags = self.words[1:] if self.words[:1] == ["--"] else self.words
        gpus = os.environ.get("SLIME_NUM_GPUS", "")
        start = ["--head", "--disable-usage-stats"] + (["--num-gpus", gpus] if gpus else [])
        ray = str(self.state / "bin" / "ray")
        code = self.wait([ray, "start", *start], env)
        if self.stopping:
            raise SystemExit(STOPPED)
        if code:
            say(f"Ray did not start (exit code {code})")
            raise SystemExit(code)
        return [ray, "job", "submit", "--", "python3", str(script), *flags]

    # -- meanwhile -----------------------------------------------------------------------------------------------

    def wait(self, argv: list[str], env: dict[str, str]) -> int:
        """In a session of its own: SIGTERM to our group is for us alone, and its job is stopped in order."""
        if self.stopping:
            return STOPPED
        try:
            self.child = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            say(f"{argv[0]} cannot be started: {error.strerror}")
            return 127
        ask_at = give_up = 0.0
        while True:
            try:
                return _shell_code(self.child.wait(0.2))
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if self.stopping and now >= ask_at:  # more than once: it may have been about to be submitted
                ask_at = now + JOB_STOP_AGAIN
                had_one = slime_ray.stop_jobs(self.state)
                give_up = give_up or (now + JOB_STOP if had_one else now)  # nothing else tells it to end
            if give_up and now >= give_up:
                slime_tame.signal_group(self.child.pid, signal.SIGTERM)
                slime_tame.end_all(self.state)

    def stop(self) -> None:
        self.stopping = True

    # -- afterwards ----------------------------------------------------------------------------------------------

    def judge(self, code: int) -> int:
        """`code`: of the command. The job's own counts before it: a script may hide it."""
        if self.stopping:
            return STOPPED
        ended = slime_ray.result(self.state)
        if ended is None:
            if code == 0:
                say("the command ended with 0 and had submitted no job through `ray job submit`: nothing was trained")
                return EXIT_NO_JOB
            return code
        if ended.code == 0 and not ended.trained:
            say("the job ended with 0 without a rollout: nothing was trained" + (ended.why and ": " + ended.why))
            return EXIT_NOTHING_TRAINED
        return ended.code


def _shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def main(argv: list[str]) -> int:
    if len(argv) < 2 or argv[0] not in TRAIN:
        sys.stderr.write("usage: slime_launch.py sft|rl SCRIPT [ARGUMENT...] | slime_launch.py sft|rl --FLAG...\n")
        return 2
    # `pkill -9 python`, called by its whole path, means whatever is called so: not us.
    slime_tame.name_process("relay-slime")
    try:
        return Launch(argv[0], argv[1:]).run()
    except OSError as error:
        say(f"{error.filename or 'the system'}: {error.strerror or error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
