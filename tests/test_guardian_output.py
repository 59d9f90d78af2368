"""What a trainer prints: heard at once, or let gather where nobody waits for it, and never left to fill its pipe."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_agent import guardian
from relay_agent.guardian import output
from relay_agent.guardian.output import LOOK, PIPE, Output
from relay_agent.output import printed
from relay_agent.trainer import supervise
from relay_agent.trainer.hearing import LOG_WAIT, Hearing
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


def test_so_does_a_pipe_that_could_not_be_made_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PIPE", 8 << 10)
    printing = Printing()
    printing.output.gather = LONG
    printing.output.take()
    assert printing.output.pause() == 0
    os.close(printing.fd)
    os.close(printing.output.fd)


def test_where_nobody_tells_how_much_has_gathered_all_is_taken_at_once(
    printing: Printing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guardian that failed there at each look would serve nobody any more."""

    def refuse(*_: object) -> int:
        raise OSError(25, "Inappropriate ioctl for device")

    printing.output.gather = LONG
    printing.output.take()
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert printing.output.pause() == 0
    monkeypatch.undo()
    assert printing.output.pause() == 0, "it is not asked again"


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


async def test_all_that_was_printed_is_heard_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears of the end judges what was saved by what was printed."""
    monkeypatch.setattr(supervise, "GATHER", LONG)
    heard, late = list[bytes](), list[bytes]()
    trainer = Supervised(
        tmp_path / "log", lambda data: (late if trainer.exited.done() else heard).append(data), lambda lines, size: None
    )
    script = "echo one; read go <go; echo two; exit 3"
    os.mkfifo(tmp_path / "go")
    await trainer.start(("bash", "-c", f"cd {tmp_path}; {script}"), {"PATH": os.environ["PATH"]}, "guard-end", 5.0)
    trainer.hear(at_once=False)
    async with asyncio.timeout(30):
        while not heard:
            await asyncio.sleep(0.01)
        (tmp_path / "go").write_text("go\n")
        assert await trainer.exited == 3
        await trainer.gone
    assert (heard, late) == ([b"one\n", b"two\n"], [])


async def test_what_the_guardian_says_of_its_own_accord_is_no_answer(tmp_path: Path) -> None:
    """It tells a slow agent how far the output is; that may be on its way when the agent asks."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def tell(kind: bytes, payload: bytes = b"") -> None:
        theirs.sendall(guardian.HEADER.pack(kind, 0, len(payload)) + payload)

    async def asked() -> bytes:
        return await asyncio.get_running_loop().sock_recv(theirs, 100)

    heard = list[bytes]()
    trainer = Supervised(tmp_path / "log", heard.append, lambda lines, size: None)
    tell(guardian.STARTED, b"1")
    await trainer.adopt(ours, os.getpid(), "guard-of-nobody", 5.0)
    async with asyncio.timeout(30):
        first = asyncio.create_task(trainer.catch_up())
        assert await asked() == b"O1\n"
        tell(guardian.OUTPUT)
        tell(guardian.OUTPUT, b"two\n")
        while not heard:
            await asyncio.sleep(0.01)
        assert not first.done()
        second = asyncio.create_task(trainer.catch_up())
        assert await asked() == b"O2\n"
        tell(guardian.TAKEN, b"1")
        await first
        await asyncio.sleep(0)
        assert not second.done(), "it was printed after the first was answered"
        tell(guardian.EXITED, b"0")
        tell(guardian.GONE, b"0")
        await trainer.gone
        await second
    theirs.close()


async def test_a_log_that_takes_long_to_read_is_no_lost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guardian has its time for the last bytes from when all before them were read."""
    comes = [b"one\n", b"", b"two\n", b"", b"three\n"]
    clock, later = time.monotonic, 0.0

    def read(path: Path, offset: int, length: int) -> bytes:
        nonlocal later
        data = comes.pop(0)
        later += LOG_WAIT if data else 0.0
        return data

    monkeypatch.setattr(time, "monotonic", lambda: clock() + later)
    monkeypatch.setattr(printed, "read", read)
    heard, lost = list[bytes](), list[int]()
    hearing = Hearing(tmp_path / "log", heard.append, lambda lines, size: lost.append(size), 0, whole=True)
    await hearing.hear(14, b"")
    assert (heard, lost) == ([b"one\n", b"two\n", b"three\n"], [])
