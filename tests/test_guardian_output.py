"""What a trainer prints: heard at once, or let gather where nobody waits for it, and never left to fill its pipe."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from relay_agent import guardian
from relay_agent.guardian import output, terminal
from relay_agent.guardian.log import LOG_QUEUE
from relay_agent.guardian.main import Guardian
from relay_agent.guardian.output import LOOK, PIPE, Output
from relay_agent.output import printed
from relay_agent.trainer import supervise
from relay_agent.trainer.hearing import AT_ONCE, LEAST, LOG_WAIT, Hearing
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
        assert await trainer.catch_up()
        assert heard == [b"one\n", b"two\n"]
        (tmp_path / "go").write_text("go\n")
        await trainer.gone
    assert await trainer.catch_up(), "nothing is left to be asked"


class Kept:
    """A guardian in this process, between a trainer that prints into its pipe and an agent. Its volume takes nothing
    until `log` is started."""

    def __init__(self, tmp_path: Path, *, pty: bool = False) -> None:
        self.agent, theirs = socket.socketpair()
        self.agent.settimeout(10.0)
        theirs.setblocking(False)
        self.guardian = Guardian(theirs.detach(), str(tmp_path / "log"), "guard-x", 60.0, 0.0, "-", ["true"], pty=pty)
        read, self.prints = terminal.make() if pty else os.pipe()
        self.guardian.output = Output(read, pty=pty)
        self.wake, self.waker = os.pipe()
        os.set_blocking(self.wake, False)
        self.said = b""

    def serve(self, seconds: float = 0.0) -> None:
        for fd, events in self.guardian._ready(self.wake, seconds):
            self.guardian._serve(fd, events, self.wake)
        self.guardian._on_time()
        self.agent.setblocking(False)
        with suppress(BlockingIOError):
            while more := self.agent.recv(1 << 20):
                self.said += more

    def told(self) -> list[tuple[bytes, int]]:
        """What it said: the kind, and for TAKEN the number, for the rest how many bytes."""
        told, said = list[tuple[bytes, int]](), self.said
        while said:
            kind, _, length = guardian.HEADER.unpack(said[: guardian.HEADER.size])
            payload, said = said[guardian.HEADER.size :][:length], said[guardian.HEADER.size + length :]
            told.append((kind, int(payload) if kind == guardian.TAKEN else length))
        return told

    def close(self) -> None:
        for fd in (self.prints, self.guardian.output.fd, self.guardian.line.fd, self.wake, self.waker):
            os.close(fd)
        self.agent.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.close()


def test_who_asks_for_what_was_printed_is_answered_once_it_is_taken_however_slow_the_volume(kept: Kept) -> None:
    """A checkpoint was judged by all but the last line, in which the loss had gone."""
    for _ in range(LOG_QUEUE):
        kept.guardian.log.put(0, b"")
    os.write(kept.prints, b"loss: nan\n")
    kept.guardian.obey(guardian.TAKE + b"1")
    kept.serve()
    kept.guardian.obey(guardian.TAKE + b"2")
    kept.serve()
    assert guardian.TAKEN not in dict(kept.told())
    kept.guardian.log.start()  # the volume is back
    for _ in range(200):
        kept.serve(0.05)
        if guardian.TAKEN in dict(kept.told()):
            break
    said = kept.told()
    assert said[0] == (guardian.OUTPUT, 10)
    assert [number for kind, number in said if kind == guardian.TAKEN] == [2], "it answers the first, too"
    kept.guardian.log.close(10.0, "0")


def test_a_volume_that_never_answers_makes_no_heap_of_questions(kept: Kept) -> None:
    for _ in range(LOG_QUEUE):
        kept.guardian.log.put(0, b"")
    os.write(kept.prints, b"one\n")
    for number in range(1000):
        kept.guardian.obey(guardian.TAKE + str(number).encode())
    assert len(kept.guardian.takes) <= 16
    kept.guardian.log.start()
    for _ in range(200):
        kept.serve(0.05)
        if kept.told()[-1:] == [(guardian.TAKEN, 999)]:
            break
    assert kept.told()[-1] == (guardian.TAKEN, 999), "it answers those before it, too"
    kept.guardian.log.close(10.0, "0")


@pytest.mark.parametrize("pty", [False, True], ids=["pipe", "terminal"])
def test_a_trainer_that_prints_without_end_does_not_keep_the_answer_back(tmp_path: Path, pty: bool) -> None:
    kept = Kept(tmp_path, pty=pty)
    kept.guardian.log.start()
    ends = threading.Event()

    def flood() -> None:
        with suppress(BlockingIOError):  # full, as it is told to end
            while not ends.is_set():
                os.write(kept.prints, b"x" * 4096)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        until = time.monotonic() + 10
        kept.guardian.obey(guardian.TAKE + b"7")
        while (guardian.TAKEN, 7) not in kept.told():
            assert time.monotonic() < until
            kept.serve(0.05)
    finally:
        ends.set()
        os.set_blocking(kept.prints, False)
        while flooding.is_alive():
            kept.serve(0.01)
        flooding.join()
    kept.guardian.log.close(10.0, "0")
    kept.close()


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
        assert await first
        await asyncio.sleep(0)
        assert not second.done(), "it was printed after the first was answered"
        tell(guardian.EXITED, b"0")
        tell(guardian.GONE, b"0")
        await trainer.gone
        assert await second
    theirs.close()


async def test_who_is_not_answered_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "ANSWERS", 0.01)
    ours, theirs = socket.socketpair()
    trainer = Supervised(tmp_path / "log", lambda data: None, lambda lines, size: None)
    theirs.sendall(guardian.HEADER.pack(guardian.STARTED, 0, 1) + b"1")
    await trainer.adopt(ours, os.getpid(), "guard-of-nobody", 5.0)
    assert not await trainer.catch_up()
    theirs.sendall(
        guardian.HEADER.pack(guardian.EXITED, 0, 1) + b"0" + guardian.HEADER.pack(guardian.GONE, 0, 1) + b"0"
    )
    await trainer.gone
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


async def test_a_flood_leaves_others_their_turn_and_a_line_now_and_then_costs_none(tmp_path: Path) -> None:
    hearing = Hearing(tmp_path / "log", lambda data: None, lambda lines, size: None, 0, whole=True)
    turns, at = 0, 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def hears(size: int, times: int) -> int:
        nonlocal at
        before = turns
        for _ in range(times):
            await hearing.hear(at, b"x" * size)
            at += size
        return turns - before

    task = asyncio.create_task(others())
    await asyncio.sleep(0)
    assert await hears(10, 1) == 0
    assert await hears(guardian.CHUNK, 4) == 4
    assert await hears(10, 10 * AT_ONCE // LEAST) == 10
    task.cancel()
