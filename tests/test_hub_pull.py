"""Bringing a checkpoint back from the Hub: what is whole comes whole, what is not is said, what broke off goes on."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import RUN, new_run, put
from hub_pull_kit import Tell, listed, pull_job, pulled, shelve, where
from hub_sync_kit import REPO, run_file

from relay_agent.checkpoints import receiving
from relay_agent.checkpoints.manifest import MANIFEST, verify
from relay_agent.checkpoints.receiving import place_for
from relay_agent.hub import layout
from relay_agent.hub.far import failures
from relay_agent.hub.protocol import ListSteps
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import Fault, TestHub

NAME = "step_00000500"
WEIGHTS = "checkpoint/weights.bin"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[TestHub]:
    async with TestHub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def lost(tmp_path: Path) -> RunFolder:
    """The run as it was on the volume that is gone."""
    (tmp_path / "lost").mkdir()
    run = new_run(tmp_path / "lost", 3)
    for step in (400, 500):
        put(run, 3, step)
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "empty").mkdir()
    return new_run(tmp_path / "empty", None)


async def test_what_is_listed_comes_back_as_it_was(hub: TestHub, lost: RunFolder, run: RunFolder) -> None:
    oid = shelve(hub, lost, NAME)
    job = pull_job(hub, lost, NAME, oid, place_for(run, "a" * 64))
    step = (await listed(hub))["step-500"]
    assert (step.revision, step.manifest, step.run_id, step.name) == (oid, job.manifest, RUN, NAME)
    got = await pulled(job)
    assert verify(Path(got.folder), RUN) == verify(lost.ckpt / NAME, RUN)
    assert got.moved == step.bytes


async def test_order_comes_from_manifests_whatever_the_tags_are_called(hub: TestHub, lost: RunFolder) -> None:
    shelve(hub, lost, NAME, tag="step-3")
    shelve(hub, lost, "step_00000400", tag="step-900.e7")
    hub.someone_tags(REPO, "v1.0")
    hub.someone_tags(REPO, "step-0500")
    steps = await listed(hub)
    assert set(steps) == {"step-3", "step-900.e7"}, "others are people's"
    newest = max(steps.values(), key=lambda step: (step.epoch, step.seq))
    assert (newest.tag, newest.step, newest.epoch) == ("step-3", 500, 3)


async def test_no_repository_is_no_step_and_a_bad_token_is_not_that(hub: TestHub, lost: RunFolder) -> None:
    assert await listed(hub) == {}
    shelve(hub, lost, NAME)
    for token in ("hf_expired", "hf_wrong"):
        with pytest.raises(Exception, match=r"expired|Invalid|401") as refused:
            await listed(hub, token)
        told = failures.told(refused.value, ListSteps(where(hub, token)))
        assert (told.kind, told.code) == ("permanent", "bad_token")


MANIFESTS = {
    "none": ({}, (layout.MANIFEST_PATH,), "no manifest"),
    "nonsense": ({layout.MANIFEST_PATH: b"{"}, (), "does not read"),
    "above": (b'"weights.bin"', b'"../weights.bin"', "no path inside"),
    "deep": (b'"weights.bin"', b'"%s"' % b"/".join([b"w"] * 50), "deeper"),
}


@pytest.mark.parametrize("case", MANIFESTS)
async def test_a_tag_without_a_manifest_that_reads_is_none_to_go_on_from(
    hub: TestHub, lost: RunFolder, case: str
) -> None:
    one, other, words = MANIFESTS[case]
    if isinstance(one, bytes) and isinstance(other, bytes):
        data = (lost.ckpt / NAME / MANIFEST).read_bytes()
        one, other = {layout.MANIFEST_PATH: data.replace(one, other)}, ()
    assert isinstance(one, dict)
    assert isinstance(other, tuple)
    shelve(hub, lost, NAME, instead=one, drop=other)
    assert words in (await listed(hub))["step-500"].trouble


async def test_what_broke_off_goes_on_where_it_was(hub: TestHub, lost: RunFolder, run: RunFolder) -> None:
    oid, place = shelve(hub, lost, NAME), place_for(run, "a" * 64)
    size = (lost.ckpt / NAME / "weights.bin").stat().st_size
    hub.fault(Fault("resolve", at="done", after=100, cut=True, match=WEIGHTS))
    hub.fault(Fault.says("resolve", 503, match=WEIGHTS))
    with pytest.raises(Exception, match="503"):
        await pulled(pull_job(hub, lost, NAME, oid, place))
    for thread in threading.enumerate():  # they end with its process, else
        if thread.name.startswith("pull"):
            thread.join(30)
    part = max(path.stat().st_size for path in (place / "parts").iterdir())
    assert 0 < part < size
    tell = Tell()
    got = await pulled(pull_job(hub, lost, NAME, oid, place), tell)
    assert got.moved <= size - part + len(b"shard 500")
    assert verify(Path(got.folder), RUN)
    assert tell.told[0][0] > 0
    assert tell.told[-1] == (tell.told[-1][1], tell.told[-1][1])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a file is missing": ({"drop": [WEIGHTS]}, "'weights.bin' is missing on the Hub"),
    "it is shorter": ({"instead": {WEIGHTS: b"w"}}, "has 1 bytes on the Hub, not 1,2"),
    "it is longer": ({"instead": {WEIGHTS: b"w" * 5000}}, "has 5,000 bytes on the Hub"),
    "its bytes differ": ({"instead": {"checkpoint/shard/0.bin": b"SHARD 500"}}, "hash differs"),
    "only weights": ({"complete": False}, "only a part of it was pushed"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_is_not_whole_is_said_and_leaves_nothing_that_looks_whole(
    hub: TestHub, lost: RunFolder, run: RunFolder, case: str
) -> None:
    how, words = BAD[case]
    oid, place = shelve(hub, lost, NAME, **how), place_for(run, "a" * 64)
    with pytest.raises(Trouble, match=words) as trouble:
        await pulled(pull_job(hub, lost, NAME, oid, place))
    assert (trouble.value.code, trouble.value.kind) == ("not_whole", "permanent")
    assert not list(place.rglob(MANIFEST))


async def test_a_hub_that_says_another_length_than_it_sends_is_not_waited_for(
    hub: TestHub, lost: RunFolder, run: RunFolder
) -> None:
    oid = shelve(hub, lost, NAME)
    hub.fault(Fault("resolve", at="done", after=0, cut=True, times=None, match=WEIGHTS))
    with pytest.raises(Exception, match=r"peer closed|disconnected|incomplete") as broken:
        await pulled(job := pull_job(hub, lost, NAME, oid, place_for(run, "a" * 64)))
    assert failures.told(broken.value, job).kind != "permanent", "it may be the network"
    hub.faults.clear()
    hub.fault(Fault.never("resolve", match=WEIGHTS))
    with pytest.raises(Exception, match="timed out"):
        await pulled(pull_job(hub, lost, NAME, oid, place_for(run, "a" * 64), timeout=0.3))


async def test_another_runs_repository_and_a_manifest_that_changed_are_refused(
    hub: TestHub, lost: RunFolder, run: RunFolder
) -> None:
    theirs = run_file(lost, NAME, run_id="another").encode()
    oid = shelve(hub, lost, NAME, instead={layout.RUN: theirs})
    with pytest.raises(Trouble, match="holds the run another"):
        await pulled(pull_job(hub, lost, NAME, oid, place_for(run, "a" * 64)))
    oid = shelve(hub, lost, "step_00000400")
    with pytest.raises(Trouble, match="not the one that was listed"):
        await pulled(pull_job(hub, lost, NAME, oid, place_for(run, "a" * 64)))


async def test_a_volume_without_room_is_said_and_that_is_not_the_hubs_fault(
    hub: TestHub, lost: RunFolder, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    oid = shelve(hub, lost, NAME)
    room: Any = SimpleNamespace(f_bavail=1, f_frsize=512, f_files=0, f_favail=0)
    monkeypatch.setattr(receiving.os, "statvfs", lambda path: room)
    with pytest.raises(Trouble, match=r"1,209 bytes are still to come, and the volume has 512 bytes left") as trouble:
        await pulled(pull_job(hub, lost, NAME, oid, place_for(run, "a" * 64)))
    assert trouble.value.code == "no_room"
    monkeypatch.undo()
    monkeypatch.setattr(receiving.Coming, "take", _full)
    with pytest.raises(Trouble, match="the volume is full") as trouble:
        await pulled(pull_job(hub, lost, NAME, oid, place_for(run, "a" * 64)))
    assert trouble.value.code == "no_room"


def _full(coming: receiving.Coming, chunk: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
