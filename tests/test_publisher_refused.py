"""What the volume refuses for a while, without having spoilt a byte: it waits where it lies, and is published."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import ManualClock, mine, names, new_run, put, stage, take
from publisher_kit import Rig
from test_taking import Rig as Taker
from writers import hf_trainer
from writers.kit import run

from relay_agent.attempt.beginning import Beginning
from relay_agent.checkpoints import publisher as publisher_module
from relay_agent.checkpoints import take as take_module
from relay_agent.checkpoints.disk import Disk, is_full
from relay_agent.checkpoints.publisher import RETRY_AFTER, ROOM_WITHIN
from relay_agent.checkpoints.resume import Resume, choose
from relay_agent.checkpoints.retention import NEWEST_ONLY
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.tree import torn_by
from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import Ended, judge
from relay_agent.output.progress import Progress
from relaytui.wire.errors import Exit, RelayError

PASSING = [errno.EPERM, errno.EACCES, errno.EROFS, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


class Refusing:
    """No folder is renamed while `refuses` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, refuses: Callable[[], bool]) -> None:
        self.tries = 0
        rename = Disk.rename

        def renames(disk: Disk, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
            if dir_fd is None and Path(source).is_dir() and refuses():
                self.tries += 1
                raise OSError(code, os.strerror(code), str(source), None, str(target))
            rename(disk, source, target, dir_fd=dir_fd)

        monkeypatch.setattr(Disk, "rename", renames)
        monkeypatch.setattr(publisher_module, "ROOM_PAUSE", (0.0, 0.0))


@pytest.mark.parametrize("code", PASSING)
async def test_it_waits_where_it_lies_until_the_volume_takes_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    refuses = True
    Refusing(monkeypatch, code, lambda: refuses)
    publisher = rig.publisher()
    staged = stage(rig.run, 1, 5)
    for _ in range(3):
        await publisher.look()
        rig.clock.now += RETRY_AFTER
    where = rig.run.ckpt / "step_00000005" if code != errno.ETIMEDOUT else staged.path  # asyncio drops its names
    words = f"step_5 waits, the volume refuses it: {os.strerror(code)} ({where})"
    assert set(rig.told.events) == {("checkpoint.refused", words)}
    assert capsys.readouterr().err.count(words) == 1, "once on the pod"
    assert staged.path.is_dir()
    assert publisher.kept
    refuses = False
    await publisher.look()
    assert rig.told.steps == [5]
    assert (publisher.unpublished(5), publisher.kept) == ("", False)


async def test_at_the_end_it_is_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing = Refusing(monkeypatch, errno.EPERM, lambda: refusing.tries < 3)
    publisher = rig.publisher()
    stage(rig.run, 1, 5, marker=False)
    await publisher.finish(0)
    assert rig.told.steps == [5]
    assert publisher.unpublished(5) == ""
    assert rig.told.kinds() == ["checkpoint.refused"], "said once"
    said = capsys.readouterr().err
    assert said.count(f"step_5 waits up to {ROOM_WITHIN:g} s to be published: the volume refuses it") == 1
    assert "make room" not in said


async def test_what_is_refused_to_the_end_is_kept_for_the_next_attempt(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_long() -> bool:
        rig.clock.now += 10
        return True

    Refusing(monkeypatch, errno.EROFS, takes_long)
    publisher = rig.publisher()
    stage(rig.run, 1, 5, marker=False)
    await publisher.finish(0)
    why = f"the volume refuses it: {os.strerror(errno.EROFS)} ({rig.run.ckpt / 'step_00000005'})"
    assert publisher.kept
    assert publisher.unpublished(5) == f"1 checkpoint could not be published: {why}"
    assert rig.told.kinds() == ["checkpoint.refused", "checkpoint.left"]
    take(rig.run, 2)
    salvage = Salvage(rig.run, 2, mine).work()
    assert [told.kind for told in salvage.told] == ["checkpoint.refused"]
    assert f"step_5 of epoch 1 is not published, {why}" in salvage.told[0].message
    monkeypatch.undo()
    take(rig.run, 3)
    assert [done.step for done in Salvage(rig.run, 3, mine).work().published] == [5]


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
async def test_a_flush_that_failed_leaves_bytes_that_nobody_can_vouch_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Whatever its error: the next flush of the same file may say that all is well."""
    failed: list[int] = []

    def fails(disk: Disk, fd: int) -> None:
        if not failed:
            failed.append(fd)
            raise OSError(code, os.strerror(code))
        os.fsync(fd)

    monkeypatch.setattr(Disk, "fsync", fails)
    publisher = rig.publisher()
    stage(rig.run, 1, 5)
    await publisher.look()
    assert rig.told.kinds() == ["checkpoint.failed"]
    assert [path.name for path in rig.run.bad.iterdir()] == ["e00000001.step_5"]
    take(rig.run, 2)
    stage(rig.run, 1, 6)
    failed.clear()
    assert [told.kind for told in Salvage(rig.run, 2, mine).work().told] == ["checkpoint.failed"]
    assert names(rig.run) == []


async def test_what_can_neither_be_published_nor_moved_is_told_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 5)
    refuses = True
    Refusing(monkeypatch, errno.EPERM, lambda: refuses)
    await publisher.look()
    refuses = False
    rig.clock.now += RETRY_AFTER
    stage(rig.run, 1, 9)
    rename = Disk.rename

    def only_new(disk: Disk, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and Path(source).name == "step_5":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))
        rename(disk, source, target, dir_fd=dir_fd)

    monkeypatch.setattr(Disk, "rename", only_new)
    for _ in range(5):
        await publisher.look()
        rig.clock.now += RETRY_AFTER
    assert rig.told.steps == [9]
    assert rig.told.kinds() == ["checkpoint.refused", "checkpoint.refused", "checkpoint.stuck"]


async def test_a_pod_that_is_taken_away_does_not_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(monkeypatch, errno.EPERM, lambda: True)
    publisher = rig.publisher(patient=lambda: False)
    stage(rig.run, 1, 5)
    await publisher.finish(0)
    assert (refusing.tries, publisher.kept) == (1, True)
    assert math.isclose(rig.clock.now, 1000.0)


@pytest.mark.parametrize("missing", ["ask", "older"])
def test_the_next_attempt_does_not_train_it_again_unless_somebody_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    put(rig.run, 1, 5)
    staged = stage(rig.run, 1, 10)
    take(rig.run, 2, "step_00000005")
    Refusing(monkeypatch, errno.EPERM, lambda: True)
    told = list[str]()
    teller: Any = SimpleNamespace(
        event=lambda kind, message, data=None: told.append(kind),
        published=lambda done: None,
        journal=SimpleNamespace(latest_ckpt=None),
    )
    settings: Any = SimpleNamespace(
        complete_marker="auto", counter_restarts=False, mode="sft", retention=NEWEST_ONLY, target_steps=None,
        patterns=(), base_model="", checkpoint_dir="", checkpoints="none", run_id=rig.run.run_id,
        on_missing_checkpoint=missing,
    )  # fmt: skip
    tenure: Any = SimpleNamespace(lease=SimpleNamespace(epoch=2), held=True)

    async def resume() -> Resume | None:
        beginning = Beginning(settings, rig.run, None, 3, "mock", tenure, teller, Stop(), clock=ManualClock())
        return await beginning.salvage(choose(rig.run))

    if missing == "ask":
        with pytest.raises(RelayError, match="does not go on without what was saved last: step_10 of epoch 1") as error:
            asyncio.run(resume())
        assert (error.value.code, error.value.exit_code) == ("volume_refuses", Exit.STATE)
        assert not is_full(error.value)
    else:
        found = asyncio.run(resume())
        assert found is not None
        assert found.step == 5
    assert "checkpoint.refused" in told
    assert staged.path.is_dir()


async def test_what_cannot_be_taken_from_the_trainers_own_folder_is_waited_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Taker(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    refusing = Refusing(monkeypatch, errno.EPERM, lambda: refusing.tries < 3)
    await rig.publisher.finish(0)
    assert rig.told.steps == [5]
    (said,) = rig.told.said("checkpoint.refused")
    assert said.startswith("checkpoint-5 waits, the volume refuses it: Operation not permitted (")
    assert rig.publisher.unpublished(5) == ""


async def test_what_cannot_be_read_at_the_end_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be whole: an end without it is none to be content with."""
    rig = Taker(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    read = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def fails(*_: object) -> None:
        raise torn_by(read)

    monkeypatch.setattr(take_module, "check_files", fails)
    await rig.publisher.finish(0)
    assert rig.publisher.unpublished(5) == f"1 checkpoint could not be published: it cannot be read: {read.strerror}"
    assert not rig.publisher.kept, "the next attempt may not read it either"


async def test_what_is_saved_elsewhere_is_taken_though_the_trainer_removed_its_staging_folder(tmp_path: Path) -> None:
    rig = Taker(tmp_path)
    await rig.taking.prepare(None)
    shutil.rmtree(rig.run.staging(1))
    assert await rig.look() == []
    assert not rig.run.staging(1).exists(), "it may make it anew itself"
    run(hf_trainer.save(rig.out, 5))
    assert await rig.look() == [5]
    assert rig.told.said("volume.lost") == []


@pytest.mark.parametrize("code", [0, 137])
def test_the_end_says_that_it_is_kept(code: int) -> None:
    progress = Progress(0, 40)
    progress.see("step 40/40 loss 1", 1.0)
    unpublished = "1 checkpoint could not be published: the volume refuses it"
    verdict = judge(Ended(code, Stop(), progress, 5, "", unpublished, kept=True))
    assert f"{unpublished}; it is kept, and published once the volume takes it" in verdict.message
    assert verdict.outcome == ("failed" if code else "preempted")
