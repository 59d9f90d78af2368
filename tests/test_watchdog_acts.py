"""What a watchdog says and does: a real follower and stop, a clock that is told the time, a volume in a folder."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import new_run, put, stage, take
from commander_kit import FakeClock

from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.rollback import Rollback, note, notes
from relay_agent.outcome.stop import Stop, Why
from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relay_agent.volume.volume import RunFolder
from relay_agent.watchdog import growth, stacks
from relay_agent.watchdog.phases import Phase
from relay_agent.watchdog.resumed import Resumed
from relay_agent.watchdog.rules import Rules
from relay_agent.watchdog.stalls import Budgets
from relay_agent.watchdog.watch import Watchdog, duration
from relay_agent.watchdog.watched import Watched


class Pod:
    """A trainer's output as bytes, and its watchdog, looked at once a second."""

    def __init__(self, folder: RunFolder, rules: Rules, base: str | None = None, epoch: int = 1, step: int = 0) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.stop = Stop()
        self.told: list[tuple[str, str, Mapping[str, str]]] = []
        self.follower = Follower(Progress(step), self.clock, lambda _: None, lambda _: None, lambda: None)
        self.step = step
        self.newest_step: int | None = None
        self.only_healthy = False
        watched = Watched(rules, folder, epoch, base, self.follower, self.stop, self, self.clock, self)
        self.dog = Watchdog(watched, trainer=lambda: {os.getpid()})

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None:
        self.told.append((kind, message, data or {}))

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.told]

    async def passes(self, seconds: int, every: float = 1.0) -> None:
        for _ in range(int(seconds / every)):
            self.clock.advance(every)
            await self.dog.look()

    async def steps(self, count: int, loss: float | None = None) -> None:
        for _ in range(count):
            self.step += 1
            self.clock.advance(1.0)
            shown = loss if loss is not None else 2.0 + self.step % 7 / 100
            self.follower.feed(f"step {self.step}/9000 loss {shown:.4f}\n".encode())
            await self.dog.look()


@pytest.fixture(autouse=True)
def no_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path)


BUDGETS = Budgets(starting=30, loading=60, training=30, evaluating=60, saving=60)


async def test_a_stall_is_said_once_with_what_is_known_of_it_and_so_is_its_end(run: RunFolder) -> None:
    pod = Pod(run, Rules(BUDGETS))
    await pod.steps(10)
    pod.follower.feed(b"GET /health 200 OK\n")
    await pod.passes(100)
    await pod.steps(2)
    stalled, moving = pod.told
    kind, words, data = stalled
    assert kind == "trainer.stalled"
    assert words == (
        "stalled in training: it has made no step for 31 s (allowed: 30 s); its last words: GET /health 200 OK"
    )
    assert (data["phase"], data["seconds"], data["budget"]) == ("training", "31", "30")
    assert Path("/proc/self/comm").read_text().strip() in data["stacks"], "the trainer's only process is this one"
    kept = run.root / data["kept"]
    assert kept == run.logs / "e00000001.stall-1.txt"
    assert "no py-spy on this pod's PATH" in kept.read_text()
    assert (moving[0], moving[1]) == ("trainer.moving", "moving again, in training, after 101 s in training")
    assert not pod.stop.asked.is_set()


async def test_by_policy_it_is_started_anew(run: RunFolder) -> None:
    pod = Pod(run, Rules(BUDGETS, on_stall="restart"))
    await pod.passes(40)
    assert (pod.stop.why, pod.stop.ending, pod.stop.healthy) == (Why.AGAIN, "stalled", False)
    assert pod.stop.message == "stalled in starting for 31 s"
    await pod.passes(500)
    assert pod.kinds() == ["trainer.stalled"], "one that is being stopped is not watched"


async def test_a_save_that_grows_is_seen_where_nothing_is_printed(run: RunFolder) -> None:
    pod = Pod(run, Rules(BUDGETS))
    await pod.steps(10)
    folder = run.staging(1) / ".step_11.tmp"
    folder.mkdir()
    for written in range(40):
        with (folder / "weights.bin").open("ab") as file:
            file.write(b"x" * 100)
        await pod.passes(5)
        if pod.dog._measuring is not None:  # in a thread
            await pod.dog._measuring
        if pod.dog.watch.phase is Phase.SAVING and written > 20:
            break
    assert pod.dog.watch.phase is Phase.SAVING
    assert not pod.told


async def test_checkpoints_are_steps_where_none_are_printed(run: RunFolder) -> None:
    pod = Pod(run, Rules(BUDGETS))
    for step in range(1, 12):
        pod.follower.feed(b"...")
        pod.newest_step = 10 * step
        await pod.passes(20)
    assert not pod.told
    await pod.passes(390)
    assert pod.kinds() == ["trainer.stalled"], "20 times as long as from one to the next"


async def test_an_order_to_save_is_one_too(run: RunFolder) -> None:
    pod = Pod(run, Rules(BUDGETS))
    await pod.steps(10)
    pod.dog.save_asked()
    await pod.passes(55)
    assert not pod.told
    await pod.passes(10)
    assert pod.told[0][2]["phase"] == "saving"


async def test_a_volume_that_hangs_does_not_hold_it_up(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = asyncio.Event()

    async def never(self: object, since: float) -> None:
        await hangs.wait()

    monkeypatch.setattr(Watchdog, "_measure", never)
    pod = Pod(run, Rules(BUDGETS))
    await pod.passes(100)
    assert pod.kinds() == ["trainer.stalled"]


@pytest.mark.parametrize("policy", ["warn", "stop", "rollback"])
def test_who_acts_on_the_loss_hears_of_it_at_once(policy: Any) -> None:
    acts = policy != "warn"
    assert (Rules(on_nan=policy).acts_on_loss, Rules(on_diverge=policy).acts_on_loss) == (acts, acts)


@pytest.mark.parametrize(("policy", "asked"), [("warn", None), ("stop", "spoilt"), ("rollback", "diverged")])
async def test_a_loss_that_is_no_number(run: RunFolder, policy: str, asked: str | None) -> None:
    put(run, 1, 10)
    pod = Pod(run, Rules(on_nan=policy))  # type: ignore[arg-type]
    await pod.steps(20)
    await pod.steps(2, float("nan"))
    assert not pod.stop.asked.is_set(), "two may be a loss scale that was too high"
    await pod.steps(2, float("nan"))
    assert (pod.stop.ending or None) == asked
    assert pod.stop.healthy is (policy == "rollback")
    if policy == "rollback":
        assert pod.stop.message == (
            "the loss is not finite since step 21: going back to step_00000010 (rollback 1 of 2)"
        )
        assert notes(run)[1].step == 21
    if policy == "stop":
        assert pod.stop.message == (
            "the loss is not finite since step 21: stopped, as ON_NAN says; queued again it goes on from step_00000010"
        )
        assert not notes(run)[1].counts
    assert bool(notes(run)) is pod.only_healthy is (policy != "warn")


async def test_a_loss_that_diverges_is_said_and_marks_what_is_saved(run: RunFolder) -> None:
    put(run, 1, 90)
    pod = Pod(run, Rules(on_diverge="rollback"))
    await pod.steps(100)
    await pod.steps(19, 50.0)
    assert not pod.told
    assert [pod.follower.trend.healthy(step) for step in (100, 101, 110)] == [True, False, False]
    await pod.steps(5, 50.0)
    assert pod.kinds() == ["loss.diverging", "loss.rollback"]
    assert pod.told[0][2]["step"] == "101"
    assert pod.stop.message.endswith("going back to step_00000090 (rollback 1 of 2)")


async def test_what_was_saved_before_and_is_not_published_yet_is_waited_for(run: RunFolder) -> None:
    pod = Pod(run, Rules(on_nan="rollback"))
    await pod.steps(5)
    staged = stage(run, 1, 5)
    await pod.steps(30, float("nan"))
    assert not pod.stop.asked.is_set()
    publish(run, staged, 1, lambda: True)
    await pod.steps(1, float("nan"))
    assert "going back to step_00000005" in pod.stop.message
    never = Pod(run, Rules(on_nan="stop"), epoch=2)
    take(run, 2)
    stage(run, 2, 3)
    await never.steps(5)
    await never.steps(310, float("nan"))
    assert never.stop.ending == "spoilt", "though not for ever"


async def test_the_limit_holds_for_every_agent(run: RunFolder) -> None:
    put(run, 1, 10)
    for epoch in (1, 2):
        note(run, Rollback(epoch, 15, "nan", 1.7e9))
        take(run, epoch + 1, "step_00000010")
    pod = Pod(run, Rules(on_nan="rollback"), "step_00000010", epoch=3, step=10)
    await pod.steps(5)
    await pod.steps(4, float("nan"))
    assert pod.stop.ending == "spoilt"
    assert "the run went back 2 times already (ROLLBACKS): stopped" in pod.stop.message
    assert pod.kinds()[-1] == "loss.stopped"


async def test_one_without_a_single_number_goes_further_back(run: RunFolder) -> None:
    put(run, 1, 10)
    put(run, 1, 20)
    note(run, Rollback(1, 21, "nan", 1.7e9))
    take(run, 2, "step_00000020")
    pod = Pod(run, Rules(on_nan="rollback"), "step_00000020", epoch=2, step=20)
    await pod.steps(5, float("nan"))
    assert "going back to step_00000010 (rollback 2 of 2)" in pod.stop.message


async def test_with_nothing_saved_it_begins_anew_once_it_had_learnt_and_else_stops(run: RunFolder) -> None:
    pod = Pod(run, Rules(on_nan="rollback"))
    await pod.steps(5)
    await pod.steps(4, float("nan"))
    assert "going back to the beginning, as no checkpoint was saved before" in pod.stop.message
    hopeless = Pod(run, Rules(on_nan="rollback"), epoch=2)
    await hopeless.steps(4, float("nan"))
    assert (hopeless.stop.ending, hopeless.stop.healthy) == ("spoilt", False)
    assert hopeless.stop.message.endswith("no healthy checkpoint to go back to: stopped; queued again it begins anew")


async def test_a_volume_that_takes_no_note_goes_back_nowhere_and_is_tried_again(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(run, 1, 3)
    pod = Pod(run, Rules(on_nan="rollback"))
    await pod.steps(5)
    with monkeypatch.context() as broken:
        broken.setattr("relay_agent.checkpoints.rollback.write_new", _full)
        await pod.steps(50, float("nan"))
    assert pod.kinds() == ["loss.nonfinite", "loss.unnoted"]
    await pod.steps(30, float("nan"))
    assert pod.stop.healthy


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


async def test_what_an_agent_before_read_counts_for_the_next_one(run: RunFolder) -> None:
    """It was killed before it could act."""
    put(run, 1, 3)
    pod = Pod(run, Rules(on_nan="rollback"))
    pod.follower.replay(b"step 4/9 loss 2.0\nstep 5/9 loss nan\nstep 6/9 loss nan\nstep 7/9 loss nan\n")
    await pod.passes(1)
    assert pod.stop.healthy


# -- stacks ------------------------------------------------------------------------------------------------------

SPY = """#!/bin/sh
echo 'Process 7: python3 train.py --token secret'
echo 'Python v3.11.2 (/usr/bin/python3)'
echo
printf 'Thread 7 (idle): "MainThread"\\n    wait (threading.py:320)\\n    \\033[31mall_reduce\\033[0m (dist.py:9)\\n'
printf 'Thread 8 (idle): "Thread-1"\\n    poll (selectors.py:4)\\n'
"""


def spy(tmp_path: Path, script: str) -> dict[str, str]:
    program = tmp_path / "bin" / "py-spy"
    program.write_text(script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{program.parent}:/usr/bin:/bin"}


def test_stacks_of_py_spy_are_clean_and_in_short_the_innermost_frames(tmp_path: Path) -> None:
    text = stacks.look({os.getpid()}, spy(tmp_path, SPY))
    assert "\x1b" not in text
    assert "secret" not in text
    assert "selectors.py:4" in text
    short = stacks.short(text)
    assert short.endswith("wait (threading.py:320) < all_reduce (dist.py:9)")
    assert short.startswith(f"{os.getpid()} (")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nexec sleep 100\n", "py-spy was ended after"),
        ("#!/bin/sh\nyes yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n", "yyyy"),
        ("#!/bin/sh\necho 'Error: Permission Denied: try again with sudo'\nexit 1\n", "Permission Denied"),
        ("#!/nowhere\n", "py-spy cannot be run"),
        ("#!/bin/sh\nprintf '\\377\\376\\000'\n", "process"),
    ],
)
def test_whatever_py_spy_does_is_bounded(
    tmp_path: Path, script: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "SECONDS", 0.3)
    text = stacks.look({os.getpid()}, spy(tmp_path, script))
    assert said in text
    assert len(text) <= stacks.MAX_ALL + 2 * stacks.MAX_DUMP
    assert len(stacks.short(text)) <= 300


def test_processes_that_are_gone_are_said_to_be() -> None:
    assert "gone" in stacks.look({2**22 - 1}, {"PATH": "/nowhere"})


def test_a_stack_is_kept_through_no_link(tmp_path: Path, run: RunFolder) -> None:
    (tmp_path / "victim").write_text("mine")
    (run.logs / "e00000001.stall-1.txt").symlink_to(tmp_path / "victim")
    stacks.keep(run.logs, 1, 1, "text")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (run.logs / "e00000001.stall-1.txt").read_text() == "text"


# -- growth ------------------------------------------------------------------------------------------------------


def test_what_grows_is_measured_without_logs_links_and_beyond_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "out"
    (root / "checkpoint-5").mkdir(parents=True)
    (root / "checkpoint-5" / "model.bin").write_bytes(b"x" * 1_000)
    before = growth.measure([root, tmp_path / "nowhere"])
    assert before.bytes == 1_000
    (root / "train.log").write_bytes(b"x" * 10_000)
    (root / "events.out.tfevents.1").write_bytes(b"x" * 10_000)
    os.mkfifo(root / "fifo")
    (root / "loop").symlink_to(root)
    after = growth.measure([root])
    assert after.bytes == 1_000
    assert not growth.grew(before, after, mixed=True)
    with (root / "checkpoint-5" / "model.bin").open("ab") as file:
        file.truncate(3 << 20)
    assert growth.grew(after, growth.measure([root]), mixed=True)
    monkeypatch.setattr(growth, "MAX_ENTRIES", 50)
    for number in range(100):
        (root / f"n{number}").touch()
    assert growth.measure([root]).entries <= 51


def test_a_duration_in_words() -> None:
    assert [duration(seconds) for seconds in (31, 119, 721, 11_100)] == ["31 s", "119 s", "12 min", "3 h 05 min"]


# -- did the resume take? ----------------------------------------------------------------------------------------


@dataclass
class Records:
    may_prune: bool = True
    told: list[str] = field(default_factory=list)

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None:
        self.told.append(kind)

    def published(self, checkpoint: Published) -> None:
        self.told.append(checkpoint.name if self.may_prune else f"{checkpoint.name}, nothing to be pruned")

    def pruned(self, name: str) -> None:
        self.told.append(f"-{name}")


def resumed(name: str | None = "step_00000100") -> tuple[Resumed, Records]:
    records = Records()
    check = Resumed(100 if name else 0, name, records)
    check.publisher = records
    return check, records


def saved(step: int) -> Published:
    return Published(f"step_{step:08d}", step, 10, 1, "0" * 64, Path())


def test_a_trainer_that_begins_below_its_checkpoint_is_alarmed_of_once() -> None:
    check, records = resumed()
    check.stepped(1, told=False)
    check.published(saved(10))
    assert records.told == ["resume.ignored", "step_00000010, nothing to be pruned"]


def test_one_that_prints_no_steps_is_known_by_what_it_saves_before_anything_is_pruned() -> None:
    check, records = resumed()
    check.published(saved(10))
    assert records.told == ["resume.ignored", "step_00000010, nothing to be pruned"]


@pytest.mark.parametrize("step", [100, 101])
def test_one_that_goes_on_is_none_nor_one_that_began_anew(step: int) -> None:
    for check, records in (resumed(), resumed(None)):
        check.stepped(step, told=False)
        check.published(saved(step))
        assert (records.may_prune, records.told) == (True, [f"step_{step:08d}"])


def test_what_was_told_before_is_not_told_again_and_still_holds() -> None:
    for tell in (lambda check: check.stepped(1, True), lambda check: check.found(10)):
        check, records = resumed()
        tell(check)
        assert (records.may_prune, records.told) == (False, [])
