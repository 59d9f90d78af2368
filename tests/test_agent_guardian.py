"""The guardian and the agent's end of it, with real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from guardian_kit import Heard, alive, eventually, start, with_word

from relay_agent import guardian
from relay_agent.guardian.main import LEFTOVER_GRACE, Guardian
from relay_agent.outcome.verdict import describe
from relay_agent.output import printed
from relay_agent.trainer import supervise
from relay_agent.trainer.leftovers import stop_leftovers
from relay_agent.trainer.supervise import Supervised
from relaytui.wire.clock import SystemClock
from relaytui.wire.errors import RelayError


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


def test_a_stop_never_outlasts_the_end_that_is_known_whatever_is_said_of_it_next(tmp_path: Path) -> None:
    """The agent says STOP and by when at once: an end that comes later must not hide that of the lease."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = Guardian(theirs.fileno(), str(tmp_path / "log"), "guard-x", 60.0, 0.0, "-", ["true"], pty=False)
        keeper.trainer.code = 0  # nothing is there to be signalled
        now = SystemClock().boot()
        for order in (guardian.DEADLINE + str(now + 10).encode(), guardian.STOP, guardian.DEADLINE + b"1e9"):
            keeper.obey(order)
        assert keeper.kill_at is not None
        assert keeper.kill_at <= time.monotonic() + 10 - guardian.EARLY


async def test_what_a_trainer_that_ended_well_left_may_end_by_itself_and_is_told_of_else(tmp_path: Path) -> None:
    """It may be what saves: cut, its word is no more than half."""
    trainer, _ = await start(tmp_path, f"(sleep 0.5; echo saved > {tmp_path}/saved) & exit 0")
    assert (await trainer.exited, await trainer.gone) == (0, 0)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "log.exit").read_text() == "0\n"
    trainer, _ = await start(tmp_path, "sleep 60 & exit 0")
    assert (await trainer.exited, await trainer.gone) == (0, 1)
    assert (tmp_path / "log.exit").read_text() == "0 leftovers\n"
    assert not trainer.stopped


@pytest.mark.parametrize("end", ["kill -9 $BASHPID", "exit 3"])
async def test_what_it_left_and_failed_counts_as_one_that_was_cut(tmp_path: Path, end: str) -> None:
    """It may have been saving: of what it made there is no more than half."""
    trainer, _ = await start(tmp_path, f"(sleep 0.3; {end}) & exit 0")
    assert (await trainer.exited, await trainer.gone) == (0, 1)
    assert (tmp_path / "log.exit").read_text() == "0 leftovers\n"


@pytest.mark.parametrize(
    "script",
    ["sleep 60 & kill $!", "setsid sleep 60 & kill -13 $!", "(sleep 0.2; exit 143) &"],
    ids=["term", "pipe", "143"],
)
async def test_what_its_script_ends_itself_as_it_is_done_has_not_failed(tmp_path: Path, script: str) -> None:
    trainer, _ = await start(tmp_path, f"{script}\nexit 0")
    assert (await trainer.exited, await trainer.gone) == (0, 0)
    assert (tmp_path / "log.exit").read_text() == "0\n"


async def test_what_was_stopped_is_told_apart_from_what_failed(tmp_path: Path) -> None:
    trainer, _ = await start(tmp_path, "(sleep 0.3; exit 3) & sleep 60 & exit 0")
    assert (await trainer.exited, await trainer.gone, trainer.cut) == (0, 2, 1)


async def test_so_does_one_that_had_failed_before_and_that_nobody_had_looked_at(tmp_path: Path) -> None:
    script = "import os, time\nif not os.fork():\n    os._exit(1)\ntime.sleep(0.2)"
    trainer, _ = await start(tmp_path, f"exec {sys.executable} -c '{script}'")
    assert (await trainer.exited, await trainer.gone) == (0, 1)
    assert (tmp_path / "log.exit").read_text() == "0 leftovers\n"


async def test_where_nothing_is_left_or_it_ends_soon_nobody_waits_for_it(tmp_path: Path) -> None:
    for script in ("exit 0", "sleep 0.2 & exit 0", "(setsid sleep 0.2 &); exit 0"):
        trainer, _ = await start(tmp_path, script)
        assert await trainer.exited == 0
        exited = time.monotonic()
        assert await trainer.gone == 0
        assert time.monotonic() - exited < LEFTOVER_GRACE - 1


class Sweeping:
    """A guardian in this process whose trainer left something that ends by nothing but SIGKILL. `says`: what its agent
    orders at which second after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, says: dict[int, bytes]) -> None:
        self.now = 1_000.0
        self.signals: list[tuple[int, float]] = []
        ours, theirs = socket.socketpair()
        with ours, theirs:
            keeper = Guardian(theirs.fileno(), str(tmp_path / "log"), "guard-x", 60.0, 0.0, "-", ["true"], pty=False)
            trainer = SimpleNamespace(
                code=code, populated=False, failed=set(), reap=self.lives, kill_group=lambda: None
            )
            trainer.left = lambda: {4_000_000} if self.lives() else set()
            trainer.signal = lambda number: None
            keeper.trainer = trainer  # type: ignore[assignment]

            def wait(wake: int, at_most: float) -> None:
                before, self.now = self.now, self.now + at_most
                for second, order in says.items():
                    if before < 1_000 + second <= self.now:
                        self.now = 1_000.0 + second  # an order wakes it
                        keeper.obey(order)

            monkeypatch.setattr(keeper, "_wait", wait)
            monkeypatch.setattr("relay_agent.guardian.main.time", SimpleNamespace(monotonic=lambda: self.now))
            monkeypatch.setattr("relay_agent.guardian.main.signal_all", lambda pids, number: self.signal(number))
            self.stopped = keeper._sweep(-1)

    def lives(self) -> bool:
        return (signal.SIGKILL,) not in {sent[:1] for sent in self.signals}

    def signal(self, number: int) -> None:
        if number not in dict(self.signals):
            self.signals.append((number, round(self.now - 1_000)))


@pytest.mark.parametrize(
    ("code", "says", "term", "kill"),
    [
        (0, {}, 3, 6),
        (0, {2: b"L3", 4: b"L3"}, 7, 10),
        (0, {2: b"L9999"}, 12, 15),  # an agent that dies does not keep it alive for long
        (0, {1: b"L3", 2: b"T"}, 2, 5),
        (0, {1: b"L9", 2: b"K"}, 2, 2),
        (0, {4: b"L9"}, 3, 6),  # it was told to end by then
        (0, {1: b"Lnan", 2: b"L-1"}, 3, 6),
        (7, {1: b"L9"}, 0, 3),
    ],
)
def test_what_it_left_is_let_live_for_as_long_as_the_agent_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, says: dict[int, bytes], term: int, kill: int
) -> None:
    sweeping = Sweeping(monkeypatch, tmp_path, code, says)
    assert sweeping.signals == [(signal.SIGTERM, term), (signal.SIGKILL, kill)][term == kill :]
    assert sweeping.stopped == 1


async def test_who_was_stopped_by_its_guardian_is_known_to_have_been(tmp_path: Path) -> None:
    trainer = Supervised(tmp_path / "log", lambda data: None, lambda lines, size: None)
    script = ("bash", "-c", "trap 'exit 0' TERM; while :; do sleep 0.02; done")
    end = SystemClock().boot() + guardian.EARLY + 1.0
    await trainer.start(script, {"PATH": os.environ["PATH"]}, f"guard-{os.getpid()}-dead", 60.0, dead_by=(end, 0.5))
    assert await trainer.exited == 0
    assert trainer.stopped
    await trainer.gone
    assert (tmp_path / "log.exit").read_text() == "0 deadline\n"


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


@pytest.mark.parametrize(
    ("script", "code", "signalled"),
    [("exit 143", 143, False), ("kill -TERM $$", 143, True), ("exec sleep 60", 137, True)],
)
async def test_who_exits_with_the_code_of_a_signal_was_not_killed_by_it(
    tmp_path: Path, script: str, code: int, signalled: bool
) -> None:
    trainer, _ = await start(tmp_path, script)
    if code == 137:
        assert trainer._child is not None
        trainer._child.kill()
    assert await trainer.exited == code
    assert trainer.signalled == signalled
    await trainer.gone
    words = "killed by" if signalled else "the code of"
    assert describe(code, trainer.signalled) == f"exited with {code}, {words} SIG{'TERM' if code == 143 else 'KILL'}"
