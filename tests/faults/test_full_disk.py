"""Real disks that are full, at every place of a publish where that can come: nothing torn is offered, nothing that was
there is lost, and once there is room all goes on by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path

import aiohttp
import pytest
from agent_rig import Rig, eventually
from checkpoint_kit import mine, names, new_run, put, stage, take, whole_names
from disks import ext4, fill, mount, unmount
from test_commander_durability import Process
from test_processes import Talker, steps

from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.staging import Staged
from relay_agent.volume.volume import RunFolder, highest_claim, read_claim
from relaytui.wire.errors import RelayError

LONG = os.environ.get("RELAY_FAULTS") == "long"

# -- a publish, with ever more room --------------------------------------------------------------------------------


@contextmanager
def blocks(place: Path) -> Iterator[Callable[[int], Path]]:
    """ext4 in blocks of 1 KiB."""
    with ext4(place, 4):
        yield lambda left: fill(place, left * 1024)


@contextmanager
def inodes(place: Path) -> Iterator[Callable[[int], Path]]:
    """Room, but no more files than so many."""
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=4m,nr_inodes=120", "relay-test", place)

    def all_but(left: int) -> Path:
        folder = place / "filler"
        folder.mkdir()
        with suppress(OSError):
            for number in count():
                (folder / str(number)).touch()
        for path in list(folder.iterdir())[:left]:
            path.unlink()
        return folder

    try:
        yield all_but
    finally:
        unmount(place)


def make_room(filler: Path) -> None:
    if filler.is_dir():
        for path in filler.iterdir():
            path.unlink()
        filler.rmdir()
    else:
        filler.unlink()


@pytest.mark.parametrize("atomic", [True, False], ids=["rename", "manifest"])
@pytest.mark.parametrize("kind", [blocks, inodes])
def test_a_publish_with_ever_more_room(
    tmp_path: Path, kind: Callable[[Path], AbstractContextManager[Callable[[int], Path]]], atomic: bool
) -> None:
    with kind(tmp_path / "volume") as all_but:
        run = RunFolder(new_run(tmp_path / "volume").root, atomic)
        for step in (1, 2):
            put(run, 1, step)
        step, refused = 3, 0
        for left in count():
            staged = stage(run, 1, step)
            filler = all_but(left)
            before = names(run)
            resume = choose(run)
            assert resume is not None
            newest = resume.step
            try:
                publish(run, staged, 1, mine)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
                refused += 1
                done = False
            else:
                done = True
            assert whole_names(run) == names(run)
            assert set(names(run)) >= set(before)
            resume = choose(run)
            assert resume is not None
            assert not resume.bad
            assert resume.step == step if done else resume.step in (newest, step)
            make_room(filler)
            if not done:
                publish(run, Staged(step, staged.path), 1, mine)
            resume = choose(run)
            assert resume is not None
            assert resume.step == step
            assert not staged.path.exists()
            prune(run, 2)
            step += 1
            if done and left > refused + 3:  # beyond what it needs
                break
        assert refused >= 1
        assert len(whole_names(run)) == 2


def test_a_claim_with_ever_more_room(tmp_path: Path) -> None:
    """Refused, or made whole: an epoch that was burned by half a claim is never anybody's again."""
    with blocks(tmp_path / "volume") as all_but:
        run = new_run(tmp_path / "volume")
        put(run, 1, 1)
        epoch, refused = 1, 0
        for left in count():
            epoch = max(epoch, highest_claim(run)) + 1
            filler = all_but(left)
            try:
                take(run, epoch, "step_00000001")
            except (OSError, RelayError):
                refused += 1
            else:
                made = read_claim(run, epoch)
                assert made is not None
                assert made.base == "step_00000001"
                if left > refused + 3:
                    break
            finally:
                make_room(filler)
            resume = choose(run)
            assert resume is not None
            assert (resume.step, resume.bad) == (1, ())
        assert refused >= 1


# -- a run on a volume that is full again and again ----------------------------------------------------------------

FILLS_ITS_VOLUME = """
import os, pathlib, sys, time
staging = pathlib.Path(os.environ["RELAY_CKPT_STAGING_ROOT"])
volume = pathlib.Path(os.environ["RELAY_L1_ROOT"])
filler, turn, end = volume / "filler", volume / "turn", volume / "end"

def fill(left):
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
        os.truncate(filler, max(0, filler.stat().st_size - left))

step = 0
def train():
    global step
    step += 1
    print(f"step {step}/10000 loss 1.0", flush=True)
    time.sleep(0.02)

for kilobytes in map(int, sys.argv[1:]):
    while not turn.exists():
        train()
    turn.unlink()
    folder = staging / f"step_{step}"
    folder.mkdir()
    (folder / "data.bin").write_bytes(os.urandom(100_000))
    mark = (folder / "COMPLETE").open("wb")
    os.rename(folder / "COMPLETE", folder / ".later")
    fill(kilobytes * 1024)
    os.rename(folder / ".later", folder / "COMPLETE")
while not end.exists():
    train()
print("step 10000/10000 loss 1.0", flush=True)
"""


def test_a_volume_that_fills_up_between_a_save_and_its_publishing(tmp_path: Path) -> None:
    with ext4(tmp_path / "volume", 8):
        rig = Rig(tmp_path)
        try:
            rig.start_commander()
            (tmp_path / "trainer.py").write_text(FILLS_ITS_VOLUME)
            left = (0, 1, 2, 4) if LONG else (0, 4)
            agent = rig.agent(f"exec {sys.executable} {tmp_path}/trainer.py {' '.join(map(str, left))}")
            eventually(lambda: rig.run()["step"] >= 5, "training")
            for number in range(len(left)):
                (rig.volume / "turn").touch()
                eventually((rig.volume / "filler").exists, "a full volume")
                eventually(lambda number=number: refusals(rig) > number or rig.run()["published"] > number, "its word")
                step = rig.run()["step"]
                eventually(lambda step=step: rig.run()["step"] > step + 10, "training on a full volume")
                assert len(rig.checkpoints()) >= number, "whole, all of them"
                (rig.volume / "filler").unlink()
                eventually(lambda number=number: rig.run()["published"] > number, "its publishing once there is room")
            (rig.volume / "end").touch()
            assert agent.wait() == 0, agent.says()
            assert refusals(rig) >= 1
            run = rig.run()
            *printed, last = steps(rig.lines())
            assert printed == list(range(1, len(printed) + 1)), "every line, once, in order"
            assert last == 10_000
            assert (run["status"], run["published"], len(run["attempts"])) == ("completed", len(left), 1)
        finally:
            rig.close()


def refusals(rig: Rig) -> int:
    """Told of."""
    return rig.kinds().count("checkpoint.no_space")


# -- the commander's disk ------------------------------------------------------------------------------------------


async def test_a_commander_whose_disk_is_full_again_and_again(tmp_path: Path) -> None:
    """With ever so little room, and killed there: what it acknowledged is there afterwards, each once, in order."""
    with ext4(tmp_path / "disk", 16) as disk:
        commander = Process(disk.place / "state")
        await commander.start()
        talkers = [Talker(number) for number in range(4)]
        over = asyncio.Event()
        alive = True
        try:
            async with aiohttp.ClientSession() as session:
                talking = [asyncio.create_task(talker.keep_talking(commander, session, over)) for talker in talkers]

                def acked() -> int:
                    return sum(talker.acked for talker in talkers)

                async def more(words: str) -> None:
                    before, end = acked(), time.monotonic() + 30
                    while acked() < before + 400:
                        assert time.monotonic() < end, words
                        await asyncio.sleep(0.02)

                for kilobytes in (0, 5, 100):
                    await more("it takes reports")
                    filler = fill(disk.place, kilobytes * 1024)
                    last, end = -1, time.monotonic() + 30
                    while acked() != last:
                        assert time.monotonic() < end, "it takes nothing more"
                        last = acked()
                        await asyncio.sleep(0.5)
                    if kilobytes:
                        commander.kill()
                        alive = False
                    filler.unlink()
                    if kilobytes:
                        await commander.start()
                        alive = True
                await more("it takes reports again")
                over.set()
                commander.kill()
                alive = False
                await asyncio.gather(*talking)
                await commander.start()
                alive = True
                for talker in talkers:
                    body = await commander.get(session, f"/api/runs/{talker.run_id}/log?limit=5000")
                    numbers = [int(line["text"].split()[1]) for line in body["lines"]]
                    assert all(after == before + 1 for before, after in pairwise(numbers)), "each once, in order"
                    assert numbers[-1] >= talker.acked, "what was acknowledged is there"
                    run = (await commander.get(session, f"/api/runs/{talker.run_id}"))["run"]
                    assert (run["epoch"], run["status"]) == (1, "running")
        finally:
            if alive:
                commander.kill()
