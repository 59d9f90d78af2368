"""What a look at a command foresees: a program, a folder or a script that is not there, and whether that is certain."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from relay_agent.trainer import foreseen

SCRIPT = "there is no nosuch.py in {here}"
PROGRAM = "there is no pyhton3 on the PATH"
TRAINS = """#!/bin/sh
for word; do case $word in *.py) [ -e "$word" ] && : >"${0%/*}/trained" ;; esac; done
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "train.sh").touch(mode=0o644)
    (tmp_path / "sub" / "inner.py").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python3", "torchrun", "launch.sh"):
        (programs / name).write_text(TRAINS)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for name in ("BASH_ENV", "CDPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("pyhton3 train.py", PROGRAM),
        ("exec pyhton3 train.py; echo done", PROGRAM),
        ("A=1 B='2 3' pyhton3 --x \"$X\"", PROGRAM),
        ("pyhton3 train.py > log 2>&1", PROGRAM),
        ("pyhton3 train.py 2>&1 | tee train.log", PROGRAM),
        ("pyhton3 train.py && echo done;", PROGRAM),
        ("set -e\npyhton3 train.py\necho done", PROGRAM),
        ("set -euo pipefail; pyhton3 train.py; echo done", PROGRAM),
        ("set -o errexit; pyhton3 train.py; echo done", PROGRAM),
        ("exec python3 nosuch.py --x 1", SCRIPT),
        ("exec python3 -u nosuch.py", SCRIPT),
        ('python3 nosuch.py "$@"', SCRIPT),
        ("python3 nosuch.py --lr $LR", SCRIPT),
        ("torchrun --nproc-per-node 2 nosuch.py", SCRIPT),
        ("cd sub && python3 train.py", "there is no train.py in {here}/sub"),
        ("set -e; export A=1; cd nope && exec python3 train.py", "there is no folder {here}/nope"),
        ("exec pyhton3 train.py && echo done; echo over", PROGRAM),
        ("./nosuch", "there is no ./nosuch in {here}"),
        ("exec /opt/nosuch/bin/python3 train.py", "there is no /opt/nosuch/bin/python3"),
        ("./train.sh --x", "./train.sh in {here} is not an executable file"),
        ("./sub", "./sub in {here} is not an executable file"),
    ],
)
def test_a_command_that_cannot_train_is_known_for_certain(command: str, words: str, here: Path) -> None:
    gone = foreseen.missing(command)
    assert gone is not None
    assert gone.words.startswith(words.format(here=here))
    assert gone.certain
    subprocess.run(["bash", "-c", command], capture_output=True, timeout=30, check=False)
    assert not (here / "bin" / "trained").exists(), "bash thinks so, too"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("pyhton3 train.py; python3 train.py", PROGRAM),  # without `set -e` bash goes on
        ("pyhton3 train.py & wait", PROGRAM),
        ("pyhton3 --version && true || python3 train.py", PROGRAM),
        ("yse | python3 train.py", "there is no yse on the PATH"),  # it trains all the same
        ("set -e; pyhton3 a.py && echo done; python3 train.py", PROGRAM),
        ("set -e; pyhton3 train.py | tee log; python3 train.py", PROGRAM),
        ("set -e; set +e; pyhton3 train.py; python3 train.py", PROGRAM),
        ("PATH+=:/opt/nosuch/bin pyhton3 train.py", PROGRAM),
        ("pyhton3 train.py; echo 'no end", PROGRAM),
        ("cd nope; python3 train.py", "there is no folder {here}/nope"),
        ("export PATH=/opt/nosuch/bin; pyhton3 train.py", PROGRAM),
        ("PATH=/opt/nosuch/bin pyhton3 train.py", PROGRAM),
        ("torchrun --standalone nosuch.py", SCRIPT),  # is it what --standalone is given?
        ("python3 nosuch.py # of mine", SCRIPT),
        ("python3 nosuch.py $(cp train.py nosuch.py)", SCRIPT),
        ("python3 nosuch.py `cp train.py nosuch.py`", SCRIPT),
    ],
)
def test_what_is_missing_and_may_not_matter_is_not_certain(command: str, words: str, here: Path) -> None:
    gone = foreseen.missing(command)
    assert gone is not None
    assert gone.words.startswith(words.format(here=here))
    assert not gone.certain


@pytest.mark.parametrize(
    "command",
    [
        "python3 train.py --x 1",
        "cd sub\nexec python3 inner.py",
        "python3 -m nosuch",
        "python3 -c 'print(1)'",
        "python3 $SCRIPT",
        "$PROGRAM nosuch.py",
        "cd $WHERE && python3 nosuch.py",
        "cd nope || python3 train.py",
        "pyhton3 train.py || python3 train.py",
        "if true; then x; fi",
        "python3 'no end",
        "torchrun -m nosuch.run nosuch.py",
        "torchrun --no-python ./nosuch.py",
        "bash launch.sh",  # where bash looks, too
        "bash -s nosuch.sh < train.sh",
        "python3 2> log < train.py",
        "python3 - < train.py",
        "launch.sh nosuch.py",
        "exec 2>&1; python3 train.py",  # a descriptor, and no program
        "exec 3>log && python3 train.py",
        "2>&1 python3 train.py",
        "cd - && python3 train.py",  # where it was before
        "cd -P; python3 train.py",
        "train() { python3 train.py; }; train",
        "",
    ],
)
def test_of_what_only_bash_makes_out_nothing_is_said(command: str) -> None:
    assert foreseen.missing(command) is None


@pytest.mark.parametrize("name", ["BASH_ENV", "CDPATH", "BASH_FUNC_command_not_found_handle%%"])
def test_what_changes_how_bash_looks_leaves_nothing_certain(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "() { :; }" if "%%" in name else "/nowhere")
    gone = foreseen.missing("pyhton3 train.py")
    assert gone is not None
    assert not gone.certain


def test_what_trains_here_does(here: Path) -> None:
    """What the look at `trained` above rests on."""
    subprocess.run(["bash", "-c", "cd sub; exec python3 -u inner.py"], timeout=30, check=True)
    assert (here / "bin" / "trained").exists()
