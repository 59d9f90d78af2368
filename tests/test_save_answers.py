"""Which checkpoint answers an order to save: only one that was begun after it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from checkpoint_kit import new_run, stage
from test_agent_publisher import Rig
from test_taking import Rig as TakingRig

from relay_agent.checkpoints import publisher as publisher_module
from relay_agent.checkpoints.publisher import Publisher

SETTLE = 5.0


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


async def settles(rig: Rig, publisher: Publisher) -> int:
    """How many answers came by then."""
    await publisher.look()
    for _ in rig.clock.watch(SETTLE):
        await publisher.look()
    await publisher.look()
    return publisher.answers.count


async def test_a_save_that_had_not_settled_when_the_order_came_is_no_answer(rig: Rig) -> None:
    publisher = rig.publisher(marks=False)
    stage(rig.run, 1, 80, marker=False)
    await publisher.look()
    await publisher.asked_to_save()
    assert await settles(rig, publisher) == 0
    assert rig.told.steps == [80], "published it is all the same"
    stage(rig.run, 1, 89, marker=False)
    assert await settles(rig, publisher) == 1
    assert rig.told.steps == [80, 89]


async def test_nor_is_one_under_the_name_of_a_save_that_goes_on(rig: Rig) -> None:
    publisher = rig.publisher(marks=False)
    going_on = stage(rig.run, 1, 80).path
    going_on.rename(going_on.with_name(".step_80.tmp"))
    await publisher.asked_to_save()
    going_on.with_name(".step_80.tmp").rename(going_on)
    assert await settles(rig, publisher) == 0
    stage(rig.run, 1, 80, "and once more at the same step")
    assert await settles(rig, publisher) == 1


async def test_each_order_begins_anew(rig: Rig) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 1)
    assert await settles(rig, publisher) == 0, "nobody asked"
    await publisher.asked_to_save()
    stage(rig.run, 1, 2)
    await publisher.asked_to_save()
    assert await settles(rig, publisher) == 0
    stage(rig.run, 1, 3)
    assert await settles(rig, publisher) == 1


async def test_until_it_is_known_what_had_begun_nothing_is_an_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def slow(root: Path) -> list[str]:
        answers.wait(60)
        return [path.name for path in root.iterdir()]

    monkeypatch.setattr(publisher_module, "_listed", slow)
    monkeypatch.setattr(publisher_module, "TOLD_WITHIN", 0.01)
    publisher = rig.publisher()
    await publisher.asked_to_save()
    stage(rig.run, 1, 1)
    assert await settles(rig, publisher) == 0
    answers.set()
    await publisher.asked_to_save()
    monkeypatch.setattr(publisher_module, "TOLD_WITHIN", 60.0)
    await publisher.asked_to_save()
    stage(rig.run, 1, 2)
    assert await settles(rig, publisher) == 1


# -- in the trainer's own folder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("grows", [True, False])
async def test_nor_is_one_in_the_trainers_own_folder(tmp_path: Path, grows: bool) -> None:
    rig = TakingRig(tmp_path)
    await rig.taking.prepare(None)
    file = rig.out / "last.bin"
    file.write_bytes(b"nothing marks its end")
    assert await rig.look() == []
    await rig.publisher.asked_to_save()
    if grows:
        file.write_bytes(b"nothing marks its end, and it was going on")
    published = [step for _ in range(14) for step in await rig.look()]
    assert (published, rig.publisher.answers.count) == ([77], 0)
    file.write_bytes(b"what it was asked for")
    published = [step for _ in range(14) for step in await rig.look()]
    assert (len(published), rig.publisher.answers.count) == (1, 1)


async def test_what_was_taken_and_waits_is_none_either(tmp_path: Path) -> None:
    rig = TakingRig(tmp_path)
    await rig.taking.prepare(None)
    file = rig.out / "last.bin"
    file.write_bytes(b"nothing marks its end")
    for _ in range(14):
        rig.clock.now += 0.5
        await rig.taking.take(rig.taking.scan())
    await rig.publisher.asked_to_save()
    assert await rig.look() == [77]
    assert rig.publisher.answers.count == 0
