"""The guardian and the agent's end of it, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from relay_agent import guardian
from relay_agent.guardian import cgroup
from relay_agent.output import printed
from relay_agent.pod import takeover
from relay_agent.pod.takeover import Trainer
from relay_agent.trainer import supervise
from relay_agent.trainer.leftovers import stop_leftovers
from relay_agent.trainer.supervise import Supervised
from relaytui.wire.clock import SystemClock
from relaytui.wire.errors import RelayError


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


async def test_output_and_exit_code_arrive_and_the_log_has_every_byte(tmp_path: Path) -> None:
    trainer, heard = await start(tmp_path, "printf 'one\\ntwo\\n'; echo three >&2; exit 7")
    assert await trainer.exited == 7
    await trainer.gone
    assert heard.data == b"one\ntwo\nthree\n"
    assert (tmp_path / "log").read_bytes() == heard.data
    assert (tmp_path / "log.exit").read_text() == "7\n"


async def test_an_end_that_was_known_at_the_start_is_kept_without_another_word(tmp_path: Path) -> None:
    """Its agent may die before it could say anything more."""
    trainer = Supervised(tmp_path / "log", lambda data: None, lambda lines, size: None)
    script = ("bash", "-c", "trap 'echo saved; exit 3' TERM; echo up; while :; do sleep 0.02; done")
    end = SystemClock().boot() + guardian.EARLY + 1.0
    await trainer.start(script, {"PATH": os.environ["PATH"]}, f"guard-{os.getpid()}-end", 60.0, dead_by=(end, 0.5))
    assert await trainer.exited == 3
    await trainer.gone
    assert SystemClock().boot() < end
    assert (tmp_path / "log").read_text().endswith("saved\n")


async def test_an_error_in_what_hears_the_trainer_is_an_error_of_who_waits_for_it(tmp_path: Path) -> None:
    def fails(data: bytes) -> None:
        raise ValueError(data)

    argv, env, guard = ("bash", "-c", "echo one"), {"PATH": os.environ["PATH"]}, f"guard-{os.getpid()}-fails"
    live = Supervised(tmp_path / "log", fails, lambda lines, size: None)
    await live.start(argv, env, guard, 5.0)
    late = Supervised(tmp_path / "log", fails, lambda lines, size: None)
    (tmp_path / "log").write_bytes(b"one\n")
    late.recall(supervise.Ending(0, 4, 0, "itself"), guard)
    for trainer in (live, late):
        with pytest.raises(ValueError, match="one"):
            await asyncio.wait_for(trainer.gone, 10)


async def test_a_signal_is_told_as_a_shell_tells_it(tmp_path: Path) -> None:
    trainer, _ = await start(tmp_path, "kill -9 $$")
    assert await trainer.exited == 137
    await trainer.gone


async def test_a_program_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    trainer = Supervised(tmp_path / "log", lambda data: None, lambda lines, size: None)
    with pytest.raises(RelayError, match="No such file") as refused:
        await trainer.start(("/nowhere/launch.sh",), {"PATH": "/bin"}, "guard-missing", 1.0)
    assert refused.value.exit_code == 2


async def test_stop_reaches_the_trainer_at_once_and_lets_it_save(tmp_path: Path) -> None:
    script = f"trap 'echo saved > {tmp_path}/saved; exit 143' TERM; echo up; while :; do sleep 0.05; done"
    trainer, heard = await start(tmp_path, script)
    while b"up" not in heard.data:
        await asyncio.sleep(0.01)
    asked = time.monotonic()
    trainer.stop()
    assert await trainer.exited == 143
    assert time.monotonic() - asked < 3
    assert (tmp_path / "saved").exists()
    await trainer.gone


async def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    trainer, heard = await start(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done", grace=0.3)
    while b"up" not in heard.data:
        await asyncio.sleep(0.01)
    trainer.stop()
    assert await asyncio.wait_for(trainer.exited, 10) == 137
    await asyncio.wait_for(trainer.gone, 10)


async def test_the_whole_tree_goes_daemons_and_all(tmp_path: Path) -> None:
    """Children in sessions of their own, reparented, holding the pipe open: none of them outlives the trainer."""
    script = f"""
    setsid sleep 300 & echo $! >> {tmp_path}/pids
    (setsid bash -c 'trap "" TERM; echo $$ >> {tmp_path}/pids; while :; do sleep 1; done' &)
    while [ $(wc -l < {tmp_path}/pids) -lt 2 ]; do sleep 0.01; done
    exit 0
    """
    trainer, _ = await start(tmp_path, script, grace=0.3)
    assert await asyncio.wait_for(trainer.exited, 10) == 0
    assert await asyncio.wait_for(trainer.gone, 10) >= 2
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


async def test_a_flood_is_complete_in_the_log_and_counted_where_it_was_not_read(tmp_path: Path) -> None:
    lines = 300_000
    trainer, heard = await start(tmp_path, f"seq -f 'line %.0f of the flood and some more' 1 {lines}")
    assert await asyncio.wait_for(trainer.exited, 30) == 0
    await asyncio.wait_for(trainer.gone, 30)
    assert heard.data.endswith(f"line {lines} of the flood and some more\n".encode())
    assert heard.data.count(b"\n") + heard.skipped == lines
    assert (tmp_path / "log").read_bytes().count(b"\n") == lines


async def test_a_stuck_agent_does_not_hold_up_the_trainer(tmp_path: Path) -> None:
    """While nobody reads the socket the trainer prints megabytes and goes on; afterwards the agent has them all."""
    trainer, heard = await start(
        tmp_path, f"head -c 3000000 /dev/zero | tr '\\0' x; echo; touch {tmp_path}/printed; sleep 300"
    )
    eventually((tmp_path / "printed").exists)  # blocks the loop, as a stuck agent would
    while len(heard.data) < 3_000_001:
        await asyncio.sleep(0.01)
    assert heard.data == b"x" * 3_000_000 + b"\n"
    trainer.kill()
    await trainer.gone


def test_when_the_agent_dies_the_trainer_goes_too(tmp_path: Path) -> None:
    agent = f"""
import asyncio, os, sys
from pathlib import Path
from relay_agent.trainer.supervise import Supervised
async def main():
    trainer = Supervised(Path({str(tmp_path)!r}) / "log", lambda data: None, lambda lines, size: None)
    argv = ("bash", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    pid = await trainer.start(argv, dict(os.environ), "guard-orphan", 0.2)
    print(pid, flush=True)
    await asyncio.sleep(300)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert alive(pid)
    process.kill()
    process.wait()
    eventually(lambda: not alive(pid), 5)
    eventually(lambda: not guardian.tree("guard-orphan"), 5)
    process.stdout.close()


async def test_when_the_guardian_dies_nothing_of_the_trainer_is_left(tmp_path: Path) -> None:
    trainer, heard = await start(
        tmp_path, f"setsid sleep 300 & echo $! > {tmp_path}/pid; echo up; while :; do sleep 0.1; done"
    )
    while b"up" not in heard.data:
        await asyncio.sleep(0.01)
    assert trainer._child is not None
    trainer._child.send_signal(signal.SIGKILL)
    assert await asyncio.wait_for(trainer.exited, 10) == 137
    await asyncio.wait_for(trainer.gone, 10)
    assert not alive(int((tmp_path / "pid").read_text()))
    assert stop_leftovers(trainer.guard) == 0


async def test_the_guardian_is_small_and_has_its_own_name(tmp_path: Path) -> None:
    trainer, heard = await start(tmp_path, "echo up; sleep 300")
    while b"up" not in heard.data:
        await asyncio.sleep(0.01)
    assert trainer._child is not None
    status = Path(f"/proc/{trainer._child.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Name"] == "relay-guardian"
    assert int(fields["VmRSS"].split()[0]) < 12 * 1024
    trainer.kill()
    await trainer.gone


async def test_the_guardian_takes_no_processor_from_the_trainer_and_the_trainer_gives_none_up(tmp_path: Path) -> None:
    """Woken by a line it waits for its turn; a line cost the trainer all that the guardian did with it."""
    ask = "import os; print(os.sched_getscheduler(0), os.getppid(), flush=True)"
    trainer, heard = await start(tmp_path, f"{sys.executable} -S -c '{ask}'; echo $PPID; exec sleep 60")
    while heard.data.count(b"\n") < 2:
        await asyncio.sleep(0.01)
    told, pid = heard.data.splitlines()
    assert int(told.split()[0]) == os.SCHED_OTHER
    assert os.sched_getscheduler(int(pid)) == os.SCHED_BATCH
    trainer.kill()
    await trainer.gone


async def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    trainer, heard = await start(tmp_path, "echo still here; exit 0")
    assert await asyncio.wait_for(trainer.exited, 10) == 0
    await asyncio.wait_for(trainer.gone, 10)
    assert heard.data == b"still here\n"


async def test_a_log_that_is_a_pipe_holds_up_no_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    (tmp_path / "log.foreign.1").touch()
    trainer, heard = await start(tmp_path, "echo up; while :; do sleep 0.05; done")
    while b"up" not in heard.data:
        await asyncio.sleep(0.01)
    trainer.kill()
    assert await asyncio.wait_for(trainer.exited, 5) in (137, 143)
    await asyncio.wait_for(trainer.gone, 5)
    assert (tmp_path / "log").read_bytes() == b"up\n"
    assert (tmp_path / "log.foreign.2").is_fifo()


async def test_what_is_planted_in_place_of_the_log_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("secret")
    assert await asyncio.wait_for(asyncio.to_thread(printed.read, tmp_path / "log", 0, 10), 5) == b""
    assert printed.read(tmp_path / "link", 0, 10) == b""


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


async def test_a_frozen_guardian_is_thawed_by_an_order(tmp_path: Path, marked: str) -> None:
    script = f": {marked}; trap 'exit 143' TERM; kill -STOP $PPID; touch {tmp_path}/up; while :; do sleep 0.05; done"
    trainer, _ = await start(tmp_path, script)
    while not (tmp_path / "up").exists():
        await asyncio.sleep(0.01)
    trainer.stop()
    assert await asyncio.wait_for(trainer.exited, 4) == 143
    await asyncio.wait_for(trainer.gone, 4)


async def test_a_guardian_that_its_trainer_froze_before_it_ended_is_thawed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervise, "THAW_EVERY", 0.05)
    trainer, heard = await start(tmp_path, "echo up; for i in 1 2; do kill -STOP $PPID; sleep 0.3; done; exit 5")
    assert await asyncio.wait_for(trainer.exited, 10) == 5
    await asyncio.wait_for(trainer.gone, 10)
    assert heard.data == b"up\n"
    assert capsys.readouterr().err.count("frozen") == 1


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_guardian_that_stays_frozen_is_done_without(
    tmp_path: Path, marked: str, hurried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "thaw", lambda pid: None)
    daemon = f"env -i {shutil.which('setsid')} {shutil.which('bash')} -c ': {marked}; while :; do /bin/sleep 1; done'"
    script = f": {marked}; trap '' TERM; ({daemon} &); sleep 0.5; kill -STOP $PPID; touch {tmp_path}/up"
    script += "; while :; do sleep 1; done"
    heard = Heard()
    trainer = Supervised(tmp_path / "log", heard.output, heard.skip, patience=0.2, hurried=0.2)
    await trainer.start(("bash", "-c", script), {"PATH": os.environ["PATH"]}, f"guard-{marked}", 60 if hurried else 0.3)
    while not (tmp_path / "up").exists() or len(with_word(marked)) < 3:
        await asyncio.sleep(0.01)
    trainer.stop()
    if hurried:
        trainer.kill()
    assert await asyncio.wait_for(trainer.exited, 5) == 137
    await asyncio.wait_for(trainer.gone, 5)
    assert with_word(marked) == []
    assert trainer._child is not None
    assert trainer._child.returncode == -9


async def test_a_guardian_frozen_after_the_trainer_is_not_waited_for(tmp_path: Path, marked: str) -> None:
    script = f": {marked}; (trap '' TERM; : {marked}; while :; do sleep 0.1; done) & sleep 0.2; exit 4"
    heard = Heard()
    trainer = Supervised(tmp_path / "log", heard.output, heard.skip, last_word=0.3)
    await trainer.start(("bash", "-c", script), {"PATH": os.environ["PATH"]}, f"guard-{marked}", 60)
    assert await asyncio.wait_for(trainer.exited, 5) == 4
    assert trainer._child is not None
    trainer._child.send_signal(signal.SIGSTOP)
    await asyncio.wait_for(trainer.gone, 5)
    assert with_word(marked) == []


@pytest.mark.parametrize(
    ("command", "env", "words"),
    [
        ("true", {f"V{number}": "x" * 100_000 for number in range(100)}, "too long"),
        ("true " + "x" * 200_000, {}, "too long"),
        ("true", {"A": "a\0b"}, "null byte"),
    ],
)
async def test_what_the_system_does_not_start_is_the_launchers_fault(
    tmp_path: Path, command: str, env: dict[str, str], words: str
) -> None:
    with pytest.raises(RelayError, match=words) as error:
        await start(tmp_path, command, **env)
    assert error.value.exit_code == 2
    assert len(str(error.value)) < 400


async def test_nothing_is_heard_of_a_trainer_before_it_has_started(tmp_path: Path) -> None:
    """Who starts it has something to say first: a step before the start would be taken for an earlier attempt's."""
    order: list[str] = []
    asyncio.get_running_loop().call_later(0.02, time.sleep, 0.3)  # all of it arrives in one piece
    for number in range(5):
        trainer = Supervised(tmp_path / f"log{number}", lambda data: order.append("output"), lambda lines, size: None)
        env = {"PATH": os.environ["PATH"]}
        await trainer.start(("bash", "-c", "echo step"), env, f"guard-{tmp_path.name}-{number}", 1)
        order.append("started")
        await trainer.gone
    assert order == ["started", "output"] * 5


async def needs_a_group() -> None:
    path = cgroup.make(f"probe-{os.getpid()}")
    cgroup.remove(path)
    if not path:
        pytest.skip("no control group can be made here")


STRANGER = f"env -i {shutil.which('setsid')} {shutil.which('bash')} -c ': MARK; while :; do /bin/sleep 1; done'"
"""A daemon of its own session without a variable: nothing but its group says whose it is."""


BEARING = """
import os, sys, time
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.002)
"""
"""Never the same process for long: whoever is killed has a child by then."""


@pytest.mark.parametrize("killed", [False, True], ids=["the trainer ended", "the guardian was killed"])
async def test_who_is_born_while_the_others_are_stopped_is_stopped_too(
    tmp_path: Path, marked: str, killed: bool
) -> None:
    program = f"{sys.executable} -c '{BEARING}' {marked}"
    trainer, _ = await start(tmp_path, f"({program} &); while ! test -e {tmp_path}/end; do sleep 0.02; done")
    while len(with_word(marked)) < 2:
        await asyncio.sleep(0.01)
    if killed:
        assert trainer._child is not None
        trainer._child.send_signal(signal.SIGKILL)
    else:
        (tmp_path / "end").touch()
    await asyncio.wait_for(trainer.gone, 15)
    assert with_word(marked) == []


HEADLESS = """
import ctypes, os, signal, subprocess, sys, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.close(1), os.close(2)
def work():
    subprocess.Popen(["/bin/sleep", sys.argv[2]], env={}, start_new_session=True)
    open(sys.argv[1], "w").close()
    time.sleep(300)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""Its main thread ends, and another lives on: /proc calls it a zombie, and shows neither its words nor a variable."""


@pytest.mark.parametrize("how", ["it ended", "kill", "its guardian was killed"])
@pytest.mark.parametrize("group", [True, False], ids=["group", "no group"])
async def test_a_process_without_its_main_thread_is_stopped_with_its_children(
    tmp_path: Path, how: str, group: bool
) -> None:
    number = f"3{int.from_bytes(os.urandom(3)):08d}"  # seconds that nobody else sleeps
    up, program = tmp_path / "up", tmp_path / "headless.py"
    program.write_text(HEADLESS)
    own = cgroup._place()[1]
    leave = f"echo $BASHPID > {own}/cgroup.procs;" if own and not group else ""
    script = f"({leave} exec setsid {sys.executable} {program} {up} {number}) & echo $! > {tmp_path}/pid"
    trainer, _ = await start(tmp_path, f"{script}; while ! test -e {tmp_path}/end; do sleep 0.02; done; exit 3", 0.2)
    assert trainer._child is not None
    try:
        while not up.exists() or not with_word(number):
            await asyncio.sleep(0.01)
        pid = int((tmp_path / "pid").read_text())
        eventually(lambda: b") Z " in Path(f"/proc/{pid}/stat").read_bytes())
        assert alive(pid)
        if how == "it ended":
            (tmp_path / "end").touch()
        elif how == "kill":
            trainer.kill()
        else:
            trainer._child.send_signal(signal.SIGKILL)
        await asyncio.wait_for(trainer.gone, 15)
        assert with_word(number) == []
        assert not alive(pid)
    finally:
        for left in [*with_word(number), *([pid] if alive(pid) else [])]:
            os.kill(left, signal.SIGKILL)


async def test_a_killed_guardian_leaves_no_stranger_behind(tmp_path: Path, marked: str) -> None:
    await needs_a_group()
    stranger = STRANGER.replace("MARK", marked)
    trainer, heard = await start(tmp_path, f": {marked}; ({stranger} &); sleep 0.5; echo up; sleep 300")
    while b"up" not in heard.data or len(with_word(marked)) < 2:
        await asyncio.sleep(0.01)
    assert trainer._child is not None
    trainer._child.send_signal(signal.SIGKILL)
    await asyncio.wait_for(trainer.gone, 10)
    assert with_word(marked) == []
    assert cgroup.find(trainer.guard, everywhere=True) == []


async def test_a_trainers_group_goes_with_it(tmp_path: Path, marked: str) -> None:
    await needs_a_group()
    trainer, _ = await start(tmp_path, f"({STRANGER.replace('MARK', marked)} &); echo up; exit 3", grace=0.2)
    assert await asyncio.wait_for(trainer.exited, 10) == 3
    await asyncio.wait_for(trainer.gone, 10)
    assert with_word(marked) == []
    assert cgroup.find(trainer.guard, everywhere=True) == []


async def test_groups_that_a_trainer_makes_are_its_own(tmp_path: Path, marked: str) -> None:
    """And who is frozen in one is killed all the same."""
    await needs_a_group()
    trainer, heard = await start(
        tmp_path,
        f"""own={cgroup._place()[0]}$(sed -n 's/^0:://p' /proc/self/cgroup); mkdir "$own/a" "$own/a/b"
        (echo $BASHPID > "$own/a/b/cgroup.procs"; {STRANGER.replace("MARK", marked)} &); sleep 0.5
        echo 1 > "$own/a/cgroup.freeze"; echo up; sleep 300""",
    )
    while b"up" not in heard.data:
        await asyncio.sleep(0.01)
    [group] = cgroup.find(trainer.guard)
    assert len(cgroup.members(group)) >= 3
    assert trainer._child is not None
    trainer._child.send_signal(signal.SIGKILL)
    await asyncio.wait_for(trainer.gone, 10)
    assert with_word(marked) == []
    assert cgroup.find(trainer.guard, everywhere=True) == []


async def test_without_a_group_a_trainer_runs_as_it_did(tmp_path: Path) -> None:
    assert cgroup.members("") == set()
    for nothing in (cgroup.enter, cgroup.kill, cgroup.remove):
        nothing("")
    assert cgroup.find("") == []


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
        command = [sys.executable, "-I", "-S", str(supervise.MAIN), str(theirs.fileno())]
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
