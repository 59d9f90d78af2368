"""When an attempt's checkpoints go to the Hub, and what comes of each try: with no process and no network."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import RUN, ManualClock, new_run, put, take

from relay_agent.attempt.telling import Teller
from relay_agent.checkpoints.publish import Published
from relay_agent.checkpoints.retention import Best, Retention
from relay_agent.hub.parcel import About
from relay_agent.hub.protocol import Check, Checked, Job, Send, Sent, Trim, Trimmed, Where
from relay_agent.hub.sync import HubSync
from relay_agent.hub.wish import Wish
from relay_agent.sending.sender import Holder
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from relaytui.wire.reports import Transfer
from relaytui.wire.status import TransferPhase


class Told:
    """Stands where a Teller does."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, str]]] = []
        self.transfers: list[Transfer] = []

    def event(self, kind: str, message: str, data: dict[str, str] | None = None, *, send: bool = True) -> None:
        self.events.append((kind, data or {}))

    def transfer(self, report: Transfer) -> None:
        self.transfers.append(report)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


class Hub:
    """Stands where the child process does: answers jobs, and fails as it is told."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.failures: list[Trouble] = []
        self.check: Trouble | None = None
        self.checked = Checked("me", False, True)
        self.during: Callable[[], None] = lambda: None
        self.hangs = False
        self.asks = True
        self.trimmed = Trimmed([], 0)

    async def __call__(self, job: Job, result: type[Any], *, may: Any = None, **options: Any) -> Any:
        self.jobs.append(job)
        if isinstance(job, Check):
            if self.check:
                raise self.check
            return self.checked
        if isinstance(job, Trim):
            return self.trimmed
        assert isinstance(job, Send)
        self.during()
        if self.hangs:
            await asyncio.Event().wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.asks and await asyncio.to_thread(may, "commit") <= 0:
            raise Trouble("refused", "the lease is not safely ours: no commit", "permanent")
        return Sent("c" * 40, f"step-{int(Path(job.folder).name[5:13])}", 10, False)

    @property
    def sent(self) -> list[str]:
        return [Path(job.folder).name for job in self.jobs if isinstance(job, Send)]


class Kit:
    def __init__(self, root: Path, **wish: Any) -> None:
        self.run: RunFolder = new_run(root)
        self.clock = ManualClock()
        self.told, self.hub = Told(), Hub()
        self.held = 100.0
        given: dict[str, Any] = {
            "where": Where("me/m", "hf_x"), "dry": False, "push": (), "interval": 1000.0, "on_improve": False,
            "keep": 0, "end_wait": 1800.0, "base_model": "", "rollouts": None, "cache": str(root),
        }  # fmt: skip
        self.wish = Wish(**{**given, **wish})
        tell: Teller = self.told  # type: ignore[assignment]
        holder = Holder(self.run, 1, lambda: self.held, tell, self.clock, random.Random(1))
        about = About("sft", "t", "d", "c")
        self.sync = HubSync(self.wish, holder, lambda: about, Retention(0, Best("loss")), self.hub)
        self.task: asyncio.Task[None] | None = None

    def again(self, **wish: Any) -> None:
        """The next attempt, on the same volume."""
        tell: Teller = self.told  # type: ignore[assignment]
        holder = Holder(self.run, 1, lambda: self.held, tell, self.clock, random.Random(1))
        self.wish = replace(self.wish, **wish)
        about = About("sft", "t", "d", "c")
        self.sync = HubSync(self.wish, holder, lambda: about, Retention(0, Best("loss")), self.hub)

    def put(self, step: int, **options: Any) -> Published:
        done = put(self.run, 1, step, **options)
        self.sync.published(done)
        return done

    def begin(self) -> None:
        self.task = asyncio.create_task(self.sync.run())

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    async def settled(self) -> None:
        """It has seen all that was told so far."""
        self.sync._wake.set()
        await self.until(lambda: not self.sync._wake.is_set() and not self.sync._busy)
        await asyncio.sleep(0.02)

    async def over(self) -> None:
        self.sync.close(final=True)
        assert self.task is not None
        await asyncio.wait_for(self.task, 10)


async def test_the_first_at_once_and_then_the_newest_in_its_turn(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.begin()
    kit.put(100)
    await kit.until(lambda: kit.told.kinds == ["hub.synced"])
    kit.put(200)
    kit.put(300)
    await kit.settled()
    assert kit.hub.sent == ["step_00000100"]
    kit.clock.now += 1001
    await kit.settled()
    await kit.until(lambda: kit.hub.sent == ["step_00000100", "step_00000300"])
    await kit.over()
    assert json.loads((kit.run.hf / "last_synced.json").read_text()) == {
        "repo": "me/m", "revision": "c" * 40, "step": 300, "at": kit.clock.wall(), "tag": "step-300",
        "checkpoint": "step_00000300", "manifest": kit.sync._last.manifest,  # type: ignore[union-attr]
        "choices": kit.wish.choices,
    }  # fmt: skip
    assert kit.told.transfers[-1].phase is TransferPhase.DONE
    assert kit.told.transfers[-1].synced == 300


async def test_the_end_sends_what_is_newest_and_no_more(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.begin()
    kit.put(100)
    await kit.until(lambda: kit.hub.sent)
    kit.put(200)
    await kit.settled()
    await kit.over()
    assert kit.hub.sent == ["step_00000100", "step_00000200"]
    assert await asyncio.to_thread(kit.sync.size_left) == 0


async def test_told_of_the_end_while_it_looks_it_looks_once_more(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    loop, looked = asyncio.get_running_loop(), kit.sync.next

    def look(**when: bool) -> Any:
        found = looked(**when)
        if found is None and not kit.hub.sent:
            put(kit.run, 1, 100)  # the last one is published
            loop.call_soon_threadsafe(functools.partial(kit.sync.close, final=True))
        return found

    kit.sync.next = look  # type: ignore[method-assign]
    kit.begin()
    assert kit.task is not None
    await asyncio.wait_for(kit.task, 10)
    assert kit.hub.sent == ["step_00000100"]


async def test_what_is_sent_is_pinned_for_as_long(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    pins: list[set[str]] = []
    kit.hub.during = lambda: pins.append(set(kit.sync.pins))
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.told.kinds)
    await kit.over()
    assert pins == [{"step_00000100"}]
    assert kit.sync.pins == set()


async def test_a_bad_token_is_said_at_once_and_once_and_an_order_tries_anew(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.hub.check = Trouble("bad_token", "the Hub does not know HF_TOKEN", "permanent")
    kit.begin()
    await kit.until(lambda: kit.told.kinds == ["hub.failed"])
    kit.put(100)
    kit.clock.now += 10_000
    await kit.settled()
    assert kit.hub.sent == []
    assert kit.sync.now("me").accepted
    await kit.until(lambda: kit.hub.sent == ["step_00000100"])
    await kit.until(lambda: kit.told.kinds == ["hub.failed", "hub.synced"])
    await kit.over()


async def test_what_passes_is_tried_again_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = Kit(tmp_path)
    kit.hub.failures = [Trouble("hub_trouble", "the Hub has trouble", "unknown") for _ in range(3)]
    kit.put(100)
    kit.begin()
    for count in (1, 2, 3, 4):
        await kit.until(lambda count=count: len(kit.hub.sent) == count)  # type: ignore[misc]
        await kit.settled()
        kit.clock.now += 1000
        kit.sync._wake.set()
    await kit.until(lambda: kit.told.kinds == ["hub.synced"])
    await kit.over()
    assert [report.attempt for report in kit.told.transfers if report.error] == [2, 3, 4]
    assert capsys.readouterr().err.count("the Hub has trouble") == 1


async def test_a_damaged_one_is_passed_over_for_the_next(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.hub.failures = [Trouble("damaged", "it is damaged", "permanent")]
    kit.put(100)
    kit.put(200)
    kit.begin()
    await kit.until(lambda: "hub.synced" in kit.told.kinds)
    await kit.over()
    assert kit.hub.sent == ["step_00000200", "step_00000100"]


async def test_only_what_was_saved_while_the_loss_was_well(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.put(100)
    kit.put(200, healthy=False)
    kit.begin()
    await kit.until(lambda: kit.told.kinds)
    await kit.over()
    assert kit.hub.sent == ["step_00000100"]


async def test_a_better_metric_does_not_wait_for_its_turn(tmp_path: Path) -> None:
    kit = Kit(tmp_path, on_improve=True, interval=100_000.0)
    kit.put(100, metrics={"loss": 2.0})
    kit.begin()
    await kit.until(lambda: kit.told.kinds)
    kit.clock.now += 100
    kit.put(200, metrics={"loss": 3.0})
    await kit.settled()
    assert kit.hub.sent == ["step_00000100"]
    kit.put(300, metrics={"loss": 1.0})
    await kit.until(lambda: kit.hub.sent == ["step_00000100", "step_00000300"])
    await kit.over()


async def test_the_end_leaves_no_more_steps_than_are_to_stay(tmp_path: Path) -> None:
    kit = Kit(tmp_path, keep=1)
    kit.hub.trimmed = Trimmed(["step-100"], 10)
    kit.put(100)
    kit.begin()
    await kit.over()
    assert [job.keep for job in kit.hub.jobs if isinstance(job, Trim)] == [1]
    assert kit.told.kinds == ["hub.synced", "hub.pruned"]


async def test_who_has_taken_over_waits_for_its_first_renewal_before_it_sends(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.held = -math.inf
    kit.put(100)
    kit.begin()
    await kit.settled()
    kit.held = 100.0
    await kit.until(lambda: kit.told.kinds)
    assert kit.told.kinds == ["hub.synced"], "it was never held back"
    await kit.over()


async def test_cut_off_it_sends_nothing_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.held = 0.0
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.told.kinds == ["hub.refused"])
    kit.clock.now += 100
    await kit.settled()
    assert kit.hub.sent == []
    assert kit.told.kinds == ["hub.refused"]
    kit.held = 50.0
    kit.clock.now += 100
    await kit.settled()
    await kit.until(lambda: kit.hub.sent == ["step_00000100"])
    await kit.over()


async def test_a_higher_claim_on_the_volume_ends_it_in_the_middle(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.hub.during = lambda: take(kit.run, 2, "step_00000100")
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.told.kinds == ["hub.refused"])
    assert not (kit.run.hf / "last_synced.json").exists()
    await kit.over()


async def test_a_dry_run_says_what_it_would_send_and_asks_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = Kit(tmp_path, dry=True, where=Where("me/m", ""), push=("weights.bin",))
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.told.kinds)
    await kit.over()
    assert kit.hub.jobs == []
    assert kit.told.events == [("hub.dry", {"repo": "me/m", "tag": "step-100", "bytes": "1200", "files": "1"})]
    shown = kit.told.transfers[-1]
    assert (shown.phase, shown.step, shown.checkpoint, shown.total) == (TransferPhase.DRY, 100, "step_00000100", 1200)
    assert "1 file of step_00000100, 1,200 bytes, would go to me/m as step-100" in capsys.readouterr().err
    assert not (kit.run.hf / "last_synced.json").exists()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"where": Where("me/a--b", "hf_x")}, "no name of a repository"),
        ({"where": Where("me/m", "")}, "HF_TOKEN is not set"),
        ({"push": ("*.nothing",)}, "names no file"),
    ],
)
async def test_what_cannot_be_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wish: dict[str, Any], words: str
) -> None:
    kit = Kit(tmp_path, **wish)
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.told.kinds == ["hub.failed"])
    await kit.over()
    said = capsys.readouterr().err
    assert said.count(words) == 1
    assert "training goes on" in said
    assert kit.hub.sent == []


async def test_a_hub_that_never_answers_is_left_when_the_attempt_ends(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.hub.hangs = True
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.hub.sent)
    assert kit.sync.now("me").message.startswith("it is syncing already")
    assert kit.task is not None
    kit.task.cancel()
    await asyncio.gather(kit.task, return_exceptions=True)
    assert kit.sync.pins == set()


async def test_what_goes_beside_a_checkpoint(tmp_path: Path) -> None:
    kit = Kit(tmp_path, keep=3)
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.told.kinds)
    await kit.over()
    (send,) = [job for job in kit.hub.jobs if isinstance(job, Send)]
    run = json.loads(send.beside[0].text)
    assert (run["run_id"], run["complete"], run["holder"], run["epoch"], run["seq"]) == (RUN, True, 1, 1, 1)
    assert [each.path for each in send.beside] == ["relay/run.json", "relay/metrics.jsonl", "relay/events.jsonl"]
    assert send.where.token not in json.dumps([each.text for each in send.beside]) + send.card
    assert [type(job) for job in kit.hub.jobs] == [Check, Send, Trim]


async def test_what_goes_from_the_hub_and_which_checkpoint_came_is_told_by_name(tmp_path: Path) -> None:
    kit = Kit(tmp_path, keep=3)
    gone = [f"step-{number}" for number in range(12)]
    kit.hub.trimmed = Trimmed(gone, 10)
    kit.put(100)
    kit.begin()
    await kit.until(lambda: "hub.pruned" in kit.told.kinds)
    assert [data["checkpoint"] for kind, data in kit.told.events if kind == "hub.synced"] == ["step_00000100"]
    told = [data["tags"].split() for kind, data in kit.told.events if kind == "hub.pruned"]
    assert told == [gone[:10], gone[10:]]
    await kit.over()


# -- what was synced before is a hint; an order, and the last of a run, look at the Hub -------------------------------


async def synced(root: Path, **wish: Any) -> Kit:
    """An attempt has synced its newest, and is over."""
    kit = Kit(root, **wish)
    kit.put(100)
    kit.begin()
    await kit.until(lambda: kit.told.kinds == ["hub.synced"])
    await kit.over()
    assert kit.hub.sent == ["step_00000100"]
    kit.hub.jobs.clear()
    kit.told.events.clear()
    return kit


async def test_an_order_asks_the_hub_whatever_was_synced_before(tmp_path: Path) -> None:
    kit = await synced(tmp_path)
    kit.again()
    kit.begin()
    await kit.settled()
    assert kit.hub.sent == [], "in its turn what is known to be there is not looked for"
    assert kit.sync.now("me").accepted
    await kit.until(lambda: kit.told.kinds == ["hub.synced"])
    await kit.settled()  # until then the order is of what is newer
    assert kit.sync.now("me").accepted
    await kit.until(lambda: kit.told.kinds == ["hub.synced"] * 2)
    await kit.settled()
    assert kit.hub.sent == ["step_00000100"] * 2
    await kit.over()


async def test_an_order_while_what_was_synced_is_read_is_not_lost(tmp_path: Path) -> None:
    kit = await synced(tmp_path)
    kit.again()
    kit.begin()
    assert kit.sync.now("me").accepted
    await kit.until(lambda: kit.told.kinds == ["hub.synced"])
    await kit.over()


async def test_an_order_while_one_goes_on_is_for_what_is_newest_by_then(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.put(100)
    answers: list[Any] = []

    def during() -> None:
        if len(kit.hub.sent) == 1:
            kit.put(200)
            answers.append(kit.sync.now("me"))

    kit.hub.during = during
    kit.begin()
    await kit.until(lambda: kit.told.kinds == ["hub.synced"] * 2)
    await kit.settled()
    assert kit.hub.sent == ["step_00000100", "step_00000200"]
    assert answers[0].accepted
    await kit.over()


async def test_the_last_of_a_run_that_was_queued_again_asks_the_hub(tmp_path: Path) -> None:
    kit = await synced(tmp_path)
    kit.again()
    kit.begin()
    await kit.settled()
    assert kit.sync.size_left(final=False) == 0, "an attempt that is preempted does not wait for a look"
    await kit.over()
    assert kit.hub.sent == ["step_00000100"]
    assert kit.told.kinds == ["hub.synced"]


@pytest.mark.parametrize(
    "other",
    [
        {"push": ("weights.bin",)},
        {"where": Where("me/other", "hf_x")},
        {"where": Where("me/m", "hf_x", "http://elsewhere")},
    ],
    ids=["push", "repo", "endpoint"],
)
async def test_what_was_pushed_with_other_choices_is_not_the_same(tmp_path: Path, other: dict[str, Any]) -> None:
    kit = await synced(tmp_path)
    kit.again(**other)
    kit.begin()
    await kit.until(lambda: kit.told.kinds == ["hub.synced"])
    assert kit.hub.sent == ["step_00000100"]
    await kit.over()


async def test_every_order_has_an_end(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.begin()
    await kit.settled()
    assert kit.sync.now("me").accepted
    await kit.until(lambda: kit.told.kinds == ["hub.left"])  # there is no checkpoint yet
    kit.hub.failures = [Trouble("damaged", "it is damaged", "permanent")]
    kit.put(100)
    await kit.until(lambda: kit.told.kinds == ["hub.left", "hub.failed"])
    kit.sync.now("me")
    await kit.until(lambda: kit.told.kinds == ["hub.left", "hub.failed", "hub.left"])  # none that can be sent
    kit.held = 0.0
    kit.put(200)
    kit.sync.now("me")
    await kit.until(lambda: kit.told.kinds[3:] == ["hub.refused"])
    kit.sync.now("me")
    await kit.until(lambda: kit.told.kinds[3:] == ["hub.refused"] * 2)
    kit.held = 50.0
    kit.hub.hangs = True
    kit.sync.now("me")
    await kit.until(lambda: kit.hub.sent[-1:] == ["step_00000200"])
    assert kit.task is not None
    kit.task.cancel()
    await asyncio.gather(kit.task, return_exceptions=True)
    assert kit.told.kinds[5:] == ["hub.left"]
    assert not kit.sync.now("me").accepted, "nobody is there any more who would do it"
