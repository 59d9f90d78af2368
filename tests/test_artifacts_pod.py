"""A pod sends its checkpoints to the artifact store and gets them back: over real sockets, with a real commander."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from artifact_kit import Store as Pod
from artifact_kit import flip, part_files, pod, stored_files
from artifact_pod_kit import Failing, Tell, archive_of, done, published, saved, sent, where
from checkpoint_kit import new_run
from commander_kit import Kit, running
from msgspec.structs import replace

from relay_agent.artifacts import calls
from relay_agent.artifacts.far import commander as far_commander
from relay_agent.artifacts.far import send
from relay_agent.artifacts.jobs import Attach, Attached, ListStored, Offers, Pull, Put, Store
from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.placing import place
from relay_agent.checkpoints.publish import Published
from relay_agent.checkpoints.receiving import place_for
from relay_agent.sending.backoff import Backoff
from relay_agent.sending.child import Refused
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder

CHUNK = 100_000


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state") as kit:
        yield kit


@pytest.fixture
async def holder(kit: Kit) -> Pod:
    return await pod(kit)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "volume").mkdir()
    return new_run(tmp_path / "volume")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "CHUNK", CHUNK)
    monkeypatch.setattr(far_commander, "BACKOFF", Backoff(first=0.01))


async def test_a_checkpoint_goes_there_once(holder: Pod, run: RunFolder, tmp_path: Path) -> None:
    checkpoint, store = published(run, 1, 10 * CHUNK), where(holder)
    tell = Tell()
    first = await sent(store, checkpoint, tell, final=True)
    assert (first.stored, first.sent >= 10 * CHUNK) == (False, True)
    assert tell.phases[-1] == "commit"
    assert tell.moved[-1] == (tell.moved[-1][1],) * 2
    again = await sent(store, checkpoint)
    assert (again.artifact, again.sent, again.stored) == (first.artifact, 0, True)
    manifest, archive = await holder.rows()
    assert (manifest["name"], manifest["sha256"]) == ("checkpoint.manifest.json", checkpoint.manifest_sha256)
    assert (archive["name"], archive["step"], archive["manifest_sha256"], archive["final"]) == (
        checkpoint.name, 1, checkpoint.manifest_sha256, True,
    )  # fmt: skip
    assert not manifest.get("final"), "the checkpoint is what the run ended with"
    assert archive["sha256"] == archive_of(checkpoint).sha256


async def test_it_comes_back_as_it_was(holder: Pod, run: RunFolder, tmp_path: Path) -> None:
    store = where(holder)
    checkpoint = published(run, 1, 10 * CHUNK)
    newer = published(run, 2)
    for each in (checkpoint, newer):
        await sent(store, each)
    offers: Offers = await done(ListStored(store))
    assert [(offer.step.name, offer.step.seq, offer.step.trouble) for offer in offers.offers] == [
        (newer.name, 2, ""), (checkpoint.name, 1, ""),
    ]  # fmt: skip
    (tmp_path / "other").mkdir()
    other = new_run(tmp_path / "other")
    offer = offers.offers[1]
    spot = place_for(other, offer.step.manifest)
    spot.mkdir(parents=True)
    (spot / ".left.part").mkdir()  # of a child that died
    job = Pull(
        store, int(offer.step.revision), offer.archive, offer.step.name, offer.step.bytes, offer.files, str(spot)
    )
    came = await done(job)
    assert place(other, Path(came.folder), lambda: True).sha256 == checkpoint.manifest_sha256
    assert verify(other.ckpt / checkpoint.name, "run-1").files == verify(checkpoint.path).files


async def test_a_connection_that_breaks_is_gone_on_with(
    holder: Pod, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the way there: nothing that arrived is sent twice. On the way back likewise."""
    store, checkpoint = where(holder), published(run, 1, 10 * CHUNK)
    broken = list[str]()
    connections: list[Any] = []
    whole = far_commander.Commander._connect

    def connect(self: far_commander.Commander) -> Any:
        connections.append(whole(self))
        return connections[-1]

    monkeypatch.setattr(far_commander.Commander, "_connect", connect)

    def cut(what: str) -> None:
        if what.startswith("at ") and len(broken) < 3 and what != "at 0":
            broken.append(what)
            connections[-1].sock.close()

    kept = await sent(store, checkpoint, Tell(cut))
    assert len(broken) == 3
    archive = archive_of(checkpoint)
    assert kept.sent == archive.size
    broken.clear()
    spot = tmp_path / "spot"
    job = Pull(store, kept.artifact, archive, checkpoint.name, 11 * CHUNK, 3, str(spot))
    came = await done(job, Tell(cut))
    assert verify(Path(came.folder)).step == 1
    assert broken


async def test_another_try_goes_on_where_the_one_before_died(holder: Pod, run: RunFolder) -> None:
    store, checkpoint = where(holder), published(run, 1, 10 * CHUNK)

    class Killed(Exception):  # noqa: N818
        pass

    told: list[str] = []

    def die(what: str) -> None:
        told.append(what)
        if len([one for one in told if one.startswith("at ")]) > 4:  # none of it, and after four chunks
            raise Killed

    with pytest.raises(Failing):
        await sent(store, checkpoint, Tell(die))
    tell, heard = Tell(), list[str]()
    tell.on = heard.append
    kept = await sent(store, checkpoint, tell)
    assert kept.sent == archive_of(checkpoint).size - 4 * CHUNK
    assert tell.phases == ["uploading", "hashing", "uploading", "commit"]
    again = heard[heard.index("hashing") : len(heard) - heard[::-1].index("uploading")]
    assert len(again) > 4, "what is packed again up to there is told: it may take longer than silence is borne"


async def test_a_lease_that_is_lost_ends_it(kit: Kit, holder: Pod, run: RunFolder) -> None:
    store, checkpoint = where(holder), published(run, 1, 10 * CHUNK)
    with pytest.raises(Refused):
        await sent(store, checkpoint, Tell(allow=False))
    assert [row["name"] for row in await holder.rows()] == []
    assert holder.agent is not None
    await holder.agent.state({"type": "ended", "outcome": "completed"})
    with pytest.raises(Failing) as caught:
        await sent(store, checkpoint)
    assert (caught.value.failed.code, caught.value.failed.kind) == ("lease_lost", "permanent")


async def test_what_stands_in_the_way_for_good_is_told_apart(
    kit: Kit, holder: Pod, run: RunFolder, tmp_path: Path
) -> None:
    checkpoint = published(run, 1, CHUNK)

    async def why(store: Any, manifest: str = checkpoint.manifest_sha256) -> tuple[str, str]:
        with pytest.raises(Failing) as caught:
            await done(Put(store, str(checkpoint.path), manifest, False))
        return caught.value.failed.code, caught.value.failed.kind

    assert await why(where(holder, secret="another secret of some length")) == ("not_proven", "permanent")
    assert await why(replace(where(holder), token="x" * 43)) == ("not_holder", "permanent")
    nobody = replace(where(holder), url="http://127.0.0.1:9")
    assert await why(nobody) == ("unreachable", "transient")
    assert await why(where(holder), "0" * 64) == ("damaged", "permanent")
    kit.commander.core.artifacts.run_quota = 100
    assert await why(where(holder)) == ("quota", "permanent")
    kit.commander.core.artifacts.run_quota = 10**9
    (checkpoint.path / "weights.bin").unlink()
    assert await why(where(holder)) == ("changed", "permanent")


async def test_what_the_commander_says_to_do_comes_along(holder: Pod, run: RunFolder) -> None:
    with pytest.raises(Failing) as caught:
        await sent(replace(where(holder), token="x" * 43), published(run, 1, CHUNK))
    assert caught.value.failed.words == "this token does not hold the lease. send the lease's own token"


def rot(checkpoint: Published) -> None:
    """One bit of its weights turns, as a disk may turn it: nothing else says so. Once more, and it is as it was."""
    file = checkpoint.path / "weights.bin"
    old = file.stat()
    file.chmod(0o600)
    flip(file, 0)
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))


async def test_a_damaged_checkpoint_is_never_stored(kit: Kit, holder: Pod, run: RunFolder, tmp_path: Path) -> None:
    store, checkpoint = where(holder), published(run, 1, 10 * CHUNK)
    rot(checkpoint)
    with pytest.raises(Failing) as caught:
        await sent(store, checkpoint, final=True)
    failed = caught.value.failed
    assert (failed.code, failed.kind) == ("damaged", "permanent")
    assert failed.words == f"{checkpoint.name} is damaged: 'weights.bin' is not what was saved: its hash differs"
    assert [(row["kind"], row.get("final", False)) for row in await holder.rows()] == [("file", False)]
    assert (kit.commander.core.artifacts.uploads.coming, part_files(tmp_path / "state")) == ({}, []), "given up there"
    rot(checkpoint)
    assert (await sent(store, checkpoint)).sent == archive_of(checkpoint).size


async def test_names_that_the_store_does_not_take_are_said_to_be_that(holder: Pod, run: RunFolder) -> None:
    checkpoint = saved(run, {"Model.bin": b"x", "a\\b.bin": b"y"})
    with pytest.raises(Failing) as caught:
        await sent(where(holder), checkpoint)
    failed = caught.value.failed
    assert (failed.code, failed.kind) == ("unpackable", "permanent")
    assert str(run.root) not in failed.words
    assert r"'a\\b.bin' has control characters or backslashes in it" in failed.words
    assert "whole on the volume" in failed.words
    assert await holder.rows() == []


async def test_names_that_differ_in_case_alone_go_there_and_come_back(
    holder: Pod, run: RunFolder, tmp_path: Path
) -> None:
    checkpoint = saved(run, {"Model.bin": b"x" * 3000, "model.bin": b"y" * 3000})
    store = where(holder)
    await sent(store, checkpoint)
    (offer,) = (await done(ListStored(store))).offers
    pull = Pull(
        store, int(offer.step.revision), offer.archive, offer.step.name, offer.step.bytes, offer.files,
        str(tmp_path / "came"),
    )  # fmt: skip
    came = await done(pull)
    assert (Path(came.folder) / "Model.bin").read_bytes() == b"x" * 3000
    assert (Path(came.folder) / "model.bin").read_bytes() == b"y" * 3000


async def test_one_that_is_cut_off_is_found_before_anything_is_sent(holder: Pod, run: RunFolder) -> None:
    store, checkpoint = where(holder), published(run, 1, 10 * CHUNK)
    os.truncate(checkpoint.path / "weights.bin", 1000)
    with pytest.raises(Failing, match=r"'weights\.bin' has 1,000 bytes, not 1,000,000") as caught:
        await sent(store, checkpoint)
    assert caught.value.failed.code == "damaged"
    assert await holder.rows() == []


async def test_a_checkpoint_that_changes_under_way_is_never_stored(
    kit: Kit, holder: Pod, run: RunFolder, tmp_path: Path
) -> None:
    """What was sent before a try broke off is no part of what it is now; the one after that begins anew."""
    store, checkpoint = where(holder), published(run, 1, 10 * CHUNK)
    await broken_off(store, checkpoint)
    assert part_files(tmp_path / "state")
    rot(checkpoint)
    with pytest.raises(Failing) as caught:
        await sent(store, checkpoint)
    assert caught.value.failed.code == "damaged"
    assert [row["kind"] for row in await holder.rows()] == ["file"]
    assert (kit.commander.core.artifacts.uploads.coming, part_files(tmp_path / "state")) == ({}, [])
    rot(checkpoint)
    assert (await sent(store, checkpoint)).sent == archive_of(checkpoint).size


async def broken_off(store: Store, checkpoint: Published, note: str = "") -> None:
    """Its child dies after four chunks."""
    told: list[str] = []

    def die(what: str) -> None:
        told.append(what)
        if len([one for one in told if one.startswith("at ")]) > 4:
            raise RuntimeError

    with pytest.raises(Failing):
        await sent(store, checkpoint, Tell(die), note=note)


async def test_an_upload_that_is_left_behind_for_a_newer_checkpoint_is_given_up(
    kit: Kit, holder: Pod, run: RunFolder, tmp_path: Path
) -> None:
    """Also where the child that began it was killed, and this one only knows what that noted on the pod's disk."""
    store, coming = where(holder), kit.commander.core.artifacts.uploads.coming
    first, second = published(run, 1, 10 * CHUNK), published(run, 2, 10 * CHUNK)
    note = str(tmp_path / "pod" / "artifacts" / "under_way.json")
    await broken_off(store, first, note)
    await broken_off(store, first, note)
    assert len(coming) == 1, "tried again it goes on"
    (left,) = coming
    await broken_off(store, second, note)
    assert left not in coming
    assert len(coming) == 1
    assert (await sent(store, second, note=note)).sent < archive_of(second).size, "of this one all is kept"
    assert (coming, list(Path(note).parent.iterdir())) == ({}, [])


async def test_one_that_is_cut_off_later_is_given_up_too(kit: Kit, holder: Pod, run: RunFolder, tmp_path: Path) -> None:
    store, checkpoint, note = where(holder), published(run, 1, 10 * CHUNK), str(tmp_path / "under_way.json")
    await broken_off(store, checkpoint, note)
    os.truncate(checkpoint.path / "weights.bin", 1000)
    with pytest.raises(Failing):
        await sent(store, checkpoint, note=note)
    assert kit.commander.core.artifacts.uploads.coming == {}


@pytest.mark.parametrize("data", [b"", b"[", b"null", b"[" * 100_000, b"\xff", b'{"run_id": "../x"}', None])
async def test_a_note_of_what_is_under_way_that_says_nothing_is_no_trouble(
    holder: Pod, run: RunFolder, tmp_path: Path, data: bytes | None
) -> None:
    note = tmp_path / "under_way.json"
    if data is None:
        note.mkdir()
    else:
        note.write_bytes(data)
    assert (await sent(where(holder), published(run, 1), note=str(note))).sent


async def next_attempt(kit: Kit, pod: Pod) -> Pod:
    """Another one of the same run, by the same worker."""
    assert pod.agent is not None
    await pod.agent.state({"type": "ended", "outcome": "failed"})
    assert (await kit.requeue(pod.run_id, pod.agent.epoch))[0] == 200
    assert (await pod.agent.acquire(pod.run_id))["type"] == "granted"
    return Pod(kit, pod.agent)


async def test_what_another_attempt_says_is_there_is_compared_first(kit: Kit, holder: Pod, run: RunFolder) -> None:
    """Without a byte that is sent, and told of; what this one sent itself is not read again."""
    checkpoint = published(run, 1, 10 * CHUNK)
    first = await sent(where(holder), checkpoint)
    tell = Tell()
    assert (await sent(where(holder), checkpoint, tell)).stored
    assert tell.phases == ["uploading"]
    later, tell = await next_attempt(kit, holder), Tell()
    again = await sent(where(later), checkpoint, tell, final=True)
    assert (again.artifact, again.sent, again.stored) == (first.artifact, 0, True)
    assert tell.phases == ["uploading", "hashing"]
    assert len(tell.moved) > 4
    assert tell.moved[-1][0] == tell.moved[-1][1]
    rot(checkpoint)
    with pytest.raises(Failing, match="is not what was saved"):
        await sent(where(later), checkpoint)


async def test_the_word_of_a_holder_that_lied_is_not_taken(kit: Kit, holder: Pod, run: RunFolder) -> None:
    """It told its successor's checkpoint by its manifest, and sent something else."""
    checkpoint = published(run, 1, 10 * CHUNK)
    manifest = checkpoint.manifest_sha256
    lie = await holder.put(b"garbage" * 10, checkpoint.name, manifest_sha256=manifest)
    later = await next_attempt(kit, holder)
    tell, archive = Tell(), archive_of(checkpoint)
    kept = await sent(where(later), checkpoint, tell, final=True)
    assert (kept.stored, kept.sent, kept.size) == (False, archive.size, archive.size)
    assert tell.phases == ["uploading", "hashing", "uploading", "commit"]
    rows = {row["id"]: row for row in await later.rows()}
    assert kept.artifact != lie["id"]
    assert (rows[kept.artifact]["sha256"], rows[kept.artifact]["final"]) == (archive.sha256, True)
    assert (await sent(where(later), checkpoint)).artifact == kept.artifact
    assert rows[kept.artifact]["manifest_sha256"] == manifest


async def test_an_older_commander_has_no_store(holder: Pod) -> None:
    with far_commander.Commander(where(holder)) as commander, pytest.raises(Trouble, match="has no artifact store"):
        await asyncio.to_thread(commander.ask, "GET", "/api/nothing", dict)


async def test_offers_that_nobody_should_take(kit: Kit, holder: Pod, run: RunFolder, tmp_path: Path) -> None:
    store = where(holder)
    first, second = published(run, 1), published(run, 2)
    for each in (first, second):
        await sent(store, each)
    await holder.put(b"no archive at all", name="step_00000009", manifest_sha256="ab" * 32)
    rows = {row["sha256"]: row for row in await holder.rows()}
    status, _ = await holder.ask("DELETE", f"/{rows[second.manifest_sha256]['id']}", role="operator")
    assert status == 200
    offers: Offers = await done(ListStored(store))
    assert [bool(offer.step.trouble) for offer in offers.offers] == [True, True, False]
    assert offers.offers[2].step.name == first.name


async def test_one_that_is_deleted_while_they_are_listed_hides_no_others(
    holder: Pod, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = where(holder)
    first, second = published(run, 1), published(run, 2)
    for each in (first, second):
        await sent(store, each)
    ask = far_commander.Commander.ask

    def listed(self: far_commander.Commander, *given: Any, **more: Any) -> Any:
        found = ask(self, *given, **more)
        gone = [replace(row, id=10**6) if row.sha256 == second.manifest_sha256 else row for row in found.artifacts]
        return replace(found, artifacts=gone)

    monkeypatch.setattr(far_commander.Commander, "ask", listed)
    offers: Offers = await done(ListStored(store))
    assert [bool(offer.step.trouble) for offer in offers.offers] == [True, False]
    assert offers.offers[1].step.name == first.name


async def test_an_archive_that_is_another_one_is_refused_and_nothing_is_left(
    holder: Pod, run: RunFolder, tmp_path: Path
) -> None:
    store, checkpoint = where(holder), published(run, 1, CHUNK)
    kept, archive = await sent(store, checkpoint), archive_of(checkpoint)
    spot = tmp_path / "spot"
    right = Pull(store, kept.artifact, archive, checkpoint.name, 2 * CHUNK, 3, str(spot))
    for wrong in (
        replace(right, archive=replace(archive, sha256="0" * 64)),
        replace(right, archive=replace(archive, size=archive.size - 1)),
        replace(right, archive=replace(archive, size=archive.size + 1)),
        replace(right, files=0),
    ):
        with pytest.raises(Failing) as caught:
            await done(wrong)
        assert caught.value.failed.code in ("not_whole", "http_416", "bad_range", "refused"), caught.value.failed
        assert list(spot.iterdir()) == []


async def test_small_files_are_attached_as_they_are(holder: Pod, tmp_path: Path) -> None:
    root = tmp_path / "out"
    (root / "rollout").mkdir(parents=True)
    (root / "config.yaml").write_text("lr: 1")
    (root / "rollout" / "rollout_1.json").write_text("{}")
    (root / "rollout" / "röllout 2.json").write_text("[]")
    (root / "large.json").write_bytes(bytes(2000))
    (root / "other.txt").touch()
    (root / "link.json").symlink_to("/etc/passwd")
    (root / "rollout" / "up").symlink_to(tmp_path)
    os.mkfifo(root / "fifo.json")
    job = Attach(where(holder), str(root), ["*.json", "config.yaml"], 1000, 10)
    attached: Attached = await done(job)
    assert attached.kept == ["config.yaml", "rollout/rollout_1.json", "rollout/röllout 2.json"]
    assert len(attached.trouble) == 1
    assert "large.json" in attached.trouble[0]
    names = await holder.names()
    assert names[:2] == ["config.yaml", "rollout__rollout_1.json"]
    assert names[2].endswith("-rollout__r_llout_2.json")
    assert await done(job) == attached, "again, nothing is sent twice"
    assert len(await holder.rows()) == 3
    assert stored_files(tmp_path / "state")
    attached = await done(Attach(where(holder), str(root), ["*"], 1000, 2))
    assert (len(attached.kept), "more than 2" in attached.trouble[0]) == (1, True)
    assert (await done(Attach(where(holder), str(tmp_path / "none"), ["*"], 1000, 2))).kept == []


async def test_a_small_file_whose_name_is_no_utf_8_goes_there_and_is_said(holder: Pod, tmp_path: Path) -> None:
    odd = tmp_path / "out" / os.fsdecode(b"d\xff") / os.fsdecode(b"q\xfe.json")
    odd.parent.mkdir(parents=True)
    odd.write_text("{}")
    attached = await calls.call(
        Attach(where(holder), str(tmp_path / "out"), ["*.json"], 1000, 10),
        Attached,
        cache=str(tmp_path / "cache"),
        may=lambda what: 60.0,
    )
    assert attached == Attached(["d\ufffd/q\ufffd.json"], [])
    assert len(await holder.names()) == 1
