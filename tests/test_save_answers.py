"""Which checkpoint answers an order to save: only one that was begun after it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_kit import new_run, stage
from publisher_kit import Rig
from taking_kit import in_memory, state
from test_adapters_kinds import KINDS
from test_taking import Rig as TakingRig
from writers import hf_trainer, megatron, single_file
from writers.kit import Steps, make_folder, moved_in, torch_zip

from relay_agent.checkpoints import begun
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.volume.volume import RunFolder

SETTLE = 5.0


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


def wait_for_the_clock(run: RunFolder) -> None:
    """Of the volume: it is coarse."""
    before = run.root.stat().st_mtime_ns
    while run.root.stat().st_mtime_ns <= before:
        os.utime(run.root)


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


HALVES = (".step_80.tmp.4711", ".tmp-step_80", ".tmpabc", "step_80.partial", ".step_00000080.tmp")


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("atomic", [True, False])
async def test_nor_under_any_other_name(rig: Rig, name: str, atomic: bool) -> None:
    rig.run = replace(rig.run, atomic=atomic)
    publisher = rig.publisher(marks=True)
    going_on = stage(rig.run, 1, 80).path
    wait_for_the_clock(rig.run)
    half = going_on.rename(going_on.with_name(name))
    await publisher.asked_to_save()
    if atomic:  # all of its bytes may come yet
        for file in filter(Path.is_file, half.rglob("*")):
            file.write_bytes(file.read_bytes())
    half.rename(going_on)
    assert await settles(rig, publisher) == 0
    assert rig.told.steps == [80], "published it is all the same"
    stage(rig.run, 1, 81)
    assert await settles(rig, publisher) == 1


async def test_an_answer_may_hold_files_that_are_older_than_what_was_saved_before_it(rig: Rig) -> None:
    """Trainers copy a tokenizer with its times, and link what did not change."""
    publisher = rig.publisher(marks=True)
    first = rig.run.claims.stat().st_mtime_ns - 10**9
    os.utime(stage(rig.run, 1, 79).path / "weights.bin", ns=(first, first))
    await publisher.asked_to_save()
    answer = stage(rig.run, 1, 80).path
    os.utime(answer / "shard" / "0.bin", ns=(first, first))
    assert await settles(rig, publisher) == 1
    last = max(file.stat().st_mtime_ns for file in (rig.run.ckpt / "step_00000079").rglob("0.bin"))
    wait_for_the_clock(rig.run)
    await publisher.asked_to_save()
    answer = stage(rig.run, 1, 81).path
    os.utime(answer / "shard" / "0.bin", ns=(last, last))
    assert await settles(rig, publisher) == 2


async def test_nor_does_a_small_copy_that_keeps_its_times_make_it_older(rig: Rig) -> None:
    """A log of the trainer's own, written to since its last save: a drain let it train on to the end of its grace."""
    publisher = rig.publisher(marks=True)
    log = rig.run.output(1) / "metrics.csv"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("1,0.5")
    wait_for_the_clock(rig.run)
    await publisher.asked_to_save()
    answer = stage(rig.run, 1, 80, marker=False).path
    shutil.copy2(log, answer)
    (answer / "COMPLETE").touch()
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

    monkeypatch.setattr(begun, "_listed", slow)
    monkeypatch.setattr(begun, "TOLD_WITHIN", 0.01)
    publisher = rig.publisher()
    await publisher.asked_to_save()
    stage(rig.run, 1, 1)
    assert await settles(rig, publisher) == 0
    answers.set()
    await publisher.asked_to_save()
    monkeypatch.setattr(begun, "TOLD_WITHIN", 60.0)
    await publisher.asked_to_save()
    stage(rig.run, 1, 2)
    assert await settles(rig, publisher) == 1


@pytest.mark.parametrize(("marks", "seconds"), [(None, 60), (False, 5)])
async def test_one_that_keeps_still_is_awaited_until_it_is_published(
    rig: Rig, marks: bool | None, seconds: int
) -> None:
    publisher = rig.publisher(marks=marks)
    stage(rig.run, 1, 80, marker=False)
    await publisher.look()
    await publisher.asked_to_save()
    assert publisher.awaited == "", "that one is not what was asked for"
    stage(rig.run, 1, 91, marker=False)
    await publisher.look()
    words = f"step_91 is there; it is whole once nothing in it changed for {seconds} s"
    assert publisher.awaited == words
    undecided: list[bool] = []

    async def asks() -> bool:
        undecided.append(publisher.undecided)
        return True

    publisher.catch_up = asks
    for _ in rig.clock.watch(seconds):
        await publisher.look()
    await publisher.look()
    assert (rig.told.steps, publisher.awaited, publisher.answers.count) == ([80, 91], "", 1)
    assert all(undecided), "while it goes into the line, too"


async def test_one_without_its_mark_is_not_awaited(rig: Rig) -> None:
    publisher = rig.publisher(marks=True)
    await publisher.asked_to_save()
    stage(rig.run, 1, 91, marker=False)
    await publisher.look()
    assert publisher.awaited == ""


async def test_what_is_torn_says_how_long_it_kept_still(rig: Rig) -> None:
    publisher = rig.publisher()
    stage(rig.run, 1, 91, marker=False)
    await publisher.look()
    for _ in rig.clock.watch(24):
        await publisher.look()
    await publisher.finish(143)
    ((kind, words),) = rig.told.events
    assert kind == "checkpoint.torn"
    assert "the trainer exited with 143 before it had kept still for 60 s (it had for 24 s);" in words


# -- in the trainer's own folder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("grows", [True, False])
async def test_nor_is_one_in_the_trainers_own_folder(tmp_path: Path, grows: bool) -> None:
    rig = TakingRig(tmp_path)
    await rig.taking.prepare(None)
    file = rig.out / "last.bin"
    file.write_bytes(b"nothing marks its end")
    assert await rig.look() == []
    await rig.publisher.asked_to_save()
    assert rig.publisher.awaited == ""
    if grows:
        file.write_bytes(b"nothing marks its end, and it was going on")
    published = [step for _ in range(14) for step in await rig.look()]
    assert (published, rig.publisher.answers.count) == ([77], 0)
    file.write_bytes(b"what it was asked for")
    await rig.look()
    assert rig.publisher.awaited == "last.bin is there; it is whole once nothing in it changed for 5 s"
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


def replaced_file(out: Path, step: int) -> Steps:
    """One file, whole under another name before it gets its own."""
    yield from make_folder(out)
    yield from moved_in(out / "ckpt.pt", torch_zip(str(step), {"iter_num": step}), f".ckpt.{step}.part")


SAVES: dict[str, Callable[[Path, int], Steps]] = {
    **{name: kind.save for name, kind in KINDS.items()},
    "hf_trainer": hf_trainer.save,
    "megatron": megatron.save,
    "single_file": single_file.save,
    "replaced_file": replaced_file,
}


QUICK = 1.0
"""Seconds that a save has to keep still: it is looked at ten times within them while its trainer goes on."""


def has_begun(out: Path, before: dict[str, tuple[int, int, int]]) -> bool:
    """Its folder may be there already, and it may delete older ones first."""
    return any(
        name not in before or (is_ != before[name] and (out / name).is_file()) for name, is_ in state(out).items()
    )


async def awhile(rig: TakingRig) -> list[int]:
    """What was published until all that has to keep still did so, and in one more look."""
    return [step for _ in range(int(QUICK) + 2) for step in await rig.look(1.0)]


@pytest.mark.parametrize("kind", SAVES)
async def test_an_order_in_the_midst_of_a_save_is_answered_by_the_next_one(tmp_path: Path, kind: str) -> None:
    """A world has room for a few orders: the more lies in it, the longer its looks take. Once two were saved each save
    goes as the one before it: there is an older one to delete."""
    save, midst, did = SAVES[kind], 0, [""]
    while len(did) >= midst:
        with tempfile.TemporaryDirectory(dir=in_memory(tmp_path)) as place:
            rig = TakingRig(Path(place), RELAY_SETTLE_SECONDS=f"{QUICK:g}")
            await rig.taking.prepare(None)
            for step in (1, 2):
                list(save(rig.out, step))
                assert await awhile(rig) == [step]
            for step in (3, 5, 7, 9):
                midst += 1
                before, answered = state(rig.out), rig.publisher.answers.count
                going_on = save(rig.out, step)
                did = [done for done, _ in zip(going_on, range(midst), strict=False)]
                while did and not has_begun(rig.out, before):
                    did.append(next(going_on))
                    midst += 1
                if len(did) < midst:
                    break
                wait_for_the_clock(rig.run)
                await rig.publisher.asked_to_save()
                came = [came for _ in going_on for came in await rig.look(QUICK / 10)] + await awhile(rig)
                assert (came, rig.publisher.answers.count) == ([step], answered), did[-1]
                list(save(rig.out, step + 1))
                assert await awhile(rig) == [step + 1]
                count = rig.publisher.answers.count
                assert count == answered + 1, f"the answer itself; it was asked for after {did[-1]}"
    assert midst > 2
