"""A grant is above every epoch that has pushed to the Hub, and where that could not be, it is said what to do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from checkpoint_kit import RUN, ManualClock, new_run, put
from hub_sync_kit import REPO, Calls, run_file, send_job
from test_hub_sync import Kit

from relay_agent.attempt import beyond as beyond_module
from relay_agent.attempt.beyond import Beyond
from relay_agent.config import load
from relay_agent.hub import attempts, examine, layout
from relay_agent.hub.attempts import attempt_of, note, noted
from relay_agent.hub.protocol import Checked, Highest, Reached, Where
from relay_agent.lease.acquire import acquire
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from relaytui.wire.messages import Acquire, Granted, Renewed, RunConfig
from tests.hub import TestHub

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own
CONFIG = RunConfig("/v", RUN, 0, 3, 0, "", False)


class Link:
    """To a commander with new books."""

    def __init__(self, hf_repo: str = "") -> None:
        self.asked: list[int] = []
        self.epoch = 0
        self._config = msgspec.structs.replace(CONFIG, hf_repo=hf_repo)

    async def up(self) -> None: ...

    async def ask(self, message: Any, timeout: float, late: Any = None) -> Any:
        asked = message(1)
        if isinstance(asked, Acquire):
            self.asked.append(asked.highest_epoch)
            self.epoch = max(self.epoch, asked.highest_epoch) + 1
            return Granted(1, RUN, self.epoch, "t" * 43, 60.0, self._config)
        return Renewed(1, RUN, self.epoch, 60.0)


def settings(hf_repo: str = REPO) -> Any:
    return SimpleNamespace(hf_repo=hf_repo, run_id=RUN, mode="sft", agent_state=Path("/nowhere"))


def granted(run: RunFolder, link: Any, of: Any, said: list[str] | None = None) -> int:
    say = (said if said is not None else []).append
    work = acquire(link, of, run, "", ManualClock(), say, random.Random(1), Beyond(of, run, say))
    return asyncio.run(work).lease.epoch


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the Hub says, one after another."""
    answers: list[Any] = []

    async def highest(of: Any, repo: str, within: float) -> int:
        assert 0 < within <= beyond_module.WITHIN
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    monkeypatch.setattr(attempts, "highest", highest)
    return answers


def test_with_an_empty_volume_the_hub_is_asked_and_the_grant_is_above_it(tmp_path: Path, reached: list[Any]) -> None:
    reached.append(3)
    link = Link()
    assert granted(new_run(tmp_path, None), link, settings()) == 4
    assert link.asked == [3]


def test_where_only_the_commander_names_the_repository_it_is_asked_with_the_grant(
    tmp_path: Path, reached: list[Any]
) -> None:
    reached.append(3)
    link = Link(REPO)
    assert granted(new_run(tmp_path, None), link, settings("")) == 4
    assert link.asked == [0, 3]


def test_a_volume_with_claims_asks_nobody_and_heeds_what_was_noted(tmp_path: Path, reached: list[Any]) -> None:
    run = new_run(tmp_path, 2)
    assert granted(run, Link(), settings()) == 3
    note(run.hf, 9)
    note(run.hf, 5)
    assert granted(run, Link(), settings()) == 10
    (run.hf / attempts.NOTED).write_bytes(b"nonsense")
    assert noted(run.hf) == 0


@pytest.mark.parametrize("named", [f"me/{RUN}", "me/{run_id}"])
def test_a_hub_that_cannot_be_asked_is_said_and_holds_up_nobody(tmp_path: Path, reached: list[Any], named: str) -> None:
    reached.append(Trouble("unreachable", "the Hub cannot be reached", "transient"))
    said: list[str] = []
    assert granted(new_run(tmp_path, None), Link(), settings(named), said) == 1
    assert said[0].startswith(f"me/{RUN} cannot be asked"), "as it is on the Hub"
    assert "cannot be asked which attempts have pushed there: the Hub cannot be reached; it is asked again" in said[0]


def test_an_epoch_that_no_run_comes_to_is_not_heeded(tmp_path: Path, reached: list[Any]) -> None:
    reached.append(10**12)
    said: list[str] = []
    assert granted(new_run(tmp_path, None), Link(), settings(), said) == 1
    assert "no run comes to epoch 1000000000000" in said[0]


# -- at the Hub -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[TestHub]:
    async with TestHub(tmp_path / "hub") as hub:
        hub.large_above = 1000
        yield hub


async def test_which_attempt_pushed_last(hub: TestHub, tmp_path: Path) -> None:
    call, run = Calls(tmp_path / "cache"), new_run(tmp_path, 2)
    where = Where(REPO, "hf_write", hub.url, timeout=20.0)
    ask = Highest(where, RUN)
    assert await call(ask, Reached) == Reached(0), "there is no such repository"
    put(run, 2, 500)
    await call(send_job(where, run, "step_00000500", epoch=7))
    assert await call(ask, Reached) == Reached(7)
    with pytest.raises(Trouble, match="holds the run run-1"):
        await call(Highest(where, "other"), Reached)
    await call(send_job(where, run, "step_00000500", epoch=7))
    there = hub.repo(REPO)
    tree = {path: entry for path, entry in there.commits[there.branches["main"]].tree.items() if path != layout.RUN}
    hub.store.add(there, "main", tree, "somebody tidied up", "", "relay")
    assert await call(ask, Reached) == Reached(2), "the tags still tell"


async def test_another_attempt_of_the_same_epoch_pushes_nothing(hub: TestHub, tmp_path: Path) -> None:
    """Two commanders have the same run, and each granted epoch 1."""
    call, run = Calls(tmp_path / "cache"), new_run(tmp_path, 1)
    where = Where(REPO, "hf_write", hub.url, timeout=20.0)
    put(run, 1, 500)
    put(run, 1, 600)

    def job(name: str, attempt: str) -> Any:
        told = run_file(run, name, 1, attempt=attempt).encode().decode()
        plain = send_job(where, run, name)
        beside = [msgspec.structs.replace(plain.beside[0], text=told)]
        return msgspec.structs.replace(plain, attempt=attempt, beside=beside)

    await call(job("step_00000500", attempt_of("one")))
    with pytest.raises(Trouble, match="two commanders have this run") as refused:
        await call(job("step_00000600", attempt_of("two")))
    assert (refused.value.code, refused.value.kind) == ("superseded", "permanent")
    assert set(hub.repo(REPO).tags) == {"step-500"}
    await call(job("step_00000600", attempt_of("one")))


# -- where it could not be asked --------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [(3, ""), (1, "another")])
async def test_one_that_is_below_the_hubs_is_told_when_it_begins_and_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: tuple[int, str]
) -> None:
    kit = Kit(tmp_path)
    kit.sync.attempt = "ours"
    kit.hub.checked = Checked("me", False, True, *there)
    kit.begin()
    await kit.until(lambda: kit.told.kinds)
    kit.put(100)
    await kit.settled()
    assert (kit.told.kinds, kit.hub.sent) == (["hub.refused"], [])
    said = capsys.readouterr().err
    assert "relay-tui requeue run-1" in said, "what is to be done"
    assert noted(kit.run.hf) == there[0], "the next grant is above it"
    assert kit.sync.over
    await kit.over()


async def test_one_that_another_went_beyond_meanwhile_notes_how_far(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.begin()
    await kit.settled()
    kit.hub.failures.append(Trouble("superseded", "epoch 3 has pushed already, and this is epoch 1"))
    kit.hub.checked = Checked("me", False, True, 3)
    kit.put(100)
    await kit.until(lambda: kit.told.kinds == ["hub.refused"])
    assert noted(kit.run.hf) == 3
    await kit.over()


async def test_doctor_says_that_a_higher_epoch_has_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {
        "HF_REPO": REPO, "HF_TOKEN": "hf_write", "HF_DRY_RUN": "false", "RUN_ID": RUN, "RELAY_L1_ROOT": str(tmp_path),
        "RELAY_AGENT_STATE": str(tmp_path / "pod"),
    }  # fmt: skip
    settings = load(environ, needs_url=False)
    holder = 3

    async def call(*given: Any, **more: Any) -> Checked:
        return Checked("me", False, True, holder)

    monkeypatch.setattr(examine.calls, "call", call)
    word = await examine.examined(settings)
    assert word is not None
    assert word.level == "ok", "on an empty volume the next grant is above it"
    new_run(tmp_path, 2)
    word = await examine.examined(settings)
    assert word is not None
    assert word.level == "warn"
    assert "epoch 3 has pushed there, and this volume knows of 2 at most" in word.why
    holder = 2
    word = await examine.examined(settings)
    assert word is not None
    assert word.level == "ok"
