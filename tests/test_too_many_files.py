"""A checkpoint of more files than an agent publishes is refused at once and said once; one of as many costs little."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from checkpoint_kit import ManualClock, mine, new_run, stage
from publisher_kit import Rig
from taking_kit import Taker
from writers import hf_trainer
from writers.kit import run as written

from relay_agent.checkpoints import staging as staging_module
from relay_agent.checkpoints import take as take_module
from relay_agent.checkpoints.adapters import view as view_module
from relay_agent.checkpoints.adapters.view import view_of
from relay_agent.checkpoints.disk import Disk
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.staging import SHARE, StagingWatch
from relay_agent.checkpoints.tree import MAX_FILES, TooMany, walk

DOCS = Path(__file__).resolve().parent.parent / "docs/trainers.md"
FEW = 20


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with fewer files, for time's sake."""
    for module in (staging_module, take_module, view_module):
        monkeypatch.setattr(module, "MAX_FILES", FEW)


def fill(path: Path, count: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (path / f"shard_{number:05d}.bin").write_bytes(b"x")


def test_docs_and_code_name_one_bound() -> None:
    assert f"at most {MAX_FILES:,} files and folders" in " ".join(DOCS.read_text().split())
    assert TooMany(MAX_FILES).reason == f"it has more than {MAX_FILES:,} files and folders"


@pytest.mark.parametrize("kind", ["files", "folders", "deep"])
def test_files_and_folders_count_wherever_they_lie(tmp_path: Path, kind: str) -> None:
    for number in range(5):
        path = tmp_path / (f"in/{number}" if kind == "deep" else str(number))
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if kind == "folders" else path.write_bytes(b"x")
    count = 6 if kind == "deep" else 5
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        walk(fd, most=count)
        with pytest.raises(TooMany):
            walk(fd, most=count - 1)
    finally:
        os.close(fd)


@pytest.mark.usefixtures("few")
async def test_staged_it_is_said_while_the_trainer_lives_and_holds_up_nothing(tmp_path: Path) -> None:
    rig = Rig(new_run(tmp_path))
    publisher = rig.publisher()
    fill(rig.run.staging(1) / "step_5", FEW + 1)
    (rig.run.staging(1) / "step_5" / "COMPLETE").touch()
    await publisher.look()
    stage(rig.run, 1, 6)
    for _ in rig.clock.watch(6):
        await publisher.look()
    assert rig.told.steps == [6]
    said = [message for kind, message in rig.told.events if kind == "checkpoint.unfit"]
    assert said == [f"step_5 cannot be published as it lies there: it has more than {FEW} files and folders"]
    assert (rig.run.staging(1) / "step_5").exists(), "its trainer may still be writing to it"
    await publisher.finish(0)
    assert [kind for kind, _ in rig.told.events].count("checkpoint.torn") == 1
    assert (rig.run.bad / "e00000001.step_5").exists()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("inside", ["", "deep/er"])
def test_in_the_trainers_own_folder_it_is_refused_at_once(tmp_path: Path, inside: str) -> None:
    taker = Taker(tmp_path)
    written(hf_trainer.save(taker.out, 5))
    fill(taker.out / "checkpoint-5" / inside, FEW)
    written(hf_trainer.save(taker.out, 6))
    assert [taken.step for taken in taker.look()] == [6]
    assert [(doubt.path, doubt.why) for doubt in taker.watch.refused()] == [
        ("checkpoint-5", f"it has more than {FEW} files and folders")
    ]


@pytest.mark.usefixtures("few")
def test_what_else_fills_the_trainers_folder_hides_no_checkpoint_folder(tmp_path: Path) -> None:
    taker = Taker(tmp_path)
    fill(taker.out, 10 * FEW)
    written(hf_trainer.save(taker.out, 6))
    assert [taken.step for taken in taker.look()] == [6]
    with view_of(taker.out) as view:
        assert len(view.names()) == FEW + 1
        assert view.crowded("")
        assert not view.crowded("checkpoint-6")


def test_a_view_remembers_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MAX_SEEN", 30)
    for name in ("a", "b", "c"):
        fill(tmp_path / name, 20)
    with view_of(tmp_path) as view:
        assert [len(view.names(name)) for name in ("", "a", "b", "c")] == [3, 20, 7, 0]
        assert view.crowded("c")
        assert not view.crowded("a")


def test_a_folder_that_takes_long_to_look_at_is_looked_at_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = new_run(tmp_path), ManualClock()
    stage(run, 1, 5, marker=False)
    watch = StagingWatch(run.staging(1), 100.0, clock, marks=True)
    looks: list[str] = []
    real = staging_module._look_at

    def slow(root: int, name: str) -> staging_module._Look:
        looks.append(name)
        clock.now += 1.0
        return real(root, name)

    monkeypatch.setattr(staging_module, "_look_at", slow)
    for _ in range(4 * SHARE):
        watch.scan()
        clock.now += 0.5
    assert 2 <= len(looks) <= 3
    watch.scan(trainer_exited=0)
    assert len(looks) <= 4, "the last look is at once"
    assert looks[-1] == "step_5"


class Quick(Disk):
    """Flushes nothing."""

    def fsync(self, fd: int) -> None:
        pass


def test_publishing_many_files_takes_little_memory_for_each(tmp_path: Path) -> None:
    run, count = new_run(tmp_path), 400
    publish(run, stage(run, 1, 5), 1, mine, disk=Quick())  # what is loaded and cached once
    staged = stage(run, 1, 6)
    fill(staged.path / "many", count)
    tracemalloc.start()
    try:
        publish(run, staged, 1, mine, disk=Quick())
        assert tracemalloc.get_traced_memory()[1] / count < 2_500, "bytes"
    finally:
        tracemalloc.stop()
