"""A copy of the helper is what an exec of the program is, to who started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import programs
import pytest
from cli_kit import clean_environment

pytestmark = pytest.mark.skipif(programs.CLONE is None, reason="there is nothing but exec here")


@contextmanager
def serving(state: Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A commander that listens."""
    command = [programs.TUI, "serve", "--port", "0", "--json", "--state", state]
    with programs.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **how) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"{\n"
            yield process
        finally:
            process.kill()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        [programs.TUI, "runs", "--state", "empty"],
        [programs.TUI, "serve", "--help"],
        [programs.TUI, "nonsense"],
        [programs.TUI, "restore", "nothing", "--state", "empty"],
        [programs.AGENT, "example"],
        [programs.AGENT],
    ],
    ids=lambda words: " ".join([words[0].name, *words[1:]]),
)
def test_it_says_and_returns_the_same(words: list[str | Path], tmp_path: Path) -> None:
    env = clean_environment(HOME=str(tmp_path), ODD=os.fsdecode(b"\xff"))
    ways = [
        run(words, cwd=tmp_path, env=env, input=b"no\n", capture_output=True, timeout=60)
        for run in (programs.run, subprocess.run)
    ]
    copied, executed = [(done.returncode, done.stdout, done.stderr) for done in ways]
    assert copied == executed


def test_it_is_a_child_in_its_own_place_that_is_signalled_and_waited_for(tmp_path: Path) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with serving(Path("state"), cwd=tmp_path, start_new_session=True) as process:
            place = Path(f"/proc/{process.pid}")
            assert programs.__file__.encode() in cmdline(process.pid)
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            assert [int(field) for field in fields[1:4]] == [os.getpid(), process.pid, process.pid]
            assert (place / "cwd").readlink() == tmp_path
            ours = {path.readlink() for path in Path("/proc/self/fd").iterdir() if path.exists()}
            theirs = {path.readlink() for path in (place / "fd").iterdir() if int(path.name) > 2}
            shared = {str(each) for each in ours & theirs}
            assert not any(each.startswith(("pipe:", "socket:")) for each in shared), shared
            process.send_signal(number)
            assert process.wait(20) == code
        assert not place.exists()
    assert (tmp_path / "state" / "key").exists()


@pytest.mark.parametrize(
    "way",
    [{"env": {**os.environ, "PYTHONUTF8": "0"}}, {"preexec_fn": os.getpid}, {"pass_fds": (0,)}, {"umask": 0o77}],
    ids=lambda way: next(iter(way)),
)
def test_what_is_asked_for_in_another_way_is_an_exec(way: dict[str, Any], tmp_path: Path) -> None:
    with serving(tmp_path / "state", **way) as process:
        assert programs.__file__.encode() not in cmdline(process.pid)


def test_so_is_another_program() -> None:
    done = programs.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)
    assert done.stdout == b"1\n"
