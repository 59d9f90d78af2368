"""What a publisher waits for at the end of a trainer, what it misses then, and what that says of the run."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import mine, new_run, stage, take
from publisher_kit import Rig, refuses

from relay_agent.checkpoints import publish as publish_module
from relay_agent.checkpoints import publisher as publisher_module
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.publisher import ROOM_WITHIN, STILL_WITHIN
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.staging import UNKNOWN_END, Staged
from relay_agent.checkpoints.tree import Cancelled, never
from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import Ended, judge
from relay_agent.output.progress import Progress
from relay_agent.volume.volume import RunFolder


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


class Volume:
    """Full until `until` on the clock; each try of a publish takes `seconds`."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch, until: float, seconds: float = 10.0) -> None:
        self.tries = 0

        def publishes(run: RunFolder, staged: Staged, *rest: object, **options: object) -> Published:
            self.tries += 1
            rig.clock.now += seconds
            if rig.clock.now < until:
                raise OSError(errno.ENOSPC, "No space left on device")
            return publish(run, staged, *rest, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(publisher_module, "publish", publishes)
        monkeypatch.setattr(publisher_module, "ROOM_PAUSE", (0.0, 0.0))


async def test_the_last_checkpoint_waits_for_room_and_is_published_once_there_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Volume(rig, monkeypatch, rig.clock.now + 60)
    publisher = rig.publisher()
    stage(rig.run, 1, 5, marker=False)
    await publisher.finish(0)
    assert rig.told.steps == [5]
    assert (publisher.unpublished(5), publisher.kept) == ("", False)
    assert rig.told.kinds() == ["checkpoint.no_space"], "said once"
    assert capsys.readouterr().err.count("make room on it") == 1


async def test_what_got_no_room_in_time_is_kept_for_the_next_attempt(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = Volume(rig, monkeypatch, math.inf)
    publisher = rig.publisher()
    staged = stage(rig.run, 1, 5, marker=False)
    began = rig.clock.now
    await publisher.finish(0)
    assert ROOM_WITHIN <= rig.clock.now - began <= ROOM_WITHIN + 20
    assert volume.tries == 12 + 1
    assert publisher.kept
    assert publisher.unpublished(5) == "1 checkpoint could not be published: No space left on device"
    assert rig.told.kinds() == ["checkpoint.no_space", "checkpoint.left"]
    monkeypatch.undo()
    take(rig.run, 2)
    salvage = Salvage(rig.run, 2, mine, ended=lambda run, epoch: UNKNOWN_END).work()  # its word found no room either
    assert [done.step for done in salvage.published] == [5]
    assert not staged.path.exists()


async def test_a_pod_that_is_taken_away_does_not_wait_for_room(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = Volume(rig, monkeypatch, math.inf)
    publisher = rig.publisher(patient=lambda: False)
    stage(rig.run, 1, 5)
    await publisher.finish(0)
    assert (volume.tries, publisher.kept) == (1, True)


class Node:
    """Another one writes to that step's folder whenever it was read, until `until` on the clock."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch, step: int, until: float) -> None:
        self.tries = 0
        hashes = publish_module.hash_files

        def reads(root: int, files: Any, sync: Any = None, check: Any = never) -> dict[str, str]:
            found = hashes(root, files, sync, check)
            self.tries += 1
            rig.clock.now += 10
            if rig.clock.now < until:
                with (rig.run.staging(1) / f"step_{step}" / "weights.bin").open("ab") as shard:
                    shard.write(b"more")
            return found

        monkeypatch.setattr(publish_module, "hash_files", reads)
        monkeypatch.setattr(publisher_module, "STILL_PAUSE", 0.0)


async def test_the_last_checkpoint_waits_until_another_node_has_written_all_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Node(rig, monkeypatch, 5, rig.clock.now + 60)
    publisher = rig.publisher()
    stage(rig.run, 1, 5)
    await publisher.finish(0)
    assert (rig.told.steps, publisher.unpublished(5)) == ([5], "")
    (path,) = rig.run.ckpt.glob("step_*")
    assert (path / "weights.bin").read_bytes().endswith(b"more")
    assert capsys.readouterr().err.count("step_5 is written to still") == 1


@pytest.mark.parametrize("patient", [True, False])
async def test_one_that_is_written_to_all_the_time_is_missed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    node = Node(rig, monkeypatch, 5, math.inf)
    publisher = rig.publisher(patient=lambda: patient)
    stage(rig.run, 1, 5)
    began = rig.clock.now
    await publisher.finish(0)
    assert node.tries > 10 if patient else node.tries == 2
    assert rig.clock.now - began <= (STILL_WITHIN + 20 if patient else 20)
    assert publisher.unpublished(5) == "1 checkpoint could not be published: somebody wrote to it still"
    assert (publisher.kept, publisher.torn, rig.told.kinds()) == (False, False, ["checkpoint.left"])
    assert [path.name for path in rig.run.staging(1).glob("step_*")] == ["step_5"]


@pytest.mark.parametrize("held", [True, False])
async def test_what_is_left_is_the_next_attempts_unless_that_has_begun(rig: Rig, held: bool) -> None:
    """A holder that was superseded in the midst of a publish knows of a next attempt, which has looked already."""

    def stops() -> None:
        raise Cancelled

    publisher = rig.publisher(held=lambda: held, check=stops)
    stage(rig.run, 1, 5)
    await publisher.look()
    then = "the next attempt publishes it" if held else "another attempt has the run"
    assert rig.told.events == [("checkpoint.left", f"step_5 stays in the staging folder: {then}")]


@pytest.mark.parametrize("held", [True, False])
async def test_so_it_is_with_what_got_no_room(rig: Rig, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    Volume(rig, monkeypatch, math.inf)
    publisher = rig.publisher(held=lambda: held, patient=lambda: False)
    stage(rig.run, 1, 5)
    await publisher.finish(0)
    then = "the next attempt publishes what is kept" if held else "another attempt has the run"
    assert rig.told.events[-1] == ("checkpoint.left", f"{publisher.unpublished(5)}; {then}")


async def test_one_that_was_set_aside_beside_one_that_waits_is_not_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = rig.publisher()
    refuses(monkeypatch, 5, lambda: OSError(errno.EIO, "Input/output error"))
    stage(rig.run, 1, 5)
    await publisher.look()
    Volume(rig, monkeypatch, math.inf)
    stage(rig.run, 1, 6)
    await publisher.finish(0)
    assert not publisher.kept
    assert publisher.unpublished(6).startswith("2 checkpoints could not be published")


async def test_each_reason_is_told_with_those_it_is_of_and_a_full_volume_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Volume(rig, monkeypatch, math.inf)
    publisher = rig.publisher(patient=lambda: False)
    for step in (15, 20, 25, 30, 100):
        staged = stage(rig.run, 1, step)
        rig.clock.now += 60
        if step > 15:
            for file in filter(Path.is_file, staged.path.rglob("*")):
                file.write_bytes(b"")
    await publisher.finish(0)
    assert publisher.unpublished(100) == (
        "5 checkpoints could not be published: the volume is full: No space left on device (step_15);"
        " it holds no data (step_20, step_25, step_30 and 1 more)"
    )


@pytest.mark.parametrize(("kept", "outcome", "code"), [(True, "preempted", 74), (False, "failed", 1)])
def test_a_run_is_not_completed_before_its_newest_checkpoint_is_on_the_volume(
    kept: bool, outcome: str, code: int
) -> None:
    progress = Progress(0, 10)
    progress.see("step 10/10 loss 1", 1.0)
    verdict = judge(Ended(0, Stop(), progress, 5, "", "1 checkpoint could not be published: no room", kept))
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)
    assert "could not be published" in verdict.message
