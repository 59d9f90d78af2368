"""What of an attempt goes to the artifact store, when, and what is made of failures; with a child that is a fake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import ManualClock, new_run, put, take
from commander_kit import until
from msgspec import Struct

from relay_agent.artifacts.jobs import Attach, Attached, Kept, Put, Store
from relay_agent.artifacts.upkeep import Upkeep
from relay_agent.artifacts.wish import Wish
from relay_agent.checkpoints.retention import Best
from relay_agent.sending.schedule import TRIES
from relay_agent.sending.sender import Holder
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from relaytui.wire.reports import Transfer

STORE = Store("http://127.0.0.1:9", "secret", "run-1", 1, "token")


@dataclass
class Told:
    """In place of a Teller."""

    events: list[tuple[str, str]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)

    def event(self, kind: str, message: str, data: Any = None, *, send: bool = True) -> None:
        self.events.append((kind, message))

    def transfer(self, report: Transfer) -> None:
        self.transfers.append(report)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@dataclass
class Child:
    """In place of the child process: what it was asked, and what it does about it."""

    jobs: list[Struct] = field(default_factory=list)
    wrong: list[Trouble] = field(default_factory=list)
    """What comes of the next puts."""
    spoilt: set[str] = field(default_factory=set)
    """Names of checkpoints that are damaged."""
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    on_put: Callable[[Put], None] = lambda job: None

    async def call(self, job: Struct, result: type[Any], **more: Any) -> Any:
        self.jobs.append(job)
        assert "secret" not in repr(job)
        assert more["may"]("finish") > 0
        if isinstance(job, Attach):
            return Attached(["a.json"], ["b.json: too large"])
        assert isinstance(job, Put)
        more["on_phase"]("uploading")
        more["on_progress"](500, 1000)
        self.on_put(job)
        await self.hold.wait()
        if self.wrong:
            raise self.wrong.pop(0)
        if Path(job.folder).name in self.spoilt:
            raise Trouble("damaged", "'weights.bin' is not what was saved", "permanent")
        return Kept(len(self.puts), 1000, 1000, False)

    @property
    def puts(self) -> list[str]:
        return [Path(job.folder).name for job in self.jobs if isinstance(job, Put)]

    @property
    def finals(self) -> list[bool]:
        return [job.final for job in self.jobs if isinstance(job, Put)]


@dataclass
class Rig:
    upkeep: Upkeep
    child: Child
    told: Told
    run: RunFolder
    clock: ManualClock
    task: asyncio.Task[None]
    held: list[float]
    epoch: int = 1

    def publish(self, step: int, **options: Any) -> str:
        done = put(self.run, self.epoch, step, **options)
        self.upkeep.published(done)
        return done.name

    async def end(self, *, final: bool = True) -> None:
        self.upkeep.close(final=final)
        await asyncio.wait_for(self.task, 5)


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    @asynccontextmanager
    async def made(
        which: str, *, best: Best | None = None, files: tuple[str, ...] = (), epoch: int = 1, base: str | None = None
    ) -> AsyncIterator[Rig]:
        """`epoch`, `base`: of a later attempt, and what it goes on from."""
        run = new_run(tmp_path) if not (tmp_path / "runs").exists() else new_run(tmp_path, None)
        if base is not None:
            take(run, epoch, base)
        clock, child, told, held = ManualClock(), Child(), Told(), [100.0]
        child.hold.set()
        wish = Wish(which, best, files, 60.0, str(tmp_path))  # type: ignore[arg-type]
        holder = Holder(run, epoch, lambda: held[0], told, clock, random.Random(1))
        upkeep = Upkeep(wish, lambda: STORE, holder, child.call)
        task = asyncio.create_task(upkeep.run())
        try:
            yield Rig(upkeep, child, told, run, clock, task, held, epoch)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return made


async def test_final_sends_the_last_one_at_the_end_and_nothing_before(make: Make) -> None:
    async with make("final") as rig:
        rig.publish(1)
        last = rig.publish(2)
        await asyncio.sleep(0)
        assert rig.upkeep.size_left() > 0
        assert rig.child.jobs == []
        await rig.end()
        assert (rig.child.puts, rig.child.finals) == ([last], [True])
        assert rig.told.kinds() == ["artifact.stored"]
        done = rig.told.transfers[-1]
        assert (done.kind, done.phase, done.step, done.synced, done.done) == ("artifact", "done", 2, 2, 1000)
        assert rig.upkeep.size_left() == 0
    async with make("final") as rig:
        await rig.end()
        assert rig.child.jobs == [], "another agent does not even read it again"


async def test_told_of_the_end_while_it_looks_it_looks_once_more(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make("final") as rig:
        looked = rig.upkeep.next

        def look(**when: bool) -> Any:
            found = looked(**when)
            loop.call_soon_threadsafe(lambda: rig.upkeep.close(final=True))
            return found

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(rig.upkeep, "next", look)
        last = rig.publish(1)
        await asyncio.wait_for(rig.task, 5)
        assert rig.child.puts == [last]


async def test_every_one_is_sent_or_those_that_came_meanwhile_give_way(make: Make) -> None:
    async with make("every") as rig:
        rig.child.hold.clear()
        first = rig.publish(1)
        await until(lambda: rig.child.puts)
        assert rig.upkeep.pins == {first}
        rig.publish(2)
        third = rig.publish(3)
        rig.child.hold.set()
        await until(lambda: len(rig.child.puts) == 2)
        await rig.end(final=False)
        assert (rig.child.puts, rig.child.finals) == ([first, third], [False, False])
        assert rig.upkeep.pins == set()
    async with make("every") as rig:
        await rig.end()
        assert (rig.child.puts, rig.child.finals) == ([third], [True]), "what the run ends with is marked"


async def test_best_sends_what_is_better_and_the_last(make: Make) -> None:
    async with make("best", best=Best("loss")) as rig:
        first = rig.publish(1, metrics={"loss": 2.0})
        await until(lambda: rig.child.puts == [first])
        rig.publish(2, metrics={"loss": 3.0})
        better = rig.publish(3, metrics={"loss": 1.0})
        await until(lambda: rig.child.puts[-1] == better)
        last = rig.publish(4, metrics={"loss": 1.5})
        await rig.end()
        assert (rig.child.puts, rig.child.finals) == ([first, better, last], [False, False, True])


async def test_what_was_saved_while_the_loss_was_bad_is_not_sent(make: Make) -> None:
    async with make("every") as rig:
        well = rig.publish(1)
        await until(lambda: rig.child.puts)
        rig.publish(2, healthy=False)
        await rig.end()
        assert rig.child.puts == [well, well]
        assert rig.child.finals == [False, True]


async def test_a_failure_that_may_pass_is_tried_again(make: Make) -> None:
    async with make("every") as rig:
        rig.child.wrong = [Trouble("unreachable", "nobody there", "transient") for _ in range(3)]
        rig.publish(1)
        for tries in range(1, 4):
            await until(lambda: len(rig.child.puts) == tries)  # noqa: B023
            await until(lambda: len(rig.child.wrong) == 3 - tries)  # noqa: B023
            await asyncio.sleep(0)
            rig.clock.now += 1000.0
            rig.upkeep._wake.set()
        await until(lambda: "artifact.stored" in rig.told.kinds())
        waits = [report for report in rig.told.transfers if report.error]
        assert [(report.phase, report.attempt, report.error) for report in waits] == [
            ("waiting", number, "nobody there") for number in (2, 3, 4)
        ]
        assert rig.told.kinds() == ["artifact.stored"]


async def test_the_end_does_not_wait_for_ever(make: Make) -> None:
    async with make("final") as rig:
        rig.publish(1)
        rig.child.wrong = [Trouble("unreachable", "nobody there", "transient") for _ in range(100)]
        rig.upkeep.close(final=True)
        for _ in range(TRIES):
            await until(lambda: rig.task.done() or rig.upkeep._schedule.left(rig.clock.now) > 0)
            rig.clock.now += 1000.0
            rig.upkeep._wake.set()
        await asyncio.wait_for(rig.task, 5)
        assert len(rig.child.puts) == TRIES
        assert rig.told.kinds() == ["artifact.failed"]


@pytest.mark.parametrize("which", ["final", "every", "best"])
async def test_what_a_run_ends_with_is_the_newest_that_is_whole(make: Make, which: str) -> None:
    async with make(which, best=Best("loss") if which == "best" else None) as rig:
        rig.child.hold.clear()
        first, second, third = (rig.publish(step, metrics={"loss": 4.0 - step}) for step in (1, 2, 3))
        rig.child.spoilt = {second, third}
        rig.child.hold.set()
        assert rig.upkeep.size_left(final=True) > 0
        await rig.end()
        sent = [(Path(job.folder).name, job.final) for job in rig.child.jobs if isinstance(job, Put)]
        assert sent[-3:] == [(third, True), (second, True), (first, True)]
        assert rig.told.kinds()[-3:] == ["artifact.failed", "artifact.failed", "artifact.stored"]
        assert rig.told.transfers[-1].checkpoint == first
        assert rig.upkeep.size_left(final=True) == 0


async def test_what_is_there_already_is_sent_once_more_to_be_marked_as_the_last(make: Make) -> None:
    async with make("every") as rig:
        name = rig.publish(1)
        await until(lambda: rig.told.kinds() == ["artifact.stored"])
        await until(lambda: rig.upkeep.size_left() == 0)
        assert rig.upkeep.size_left(final=True) > 0, "or the end would not wait for it"
        await rig.end()
        assert (rig.child.puts, rig.child.finals) == ([name, name], [False, True])
        assert rig.upkeep.size_left(final=True) == 0


async def test_what_the_fence_held_back_is_tried_again(make: Make) -> None:
    async with make("every") as rig:
        rig.child.wrong = [Trouble("refused", "the lease is not safely ours: no finish", "transient")]
        rig.publish(1)
        await until(lambda: rig.told.kinds() == ["artifact.refused"])
        rig.clock.now += 1000.0
        rig.upkeep._wake.set()
        await until(lambda: rig.told.kinds() == ["artifact.refused", "artifact.stored"])


async def test_a_failure_for_good_is_said_once_and_tried_once_more_at_the_end(make: Make) -> None:
    async with make("every") as rig:
        rig.child.wrong = [Trouble("quota", "no room", "permanent")]
        rig.publish(1)
        await until(lambda: rig.told.kinds() == ["artifact.failed"])
        for step in (2, 3):
            rig.publish(step)
        await asyncio.sleep(0.01)
        assert len(rig.child.puts) == 1
        rig.child.wrong = [Trouble("quota", "no room", "permanent")]
        await rig.end()
        assert len(rig.child.puts) == 2
        assert rig.told.kinds() == ["artifact.failed"] * 2


async def test_a_checkpoint_that_is_spoilt_is_passed_over(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    async with make("every") as rig:
        first = rig.publish(1)
        await until(lambda: rig.child.puts == [first])
        rig.child.wrong = [Trouble("damaged", "it is torn", "permanent")]
        rig.publish(2)
        await until(lambda: "artifact.failed" in rig.told.kinds())
        third = rig.publish(3)
        await until(lambda: rig.child.puts[-1] == third)
        said = capsys.readouterr().err
        assert "failed: it is torn; that checkpoint is passed over; training goes on" in said
        assert "tried again" not in said


async def test_what_came_as_something_else_is_sent_anew(make: Make) -> None:
    async with make("every") as rig:
        rig.child.wrong = [Trouble("wrong_hash", "it is not", "unknown")]
        name = rig.publish(1)
        await until(lambda: len(rig.child.puts) == 1)
        await until(lambda: not rig.child.wrong)
        await asyncio.sleep(0)
        rig.clock.now += 1000.0
        rig.upkeep._wake.set()
        await until(lambda: "artifact.stored" in rig.told.kinds())
        assert rig.child.puts == [name, name]


@pytest.mark.parametrize("claimed", [False, True])
async def test_who_may_not_have_the_run_any_more_sends_nothing(make: Make, claimed: bool) -> None:
    async with make("every") as rig:
        if claimed:
            take(rig.run, 2)
        else:
            rig.held[0] = 0.0
        rig.publish(1)
        await until(lambda: rig.told.transfers or rig.upkeep._schedule.tries > 1)
        assert rig.child.jobs == []


@pytest.mark.parametrize("code", ["lease_lost", "not_holder"])
async def test_a_lost_lease_ends_it(make: Make, code: str) -> None:
    async with make("every", files=("*.json",)) as rig:
        rig.child.wrong = [Trouble(code, "another one has it", "permanent")]
        rig.publish(1)
        rig.upkeep.close(final=True)
        await asyncio.wait_for(rig.task, 5)
        assert len(rig.child.jobs) == 1


async def test_small_files_go_at_the_end(make: Make) -> None:
    async with make("none", files=("*.json",)) as rig:
        rig.publish(1)
        await asyncio.sleep(0.01)
        assert rig.child.jobs == []
        assert rig.upkeep.size_left() == 1
        await rig.end()
        (job,) = rig.child.jobs
        assert isinstance(job, Attach)
        assert Path(job.root) == rig.run.output(1)
        assert rig.told.events == [("artifact.left", "not attached: b.json: too large")]


@pytest.mark.parametrize("which", ["every", "best"])
async def test_another_attempt_asks_once_whether_it_is_still_there(make: Make, which: str) -> None:
    """The commander may have been restored from a backup since, or be another one, and know nothing of it."""
    best = Best("loss") if which == "best" else None
    async with make(which, best=best) as rig:
        name = rig.publish(1, metrics={"loss": 1.0})
        await until(lambda: rig.told.kinds() == ["artifact.stored"])
    async with make(which, best=best, epoch=2, base=name) as rig:
        assert rig.upkeep.size_left() > 0
        await until(lambda: rig.told.kinds() == ["artifact.stored"])
        rig.upkeep.published(None)  # type: ignore[arg-type]
        await until(lambda: not rig.upkeep._wake.is_set())
        assert rig.told.transfers[-1].synced == 1
        assert rig.upkeep.size_left() == 0
        assert rig.child.puts == [name]
    async with make(which, best=best, epoch=2) as rig:
        rig.upkeep.published(None)  # type: ignore[arg-type]
        await until(lambda: not rig.upkeep._wake.is_set())
        assert (rig.child.puts, rig.upkeep.size_left()) == ([], 0), "another agent of the same attempt need not"


async def test_a_run_that_ended_and_ends_again_offers_it_again_and_only_once(make: Make) -> None:
    async with make("final") as rig:
        name = rig.publish(1)
        await rig.end()
        assert rig.child.finals == [True]
    async with make("final", epoch=2, base=name) as rig:
        assert rig.upkeep.size_left(final=True) > 0
        await rig.end()
        assert (rig.child.puts, rig.child.finals) == ([name], [True])
        assert rig.upkeep.size_left(final=True) == 0


@pytest.mark.parametrize("data", [b"", b"[", b"[1]", b"null", b'[{"name":"../x"}]', b"[" * 100_000, b"\xff"])
async def test_a_note_that_says_nothing_is_no_trouble(make: Make, tmp_path: Path, data: bytes) -> None:
    async with make("every") as rig:
        name = rig.publish(1)
        await until(lambda: rig.told.kinds() == ["artifact.stored"])
        note = rig.run.root / "artifacts" / "stored.json"
        await until(note.exists)
    note.write_bytes(data)
    async with make("every") as rig:
        rig.upkeep.published(None)  # type: ignore[arg-type]
        await until(lambda: rig.child.puts == [name])


async def test_a_link_in_place_of_the_note_is_not_written_through(make: Make, tmp_path: Path) -> None:
    async with make("every") as rig:
        (rig.run.root / "artifacts").mkdir()
        (tmp_path / "victim").write_text("mine")
        (rig.run.root / "artifacts" / "stored.json").symlink_to(tmp_path / "victim")
        rig.publish(1)
        await until(lambda: rig.told.kinds() == ["artifact.stored"])
        await rig.end(final=False)
    assert (tmp_path / "victim").read_text() == "mine"
