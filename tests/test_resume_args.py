"""What a trainer resumes with reaches it word by word, whatever its paths are called."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from relay_agent.trainer import command as trainer


@pytest.mark.parametrize(
    "command", ["""printf '%s\\n' "$@\"""", """eval "set -- $RELAY_RESUME_ARGS"; printf '%s\\n' "$@\""""]
)
@pytest.mark.parametrize(
    "words",
    [
        ["--resume_from_checkpoint", '/mnt/my volume/it\'s "here" $HOME `x` *\\/ckpt'],
        ["resume=True", "model=/mnt/a b/last.pt", "save_dir=/mnt/a  b"],
        ["--load", "/mnt/\u4e2d\u6587/\u3000x"],
    ],
)
def test_what_a_trainer_resumes_with_stays_in_one_piece(command: str, words: list[str]) -> None:
    args = shlex.join(words)
    argv = trainer.Launch(("bash", "-c", command), "TRAIN_CMD").resuming(args)
    told = subprocess.run(argv, env={**os.environ, "RELAY_RESUME_ARGS": args}, capture_output=True, text=True)
    assert told.stdout.splitlines() == words, told.stderr


def test_a_cold_start_and_a_launcher_of_ours_get_no_words() -> None:
    command = trainer.Launch(("bash", "-c", 'printf "%s" "$#" "$0"'), "TRAIN_CMD")
    assert command.resuming("") == command.argv
    told = subprocess.run(command.resuming("--x y"), capture_output=True, text=True)
    assert told.stdout == "2bash", "its name stays what it was"
    launcher = trainer.Launch(("/opt/launch_sft.sh",), "launch_sft.sh")
    assert launcher.resuming("--x y") == launcher.argv
