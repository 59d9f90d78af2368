"""The guardian owns all that comes of a trainer: groups, strangers, and who is born while the others are stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from guardian_kit import alive, eventually, start, with_word

from relay_agent.guardian import cgroup


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
