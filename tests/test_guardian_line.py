"""The guardian's line to its agent: whatever comes over it, and whoever calls, costs the trainer nothing."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from guardian_kit import alive, eventually

from relay_agent import guardian
from relay_agent.pod import takeover
from relay_agent.pod.takeover import Trainer
from relay_agent.trainer import leftovers, spawn
from relay_agent.trainer.leftovers import stop_leftovers


class Bare:
    """A real guardian with a trainer, and the agent's end of the line to it."""

    def __init__(
        self, tmp_path: Path, script: str, log: Path | None = None, pod: Path | None = None, orphan: float = 60.0
    ) -> None:
        ours, theirs = socket.socketpair()
        self.folder = pod or tmp_path / "pod"
        if pod is None:
            self.folder.mkdir()
        self.guard = f"bare-{os.getpid()}-{random.getrandbits(64):x}"
        self.said = tmp_path / "said"
        command = [sys.executable, "-I", "-S", str(spawn.MAIN), str(theirs.fileno())]
        command += [
            str(log or tmp_path / "log"),
            self.guard,
            "1.0",
            str(orphan),
            str(self.folder),
            "--",
            "bash",
            "-c",
            script,
        ]
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stderr=said,
                cwd=tmp_path,
                env={"PATH": os.environ["PATH"], guardian.MARKER: self.guard},
            )
        theirs.close()
        self.line = ours
        self.line.settimeout(10.0)
        kind, _, payload = self.hear()
        self.alone = payload if kind == guardian.ALONE else None
        if kind == guardian.ALONE:
            kind, _, payload = self.hear()
        assert kind == guardian.STARTED
        self.trainer = int(payload)
        self.until(guardian.OUTPUT)  # it has its trap

    def hear(self) -> tuple[bytes, int, bytes]:
        """The next thing that it says."""
        with self.line.makefile("rb", buffering=0) as file:

            def exactly(length: int) -> bytes:
                data = b""
                while len(data) < length and (more := file.read(length - len(data))):
                    data += more
                return data

            kind, offset, length = guardian.HEADER.unpack(exactly(guardian.HEADER.size))
            return kind, offset, exactly(length)

    def until(self, kind: bytes) -> bytes:
        """What it says of that kind."""
        while (said := self.hear())[0] != kind:
            continue
        return said[2]

    def call(self) -> None:
        """Be its next agent."""
        self.line.close()
        self.line = socket.socket(socket.AF_UNIX)
        self.line.settimeout(10.0)
        takeover._connect(self.line, str(self.folder / guardian.SOCKET))
        self.line.sendall(guardian.HELLO + self.guard.encode() + b"\n")

    def close(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()
        stop_leftovers(self.guard)


LONG = "trap 'echo saved; touch saved; exit 3' TERM; while :; do echo at work; sleep 0.05; done"


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    made = Bare(tmp_path, LONG)
    try:
        yield made
    finally:
        made.close()


ODD = [
    b"", b"\n", b"\n" * 5000, b"D\n", b"Dnan\n", b"Dinf\n", b"D-1\n", b"D1e999\n", b"D" + b"9" * 5000 + b"\n",
    b"D1_0x\n", b"D\xff\n", b"KK\n", b"T \n", b"K", b"T", b"X" * 300_000, b"\0" * 70_000 + b"\n", "Dö\n".encode(),
]  # fmt: skip
"""None is an order: half of one at the most."""


@pytest.mark.parametrize("seed", range(3))
def test_no_byte_from_its_socket_ends_the_guardian(bare: Bare, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        junk = rng.choice(ODD) if rng.random() < 0.5 else rng.randbytes(rng.randint(1, 20_000))
        junk = junk.replace(b"\nK\n", b"").replace(b"\nT\n", b"").replace(b"\nD", b"\nd")
        with contextlib.suppress(OSError):  # it may be full
            bare.line.settimeout(0.2)
            bare.line.sendall(junk)
        if rng.random() < 0.3:
            bare.line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if rng.random() < 0.6:
            bare.call()
        assert bare.process.poll() is None, bare.said.read_text()
        assert alive(bare.trainer)
    bare.call()
    assert bare.hear()[0] == guardian.STARTED
    bare.line.sendall(b"half of one\n" + guardian.STOP + b"\n")
    assert bare.until(guardian.EXITED) == b"3"
    assert bare.process.wait(10) == 0
    assert bare.said.read_text() == ""


def test_what_fails_in_the_guardian_is_said_and_the_trainer_lives_on(tmp_path: Path) -> None:
    """Without a thread, a descriptor or room in memory now and then: it serves whatever can be served."""
    bare = Bare(tmp_path, LONG)
    try:
        limits = [(resource.RLIMIT_NOFILE, 1), (resource.RLIMIT_AS, 1 << 20)]
        for which, limit in limits:
            before = resource.prlimit(bare.process.pid, which)
            resource.prlimit(bare.process.pid, which, (limit, before[1]))
            for _ in range(3):
                with contextlib.suppress(OSError):  # who calls while it cannot answer waits, or is turned away
                    bare.call()
                    bare.line.sendall(b"D1e3000\n")
                assert bare.process.poll() is None, bare.said.read_text()
            if which == resource.RLIMIT_NOFILE:
                eventually(lambda: b"relay-guardian: " in bare.said.read_bytes())
            resource.prlimit(bare.process.pid, which, before)
        assert alive(bare.trainer)
        bare.call()
        assert bare.hear()[0] == guardian.STARTED
        bare.line.sendall(guardian.KILL + b"\n")
        bare.until(guardian.GONE)
        assert not alive(bare.trainer)
    finally:
        bare.close()


@pytest.mark.parametrize("word", [b"", b"H\n", b"Hsomebody\n", b"T\n", b"K\n", b"H" + b"x" * 5000, b"half of it"])
def test_who_does_not_say_that_it_is_an_agent_is_none(tmp_path: Path, word: bytes) -> None:
    """It is not obeyed, the trainer is stopped for want of an agent as if nobody had called, and a true one is heard
    beside any number of those."""
    bare = Bare(tmp_path, LONG, orphan=2.0)
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    try:
        bare.line.close()
        gone = time.monotonic()
        for stranger in strangers:
            takeover._connect(stranger, str(bare.folder / guardian.SOCKET))
            stranger.sendall(word)
        bare.call()
        assert bare.hear()[0] == guardian.STARTED
        assert time.monotonic() - gone < 2.0, "the clock has not run out yet"
        bare.line.close()
        more = socket.socket(socket.AF_UNIX)
        strangers.append(more)
        takeover._connect(more, str(bare.folder / guardian.SOCKET))
        more.sendall(word)
        assert bare.process.wait(15) == 0
        assert (bare.folder / guardian.ENDED).read_text().split()[0::3] == ["3", "orphan"]
    finally:
        for stranger in strangers:
            stranger.close()
        bare.close()


@pytest.mark.parametrize("frozen", [False, True], ids=["it has another agent", "it stays frozen"])
def test_a_guardian_that_does_not_listen_costs_no_save(
    bare: Bare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frozen: bool
) -> None:
    monkeypatch.setattr(takeover, "GREETING", 0.3)
    bare.call()
    assert bare.hear()[0] == guardian.STARTED
    if frozen:
        monkeypatch.setattr(takeover, "thaw", lambda pid: None)
        bare.process.send_signal(signal.SIGSTOP)
    note = SimpleNamespace(guard=bare.guard, grace=1.0)
    found = takeover._look(bare.folder, note)  # type: ignore[arg-type]
    assert (tmp_path / "saved").exists()
    assert not alive(bare.trainer)
    assert found.trainer is (Trainer.CRASHED if frozen else Trainer.STOPPED)


@pytest.mark.parametrize("left", [False, True], ids=["trainer", "what it left"])
def test_a_stop_that_its_guardian_does_not_hear_of_is_noted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """By who may die before it has seen to what was saved."""
    monkeypatch.setattr(takeover, "GREETING", 0.3)
    script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"
    if left:
        script = f"setsid bash -c \"trap 'exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.02; done\" & "
        script += f"echo up; while ! test -e {tmp_path}/up; do sleep 0.02; done; exit 0"
    bare = Bare(tmp_path, script)
    try:
        bare.call()
        assert bare.hear()[0] == guardian.STARTED
        if left:
            bare.until(guardian.EXITED)
        takeover._look(bare.folder, SimpleNamespace(guard=bare.guard, grace=5.0))  # type: ignore[arg-type]
        assert bare.process.wait(10) == 0
        assert (bare.folder / guardian.ENDED).read_text().split()[::3] == ["0", "order"]
        assert (tmp_path / "log.exit").read_text() == "0 order\n"
    finally:
        bare.close()


def test_who_asks_nobody_to_stop_says_so_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainer had ended by itself, and the guardian is at its last work, on a slow volume."""
    monkeypatch.setattr(leftovers, "SWEEPS", 0.1)
    asked = list[str]()
    assert not leftovers.let_save(os.getpid(), 1.0, lambda: False, lambda: asked.append("it was asked"))
    assert asked == []


def test_an_agent_whose_predecessor_called_and_died_at_once_is_heard(bare: Bare) -> None:
    """A guardian that was frozen, or slow, finds both in its queue."""
    bare.line.close()
    bare.process.send_signal(signal.SIGSTOP)
    bare.call()  # who dies before it is heard
    bare.call()
    bare.process.send_signal(signal.SIGCONT)
    assert bare.hear()[0] == guardian.STARTED


def test_a_silent_caller_is_sent_away(bare: Bare) -> None:
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    try:
        bare.line.close()
        for stranger in strangers:
            takeover._connect(stranger, str(bare.folder / guardian.SOCKET))
        bare.call()
        assert bare.hear()[0] == guardian.STARTED, "after as many as it hears at once"
        for stranger in strangers[:8]:
            stranger.settimeout(10)
            assert stranger.recv(1) == b""
    finally:
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_all_of_a_pods_processes_does_not_end_the_guardian(bare: Bare, number: int) -> None:
    os.kill(bare.process.pid, number)
    bare.line.sendall(guardian.STOP + b"\n")
    assert bare.until(guardian.EXITED) == b"3"


def test_a_name_that_is_no_text_is_said_and_ends_nothing(tmp_path: Path) -> None:
    """Neither the socket nor the log can be made there, and both names go into what is said of that."""
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    folder.mkdir()
    bare = Bare(folder, LONG, log=folder / "none" / "log", pod=folder / "none")
    try:
        kinds = {bare.hear()[0] for _ in range(3)}
        assert kinds <= {guardian.LOG_LOST, guardian.OUTPUT, guardian.STARTED}
        assert bare.alone is not None
        assert b"\xff\xfe" in bare.alone
        assert alive(bare.trainer)
    finally:
        bare.close()
