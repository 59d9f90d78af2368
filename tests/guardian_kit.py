"""Real guardians for tests: a trainer under one, and what is alive of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay_agent import guardian
from relay_agent.trainer.supervise import Supervised


class Heard:
    def __init__(self) -> None:
        self.data = b""
        self.skipped = 0

    def output(self, data: bytes) -> None:
        self.data += data

    def skip(self, lines: int, size: int) -> None:
        self.skipped += lines


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.01)


async def start(
    tmp_path: Path, script: str, grace: float = 5.0, shell: str = "bash", **env: str
) -> tuple[Supervised, Heard]:
    heard = Heard()
    trainer = Supervised(tmp_path / "log", heard.output, heard.skip)
    argv = (shell, "-c", script)
    await trainer.start(argv, {"PATH": os.environ["PATH"], **env}, f"guard-{os.getpid()}-{tmp_path.name}", grace)
    return trainer, heard


def alive(pid: int) -> bool:
    return pid in guardian.processes()


@pytest.fixture
def marked() -> Iterator[str]:
    """The path of nothing: a word in a command line, by which what is left is found and killed."""
    word = f"left-{os.urandom(6).hex()}"
    yield word
    for pid in with_word(word):
        os.kill(pid, signal.SIGKILL)


def with_word(word: str) -> list[int]:
    found = []
    for pid in guardian.processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line:
            found.append(pid)
    return found
