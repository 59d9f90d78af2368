"""Old steps go from the Hub, and with them only what nothing else needs, however much of it there is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub_pull_kit import shelve
from hub_sync_kit import REPO, RUN, Calls, put, send_job
from msgspec.structs import replace

from relay_agent.checkpoints.manifest import Manifest, read
from relay_agent.hub import layout
from relay_agent.hub.far import remote, trim
from relay_agent.hub.keeping import doomed
from relay_agent.hub.protocol import Check, Checked, Trim, Trimmed, Where
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import Fault, TestHub

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


@pytest.fixture
def hub(hub: TestHub) -> TestHub:
    hub.large_above = 1000  # the kit's weights are larger, its shards are not
    return hub


@pytest.mark.parametrize("kept", ["step-200", "step-300"])
async def test_nothing_is_freed_while_nobody_knows_what_a_name_holds(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, kept: str
) -> None:
    for step in (100, 200, 300):
        put(run, 1, step)
        shelve(hub, run, f"step_{step:08d}")
    stored, commit = hub.stored_bytes(REPO), hub.repo(REPO).tags[kept]
    lost = Fault.says("tree", 404, f"Invalid rev id: {commit}", code="RevisionNotFound", match=commit, times=2)
    hub.fault(lost)
    assert await call(Trim(where, RUN, 1, 2), Trimmed) == Trimmed(["step-100"], 0)
    with pytest.raises(Trouble) as unknown:
        await call(Trim(where, RUN, 1, 2), Trimmed)
    assert (unknown.value.code, unknown.value.kind) == ("not_known", "transient")
    assert hub.verify(REPO) == []
    assert hub.stored_bytes(REPO) == stored
    assert (await call(Trim(where, RUN, 1, 2), Trimmed)).freed > 0
    assert hub.verify(REPO) == []


async def test_what_the_list_of_names_does_not_show_yet_is_needed_all_the_same(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    for step in (100, 200, 300):
        put(run, 1, step)
        shelve(hub, run, f"step_{step:08d}")
    tags = hub.repo(REPO).tags
    hidden: dict[str, str] = {}

    def allowed(what: str) -> float:
        hidden["step-200"] = tags.pop("step-200")  # a copy of the Hub that is behind answers from here on
        call.allowed = lambda what: 10.0
        return 10.0

    call.allowed = allowed
    await call(Trim(where, RUN, 1, 2), Trimmed)
    tags |= hidden
    assert set(tags) == {"step-200", "step-300"}
    assert hub.verify(REPO) == []


async def test_a_tree_that_is_not_known_is_not_an_empty_one(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    await call(Check(where, RUN), Checked)
    hub.someone_commits(REPO, "checkpoint/theirs.bin")
    hub.fault(Fault.says("tree", 404, "Invalid rev id", code="RevisionNotFound"))
    with pytest.raises(Trouble) as unknown:
        await call(send_job(where, run, "step_00000500"))
    assert (unknown.value.code, unknown.value.kind) == ("not_known", "transient")
    assert "checkpoint/theirs.bin" in hub.files(REPO)


class Steps(Calls):
    """Each word of progress counts."""

    def __init__(self, cache: Path) -> None:
        self.done: list[int] = []
        super().__init__(cache)

    @property  # type: ignore[override]
    def progress(self) -> tuple[int, int]:
        return self.done[-1], 0

    @progress.setter
    def progress(self, now: tuple[int, int]) -> None:
        self.done.append(now[0])


async def test_of_many_steps_each_is_progress_and_what_is_done_stays_done(
    hub: TestHub, where: Where, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trim, "PORTION", 3)
    call = Steps(tmp_path / "cache")
    for step in range(1, 13):
        put(run, 1, step)
        shelve(hub, run, f"step_{step:08d}")
    stored = len(hub.repo(REPO).objects)
    call.done.clear()
    answers = [True] * 11 + [False]  # ten tags, a portion
    call.allowed = lambda what: 10.0 if answers.pop(0) else 0.0
    with pytest.raises(Trouble) as refused:
        await call(Trim(where, RUN, 1, 2), Trimmed)
    assert refused.value.code == "refused"
    assert len(hub.repo(REPO).tags) == 2
    assert len(hub.repo(REPO).objects) == stored - 3
    assert len(set(call.done)) >= 12 + 10 + 2, "steps that were looked at, tags that went, trees"
    call.allowed = lambda what: 10.0
    assert (await call(Trim(where, RUN, 1, 2), Trimmed)).freed > 0
    assert len(hub.repo(REPO).objects) < stored - 3
    assert hub.verify(REPO) == []


async def test_of_a_manifest_no_more_is_kept_than_is_asked_of_it(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (100, 200, 300):
        put(run, 1, step)
        shelve(hub, run, f"step_{step:08d}", instead={layout.MANIFEST_PATH: large_manifest(run, step)})
    kept: list[Manifest] = []

    def asked(manifests: Mapping[str, Manifest], *more: Any) -> list[str]:
        kept.extend(manifests.values())
        return doomed(manifests, *more)

    monkeypatch.setattr(trim, "doomed", asked)
    trimmed = await call(Trim(where, RUN, 1, 1, best="loss min"), Trimmed)
    assert trimmed.tags == ["step-200"], "the best one by its metric stays"
    assert {each.step: each.metrics for each in kept} == {step: {"loss": step / 100} for step in (100, 200, 300)}
    assert max(len(msgspec.json.encode(each)) for each in kept) < 1000


def large_manifest(run: RunFolder, step: int) -> bytes:
    manifest = read(run.ckpt / f"step_{step:08d}").manifest
    metrics = {"loss": step / 100} | {f"metric-{number}": 1.0 for number in range(1000)}
    entry = manifest.files[0]
    files = [replace(entry, path=f"f{number:05}") for number in range(1000)]
    return msgspec.json.encode(replace(manifest, files=files, metrics=metrics, mode="m" * 5000, trainer="t" * 5000))


async def test_of_one_with_more_files_than_are_ever_taken_nothing_is_made(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MOST", 999)
    put(run, 1, 50)
    shelve(hub, run, "step_00000050")
    for step in (100, 200, 300):
        put(run, 1, step)
        shelve(hub, run, f"step_{step:08d}", instead={layout.MANIFEST_PATH: large_manifest(run, step)})
    assert (await call(Trim(where, RUN, 1, 1), Trimmed)).tags == []
    assert len(hub.repo(REPO).tags) == 4


@pytest.mark.parametrize("most", ["MOST_FILES", "MOST_NAMES"])
async def test_a_list_of_large_files_without_an_end_is_left_alone(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    for step in range(1, 7):
        put(run, 1, step)
        shelve(hub, run, f"step_{step:08d}")
    assert len(hub.repo(REPO).objects) == 12
    bound = {"MOST_FILES": 11, "MOST_NAMES": 700}[most]
    monkeypatch.setattr(remote, most, bound)
    with pytest.raises(Trouble, match="lists large files without end") as endless:
        await call(Trim(where, RUN, 1, 6), Trimmed)
    assert (endless.value.code, endless.value.kind) == ("endless", "transient")
    assert len(hub.repo(REPO).objects) == 12
