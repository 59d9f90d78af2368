"""What a trainer prints: heard at once, or let gather where nobody waits for it, and never left to fill its pipe."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_agent.guardian.output import LOOK, PIPE, Output
from relay_agent.trainer import supervise
from relay_agent.trainer.supervise import Supervised

LONG = 3_600.0
QUARTER = PIPE // 4

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="only here a pipe tells how much it holds")


class Printing:
    def __init__(self, *, pty: bool = False) -> None:
        read, self.fd = os.pipe()
        self.output = Output(read, pty=pty)
        os.set_blocking(self.fd, False)

    def print(self, size: int) -> None:
        assert os.write(self.fd, b"x" * size) == size


@pytest.fixture
def printing() -> Iterator[Printing]:
    printing = Printing()
    yield printing
    os.close(printing.fd)
    os.close(printing.output.fd)


def test_output_is_taken_at_once_until_somebody_says_otherwise(printing: Printing) -> None:
    printing.print(10)
    assert printing.output.pause() == 0
    assert printing.output.take() == b"x" * 10
    assert printing.output.pause() == 0


def test_the_first_line_after_a_silence_is_taken_at_once_and_what_follows_gathers(printing: Printing) -> None:
    printing.output.gather = LONG
    printing.print(10)
    assert printing.output.pause() == 0
    printing.output.take()
    printing.print(10)
    assert printing.output.pause() == LOOK
    printing.output.gather = 0.0
    assert printing.output.pause() == 0


def test_who_prints_much_meanwhile_is_taken_at_once_from_then_on(printing: Printing) -> None:
    printing.output.gather = LONG
    printing.output.take()
    printing.print(QUARTER - 1)
    assert printing.output.pause() == LOOK
    printing.print(1)
    assert printing.output.pause() == 0
    assert len(printing.output.take()) == QUARTER
    printing.print(10)
    assert printing.output.pause() == 0


def test_a_terminal_holds_too_little_to_be_let_gather() -> None:
    printing = Printing(pty=True)
    printing.output.gather = LONG
    printing.output.take()
    assert printing.output.pause() == 0
    os.close(printing.fd)
    assert printing.output.take() == b""
    assert printing.output.fd == -1


async def test_a_trainer_that_nobody_follows_wakes_its_agent_seldom_and_loses_nothing(tmp_path: Path) -> None:
    heard = list[bytes]()
    trainer = Supervised(tmp_path / "log", heard.append, lambda lines, size: None)
    script = "read go <go; for n in $(seq 100); do echo $n; sleep 0.01; done; exit 3"
    os.mkfifo(tmp_path / "go")
    await trainer.start(("bash", "-c", f"cd {tmp_path}; {script}"), {"PATH": os.environ["PATH"]}, "guard-gather", 5.0)
    trainer.hear(at_once=False)
    (tmp_path / "go").write_text("go\n")
    assert await trainer.exited == 3
    await trainer.gone
    assert b"".join(heard) == b"".join(b"%d\n" % n for n in range(1, 101)) == (tmp_path / "log").read_bytes()
    assert len(heard) < 50


async def test_what_has_gathered_is_heard_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is judged by the loss that was printed before it."""
    monkeypatch.setattr(supervise, "GATHER", LONG)
    heard = list[bytes]()
    trainer = Supervised(tmp_path / "log", heard.append, lambda lines, size: None)
    script = "echo one; read go <go; echo two; touch saved; read go <go"
    os.mkfifo(tmp_path / "go")
    await trainer.start(("bash", "-c", f"cd {tmp_path}; {script}"), {"PATH": os.environ["PATH"]}, "guard-take", 5.0)
    trainer.hear(at_once=False)
    async with asyncio.timeout(30):
        while not heard:
            await asyncio.sleep(0.01)
        (tmp_path / "go").write_text("go\n")
        while not (tmp_path / "saved").exists():
            await asyncio.sleep(0.01)
        assert heard == [b"one\n"]
        await trainer.catch_up()
        assert heard == [b"one\n", b"two\n"]
        (tmp_path / "go").write_text("go\n")
        await trainer.gone
    await trainer.catch_up()  # nothing is left to be asked
