"""What a trainer saves into its staging folder under another name than `step_<N>`: said at once, and never deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_kit import FaultyDisk, mine, new_run, stage, take
from publisher_kit import Rig

from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.salvage import Salvage, Told
from relay_agent.checkpoints.staging import FIRST
from relay_agent.checkpoints.strays import AND_OTHERS, LOOKED_MOST, SAID_MOST, Strays
from relay_agent.volume.volume import RunFolder

SETTLE = 5.0


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


def save(run: RunFolder, name: str, epoch: int = 1, *, content: bytes = b"weights", complete: bool = False) -> Path:
    path = run.staging(epoch) / name
    path.mkdir()
    (path / "weights.bin").write_bytes(content)
    if complete:
        (path / "COMPLETE").touch()
    return path


async def after(rig: Rig, publisher: Publisher, seconds: float) -> list[tuple[str, str]]:
    """What was told by then."""
    await publisher.look()
    for _ in rig.clock.watch(seconds):
        await publisher.look()
    return rig.told.events


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("step-40", "step-40 is not taken: call it step_40"),
        ("checkpoint-40", "checkpoint-40 is not taken: call it step_40"),
        ("iter_0000040", "iter_0000040 is not taken: call it step_0000040"),
        ("step_40_v2", "step_40_v2 is not taken: call it step_<N>"),
        ("last", "last is not taken: call it step_<N>"),
    ],
)
async def test_a_folder_of_another_name_is_said_once(
    rig: Rig, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    save(rig.run, name)
    publisher = rig.publisher()
    assert await after(rig, publisher, SETTLE - 1) == [], "it may get its last name yet"
    assert await after(rig, publisher, 60) == [("checkpoint.unfit", words)]
    assert words in capsys.readouterr().err
    assert rig.told.steps == []


async def test_one_that_is_marked_is_said_at_the_first_look(rig: Rig) -> None:
    save(rig.run, "step-40", complete=True)
    assert await after(rig, rig.publisher(), 0) == [("checkpoint.unfit", "step-40 is not taken: call it step_40")]


async def test_one_that_grows_is_said_once_it_keeps_still(rig: Rig) -> None:
    file = save(rig.run, "step-40") / "weights.bin"
    publisher = rig.publisher()
    for _ in rig.clock.watch(20):
        with file.open("ab") as grows:
            grows.write(b"more")
        await publisher.look()
    assert rig.told.events == []
    assert len(await after(rig, publisher, SETTLE + 1)) == 1


async def test_a_file_is_to_be_saved_into_a_folder(rig: Rig) -> None:
    (rig.run.staging(1) / "model_40.pkl").write_bytes(b"weights")
    told = await after(rig, rig.publisher(), 60)
    assert told == [("checkpoint.unfit", "model_40.pkl is not taken: save it into a folder step_40")]


async def test_of_what_is_left_alone_nothing_is_said(rig: Rig) -> None:
    for name in (".step_40", "step_40.tmp", ".cache"):
        save(rig.run, name)
    assert await after(rig, rig.publisher(), 60) == []


async def test_an_end_waits_for_no_stillness(rig: Rig) -> None:
    publisher = rig.publisher()
    await publisher.look()
    save(rig.run, "step-40")
    await publisher.finish(0)
    assert rig.told.events == [("checkpoint.unfit", "step-40 is not taken: call it step_40")]


async def test_a_trainer_that_names_all_so_fills_no_history(rig: Rig) -> None:
    for step in range(SAID_MOST + 30):
        save(rig.run, f"step-{step}", complete=True)
    told = await after(rig, rig.publisher(), 60)
    assert len(told) == SAID_MOST + 1
    assert told[-1] == ("checkpoint.unfit", "and so it is with whatever else has no name step_<N>")


class Once(list[str]):
    """To go through, not to look a name up in."""

    def __contains__(self, name: object) -> bool:
        raise AssertionError("each name is compared with all others")


def test_a_trainer_that_puts_thousands_there_costs_no_more_than_one_of_hundreds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Once(f"sample_{number}.json" for number in range(3_000))
    for name in names:
        (tmp_path / name).touch()
    looked: list[object] = []
    lstat = os.lstat

    def counts(path: Path) -> os.stat_result:
        looked.append(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", counts)
    strays = Strays(SETTLE, "COMPLETE")
    for second in range(int(SETTLE)):
        assert strays.look(tmp_path, names, second, over=False) == []
        assert len(looked) <= LOOKED_MOST
        looked.clear()
    said = strays.look(tmp_path, names, SETTLE, over=False)
    assert (len(said), said[-1]) == (SAID_MOST + 1, ("", AND_OTHERS))
    looked.clear()
    assert strays.look(tmp_path, names, 60, over=True) == []
    assert (looked, strays.any) == ([], True)


async def test_a_folder_that_stays_empty_is_said(rig: Rig) -> None:
    (rig.run.staging(1) / "step_40").mkdir()
    publisher = rig.publisher()
    assert await after(rig, publisher, FIRST * SETTLE - 1) == [], "it may have been made ahead of a long gathering"
    told = await after(rig, publisher, 60)
    assert told == [("checkpoint.unfit", "step_40 cannot be published as it lies there: it holds no data")]


async def test_a_link_in_one_is_said(rig: Rig) -> None:
    (stage(rig.run, 1, 40, marker=False).path / "base.bin").symlink_to("/elsewhere")
    told = await after(rig, rig.publisher(), SETTLE + 1)
    words = "step_40 cannot be published as it lies there: 'base.bin' is a symbolic link, not a file"
    assert told == [("checkpoint.unfit", words)]


# -- the next attempt --------------------------------------------------------------------------------------------------


def succeeds(run: RunFolder, epoch: int = 2, disk: FaultyDisk | None = None) -> list[Told]:
    take(run, epoch)
    return Salvage(run, epoch, mine, disk=disk or FaultyDisk()).work().told


@pytest.mark.parametrize("atomic", [True, False])
def test_what_a_dead_attempt_saved_under_other_names_is_kept(tmp_path: Path, atomic: bool) -> None:
    run = new_run(tmp_path, None)
    object.__setattr__(run, "atomic", atomic)
    take(run, 1)
    stage(run, 1, 20)
    save(run, "step-40", complete=True)
    (run.staging(1) / "model_40.pkl").write_bytes(b"weights")
    (run.staging(1) / ".seen.json").write_bytes(b"{}\n")
    told = succeeds(run)
    assert not run.staging(1).exists()
    kept = run.bad / "e00000001"
    assert sorted(path.name for path in kept.iterdir()) == ["model_40.pkl", "step-40"]
    assert (kept / "step-40" / "weights.bin").read_bytes() == b"weights"
    assert [each.kind for each in told] == ["checkpoint.salvaged", "checkpoint.unfit"]
    words = f"epoch 1 saved under other names than step_<N>: model_40.pkl, step-40; that is kept in {kept}"
    assert told[-1].message == words
    prune(run, 2)
    assert (kept / "step-40" / "weights.bin").exists(), "whatever is pruned later"


def test_however_many_there_are_it_is_one_event(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for step in range(50):
        save(run, f"step-{step:02}")
    (told,) = succeeds(run)
    assert "step-00, step-01, step-02 and 47 more;" in told.message
    assert len(list((run.bad / "e00000001").iterdir())) == 50


def test_what_holds_nothing_goes(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    save(run, ".step_30.tmp", content=b"")
    (run.staging(1) / "lock").touch()
    (run.staging(1) / ".save-now").touch()
    assert succeeds(run) == []
    assert not run.staging(1).exists()
    assert list(run.bad.iterdir()) == []


def test_half_saves_by_their_names_are_kept_as_torn_ones_are(tmp_path: Path) -> None:
    """Every pod that is taken away can leave one, as big as any checkpoint."""
    run = new_run(tmp_path)
    for epoch in range(1, 6):
        save(run, ".step_30.tmp", epoch)
        if epoch == 2:
            save(run, "step-30", epoch)
        assert [each.kind for each in succeeds(run, epoch + 1)] == ["checkpoint.unfit"]
    prune(run, 2)
    assert sorted(path.name for path in run.bad.iterdir()) == ["e00000002", "e00000004", "e00000005"]


def test_what_cannot_be_moved_stays(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    save(run, "step-40")

    class Refuses(FaultyDisk):
        def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
            raise OSError(5, "Input/output error")

    (told,) = succeeds(run, disk=Refuses())
    assert told.kind == "checkpoint.stuck"
    assert (run.staging(1) / "step-40" / "weights.bin").exists()
    assert [each.kind for each in succeeds(run, 3)] == ["checkpoint.unfit"], "the next one tries again"


def test_while_something_waits_there_the_rest_does_too(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    stage(run, 1, 20)
    save(run, "step-40")

    class Full(FaultyDisk):
        def create(self, name: str | Path, *, dir_fd: int | None = None, mode: int = 0o644) -> int:
            raise OSError(28, "No space left on device")

    assert [each.kind for each in succeeds(run, disk=Full())] == ["checkpoint.no_space"]
    assert sorted(path.name for path in run.staging(1).iterdir()) == ["step-40", "step_20"]


def test_a_name_of_bytes_that_are_no_characters_is_said_and_kept(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    save(run, "step-\udcff")
    (told,) = succeeds(run)
    told.message.encode()
    assert (run.bad / "e00000001" / "step-\udcff").exists()
