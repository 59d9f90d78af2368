"""The publisher of an attempt: what it publishes, in which order, what it prunes and what it says."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from checkpoint_kit import ManualClock, mine, names, new_run, stage, whole_names

from relay_agent import publisher as publisher_module
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.staging import Staged
from relay_agent.publisher import RETRY_AFTER, Publisher
from relay_agent.volume import RunFolder


@dataclass
class Told:
    """What a publisher recorded."""

    steps: list[int] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)

    def published(self, checkpoint: Published) -> None:
        self.steps.append(checkpoint.step)

    def pruned(self, name: str) -> None:
        self.gone.append(name)

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None:
        self.events.append((kind, message))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@dataclass
class Rig:
    run: RunFolder
    clock: ManualClock = field(default_factory=ManualClock)
    told: Told = field(default_factory=Told)

    def publisher(self, keep: int = 2) -> Publisher:
        return Publisher(
            self.run, 1, "sft", "a trainer", 5.0, keep, self.clock, self.told,
            held=mine, safe=mine, on_fenced=lambda: None,
        )  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


def refuses(monkeypatch: pytest.MonkeyPatch, step: int, error: Callable[[], Exception]) -> None:
    """Publishing that step fails, once."""
    failed: list[int] = []

    def publishes(run: RunFolder, staged: Staged, *rest: object, **options: object) -> Published:
        if staged.step == step and not failed:
            failed.append(step)
            raise error()
        return publish(run, staged, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(publisher_module, "publish", publishes)


async def test_what_had_to_wait_is_not_published_as_the_newest(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(monkeypatch, 1, lambda: OSError(errno.ENOSPC, "No space left on device"))
    publisher = rig.publisher()
    stage(rig.run, 1, 1)
    stage(rig.run, 1, 2)
    await publisher.look()
    assert rig.told.steps == [2]
    rig.clock.now += RETRY_AFTER
    await publisher.look()
    assert rig.told.steps == [2]
    resume = choose(rig.run)
    assert resume is not None
    assert resume.step == 2
    assert names(rig.run) == ["step_00000002"]
    assert rig.told.kinds() == ["checkpoint.no_space", "checkpoint.orphan"]
    assert [path.name for path in rig.run.orphans.iterdir()] == ["e00000001.step_1"]
    assert publisher.unpublished(2) == ""


async def test_where_folders_are_not_renamed_in_one_step_checkpoints_are_copied_and_pruned_in_place(rig: Rig) -> None:
    rig.run = replace(rig.run, atomic=False)
    publisher = rig.publisher()
    for step in (1, 2, 3, 4):
        staged = stage(rig.run, 1, step)
        saved = (staged.path / "weights.bin").read_bytes()
        await publisher.look()
        assert not staged.path.exists()
        assert (rig.run.ckpt / f"step_{step:08d}" / "weights.bin").read_bytes() == saved
    assert rig.told.steps == [1, 2, 3, 4]
    assert rig.told.gone == ["step_00000001", "step_00000002"]
    assert whole_names(rig.run) == ["step_00000003", "step_00000004"]
    assert [path.name for path in (rig.run.ckpt / "step_00000004").glob(".*")] == []
    assert list(rig.run.trash.iterdir()) == []
    assert rig.told.events == []
