"""What an agent keeps on the pod's own disk: private, whole or not there, and forgotten in one step."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import subprocess
from pathlib import Path

import pytest
from checkpoint_kit import Crash, FaultyDisk
from msgspec.structs import replace

from relay_agent import guardian
from relay_agent.checkpoints.disk import Disk
from relay_agent.pod import takeover
from relay_agent.pod.pod import DONE, Note, Pod, read_note
from relay_agent.pod.takeover import Trainer, backlog, look
from relay_agent.trainer.supervise import Supervised
from relaytui.wire.clock import SystemClock
from relaytui.wire.messages import RunConfig

TOKEN = "t" * 43
CONFIG = RunConfig("/mnt/relay", "run-1", 600, 3, 600, "", False)


def pod(root: Path, disk: Disk | None = None) -> Pod:
    return Pod(root, SystemClock(), disk) if disk else Pod(root, SystemClock())


def note(on: Pod, folder: Path, resume_step: int = 0) -> Note:
    return Note(
        2, "run-1", "sft", "/mnt/relay/runs/run-1", 1, TOKEN, 300.0, CONFIG, "i" * 32, "d" * 16, "a trainer",
        "run-1.1.x.y", 30.0, None, resume_step, 2**22 + 1, 1, on.binding(folder),
    )  # fmt: skip


def modes(root: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (root, *root.rglob("*")) if path.is_dir()}


@pytest.mark.parametrize("how", ["attempt", "lock"])
def test_every_folder_an_agent_makes_there_is_its_users_alone(tmp_path: Path, how: str) -> None:
    before = os.umask(0o022)
    try:
        here = pod(tmp_path / "way" / "state")
        if how == "attempt":
            folder = here.make_folder("run-1", 1)
            here.write(folder, note(here, folder))
            here.done(folder)
        else:
            assert here.hold("run-1")
    finally:
        os.umask(before)
    assert modes(tmp_path / "way") == {0o700}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {0o600}


def test_a_folder_that_was_there_before_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    pod(tmp_path).make_folder("run-1", 1)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def story(on: Pod) -> None:
    folder = on.make_folder("run-1", 1)
    for step in (0, 10):
        on.write(folder, note(on, folder, step))
    on.done(folder)
    on.forget(folder)


def test_a_crash_at_any_call_leaves_a_note_that_reads_or_nothing(tmp_path: Path) -> None:
    """Killed before, after and halfway through each call: nothing is half there, and the next agent clears it up."""
    counted = FaultyDisk()
    story(pod(tmp_path / "counted", counted))
    kinds = [call.partition(" ")[0] for call in counted.calls]
    assert {"mkdir", "create", "write", "fsync", "rename", "unlink", "rmdir"} == set(kinds)
    folder = tmp_path / "counted/runs/run-1/e00000001"
    renames = ((index, call) for index, call in enumerate(counted.calls) if call.startswith("rename "))
    renamed = [index for index, call in renames if call.endswith("attempt.json")]
    assert [counted.calls[index + 1] for index in renamed] == [f"fsync {folder}"] * 2, "the folder after each rename"
    done = next(index for index, call in enumerate(counted.calls) if call.endswith(f"/{DONE}"))
    for number, call in enumerate(counted.calls):
        for way in ("before", "after", "half")[: 3 if call == "write" else 2]:
            root = tmp_path / f"{number}-{way}"
            with pytest.raises(Crash):
                story(pod(root, FaultyDisk(number, Crash, after=way == "after", half=way == "half")))
            here = pod(root)
            found = list(here.notes())
            assert len(found) <= 1
            for _, read in found:
                assert (read is not None) is (number > renamed[0] or (number == renamed[0] and way == "after"))
                assert read is None or read.resume_step in (0, 10)
            if number > done:
                assert look(here, "run-1") is None, "how it ended is told: nothing to take over"
            assert here.hold("run-1")
            assert backlog(here, "run-1", None) == []
            assert [path.name for path in (root / "runs/run-1").glob("*e0*")] == [], "nothing is left of it"


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["create", "write", "fsync", "rename"])
def test_a_disk_that_is_full_leaves_the_note_before(tmp_path: Path, call: str) -> None:
    here = pod(tmp_path)
    folder = here.make_folder("run-1", 1)
    here.write(folder, note(here, folder, 5))
    disk = FaultyDisk(["create", "write", "fsync", "rename"].index(call), full, half=True)
    with pytest.raises(OSError, match="No space left"):
        pod(tmp_path, disk).write(folder, note(here, folder, 9))
    read = read_note(folder)
    assert read is not None
    assert read.resume_step == 5
    assert [path.name for path in folder.iterdir()] == ["attempt.json"]


def test_a_disk_that_takes_no_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        pod(tmp_path, FaultyDisk(0, full)).make_folder("run-1", 1)
    assert pod(tmp_path, FaultyDisk(0, full)).hold("run-1"), "where nothing can be kept there is nothing to take over"


def test_what_cannot_be_noted_as_done_ends_nothing(tmp_path: Path) -> None:
    here = pod(tmp_path)
    folder = here.make_folder("run-1", 1)
    pod(tmp_path, FaultyDisk(0, full)).done(folder)
    assert not (folder / DONE).exists()
    here.done(folder)
    here.done(folder)
    assert (folder / DONE).exists()


@pytest.mark.parametrize("runs", [True, False], ids=["it runs", "killed with its guardian"])
def test_a_trainer_of_another_run_is_told_of_only_where_something_of_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: bool
) -> None:
    here = pod(tmp_path)
    folder = here.make_folder("run-2", 1)
    guard = f"run-2.1.{secrets.token_hex(8)}.y"
    here.write(folder, replace(note(here, folder), run_id="run-2", guard=guard))
    (folder / guardian.SOCKET).touch()
    env = {**os.environ, guardian.MARKER: guard if runs else "another"}
    with subprocess.Popen(["sleep", "60"], env=env) as trainer:
        assert backlog(here, "run-1", None) == []
        trainer.kill()
    said = capsys.readouterr().err
    assert ("a trainer of run run-2 may still run on this pod" in said) is runs
    assert folder.exists(), "what it left is for an agent of its run"


def test_an_attempt_of_another_run_that_has_just_begun_is_left_alone(tmp_path: Path) -> None:
    """Its agent lives, and writes its note only when it starts its trainer."""
    here = pod(tmp_path)
    begun, old = here.make_folder("run-2", 1), here.make_folder("run-1", 1)
    for folder in (begun, old):
        (folder / "state.0000000001.log").write_bytes(b"")
    assert backlog(here, "run-1", None) == []
    assert begun.exists()
    assert not old.exists(), "ours is nobody's: set aside"


async def test_a_trainer_that_was_stopped_without_its_guardian_did_not_end_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guardian listens to somebody else still, and notes only that it ended."""
    monkeypatch.setattr(takeover, "GREETING", 0.2)
    here = pod(tmp_path / "pod")
    folder = here.make_folder("run-1", 1)
    told = replace(note(here, folder), guard=f"guard-{os.getpid()}-held", grace=5.0)
    here.write(folder, told)
    script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done"
    up = asyncio.Event()
    trainer = Supervised(tmp_path / "log", lambda data: up.set(), lambda lines, size: None)
    await trainer.start(("bash", "-c", script), {"PATH": os.environ["PATH"]}, told.guard, 5.0, 60.0, folder)
    await up.wait()
    for _ in range(2):  # who stopped it may die before it has published what was saved
        found = await asyncio.to_thread(look, here, "run-1")
        await trainer.gone
        assert found is not None
        assert found.ending is not None
        assert (found.trainer, found.ending.code, found.ending.why) == (Trainer.STOPPED, 0, "order")
    assert (tmp_path / "log.exit").read_text() == "0 order\n", "for who comes to the volume from another pod"


async def test_where_its_guardian_was_not_told_the_word_beside_it_counts(tmp_path: Path) -> None:
    """A guardian of before an upgrade."""
    here = pod(tmp_path)
    folder = here.make_folder("run-1", 1)
    here.write(folder, note(here, folder))
    (folder / guardian.ENDED).write_text("0 12 0 itself\n")
    for trainer in (Trainer.EXITED, Trainer.STOPPED):
        found = look(here, "run-1")
        assert found is not None
        assert found.trainer is trainer
        (folder / guardian.BESIDE).touch()
