"""The step of a checkpoint that tells none: the last heard of when it changed last; and no false alarm of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_kit import ManualClock, mine, new_run, put, take
from msgspec import json
from taking_kit import SETTLE
from test_taking import Told
from test_watchdog_acts import Records, saved
from writers import single_file
from writers.kit import run as write

from relay_agent.checkpoints.manifest import read
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.resume import floor
from relay_agent.checkpoints.staging import Mark, StagingWatch
from relay_agent.checkpoints.taking import Taking
from relay_agent.config import load
from relay_agent.outcome.stop import Stop
from relay_agent.outcome.verdict import Ended, judge
from relay_agent.output.progress import Progress
from relay_agent.volume.volume import RunFolder
from relay_agent.watchdog.resumed import Resumed


class Rig:
    """A trainer that makes five steps a second."""

    def __init__(self, place: Path) -> None:
        self.run: RunFolder = new_run(place)
        self.clock, self.told, self.step = ManualClock(), Told(), 100
        settings = load({"COMMANDER_URL": "http://a:1"})
        self.taking = Taking(settings, self.run, 1, self.clock, self.told, lambda: self.step)
        self.publisher = Publisher(
            self.run, 1, "sft", "a trainer", SETTLE, 9, self.clock, self.told,
            taking=self.taking, held=mine, safe=mine, on_fenced=lambda: None,
        )  # fmt: skip

    async def trains(self, seconds: float) -> list[int]:
        """The steps of what was published meanwhile."""
        self.told.steps.clear()
        for _ in self.clock.watch(seconds):
            self.step = 100 + int((self.clock.now - 1000) * 5)
            await self.publisher.look()
        return list(self.told.steps)


async def test_it_is_of_the_look_that_saw_it_last_change(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    file = rig.taking.root / "ckpt.bin"
    file.write_bytes(b"half of it")
    await rig.trains(2)
    file.write_bytes(b"all of it, and nothing marks its end")
    saved_at = rig.step
    assert await rig.trains(8) == [saved_at + 2]
    file.write_bytes(b"the next one")
    saved_at = rig.step
    assert await rig.trains(8) == [saved_at + 2], "not the one before it"
    assert read(rig.run.ckpt / f"step_{saved_at + 2:08d}").manifest.heard
    assert "heard" in (rig.run.ckpt / f"step_{saved_at + 2:08d}" / "manifest.json").read_text()


async def test_of_one_that_tells_its_step_nothing_is_heard(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    write(single_file.save(rig.taking.root, 5))
    assert await rig.trains(8) == [5]
    assert not read(rig.run.ckpt / "step_00000005").manifest.heard


def test_a_later_agent_knows_it_of_what_was_taken_and_not_published(tmp_path: Path) -> None:
    """The mark says so, as a step that the checkpoint did not tell."""
    run = new_run(tmp_path)
    done = put_heard(run, 40)
    assert read(run.ckpt / done).manifest.heard


def put_heard(run: RunFolder, step: int, epoch: int = 1) -> str:
    path = run.staging(epoch) / f"step_{step}"
    path.mkdir()
    (path / "ckpt.pt").write_bytes(f"weights {step}".encode())
    (path / "COMPLETE").write_bytes(json.encode(Mark("single_file", heard=True)))
    (staged,) = StagingWatch(run.staging(epoch), SETTLE, ManualClock()).scan()
    return publish(run, staged, epoch, mine).name


# -- did the resume take? ----------------------------------------------------------------------------------------------


def test_a_step_that_it_tells_itself_is_the_least(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put(run, 1, 100)
    assert floor(run, put(run, 1, 200).name) == 199
    assert floor(run, None) is None
    assert floor(run, "step_00000300") is None


def test_one_that_was_heard_may_be_of_any_after_the_one_before_it(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert floor(run, put_heard(run, 100)) == 1
    assert floor(run, put_heard(run, 200)) == 100
    take(run, 2, "step_00000200")
    assert floor(run, put_heard(run, 300, 2)) == 200


def test_and_where_it_was_saved_again_at_one_step(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put(run, 1, 200)
    assert floor(run, put_heard(run, 200)) == 199


@pytest.mark.parametrize(("first", "alarmed"), [(181, False), (101, False), (100, True), (1, True), (201, False)])
def test_no_alarm_where_its_trainer_may_have_gone_on_from_it(tmp_path: Path, first: int, alarmed: bool) -> None:
    records = Records()
    check = Resumed(200, "step_00000200", records, floor=100)
    check.publisher = records
    check.stepped(first, told=False)
    check.published(saved(first))
    assert (check.ignored, not records.may_prune) == (alarmed, alarmed)
    assert ("resume.ignored" in records.told) is alarmed


@pytest.mark.parametrize("ignored", [True, False])
def test_nor_does_its_end_say_so(ignored: bool) -> None:
    progress = Progress(200)
    progress.see("step 181/300 loss 1.0", 1.0)
    progress.see("step 300/300 loss 1.0", 2.0)
    message = judge(Ended(0, Stop(), progress, 300, "", ignored=ignored)).message
    assert ("the resume did not take" in message) is ignored
