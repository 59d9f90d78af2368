"""A checkpoint goes to the Hub: the real client in the agent's child process, and a hub that fails on demand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import programs
import pytest
from hub_pull_kit import shelve
from hub_sync_kit import REPO, RUN, Calls, Killed, new_run, put, send_job

from relay_agent.hub import card, layout
from relay_agent.hub.protocol import Check, Checked, Trim, Trimmed, Where
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import Fault, TestHub

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


@pytest.fixture
def hub(hub: TestHub) -> TestHub:
    hub.large_above = 1000  # the kit's weights are larger, its shards are not
    return hub


async def test_a_step_is_one_commit_and_one_tag(hub: TestHub, where: Where, run: RunFolder, call: Calls) -> None:
    put(run, 1, 500)
    sent = await call(send_job(where, run, "step_00000500"))
    assert (sent.tag, sent.stored) == ("step-500", False)
    assert call.phases == ["looking", "uploading", "commit", "verify", "tag"]
    assert call.asked == ["commit", "tag"]
    assert hub.verify(REPO) == []
    assert hub.repo(REPO).tags == {"step-500": sent.revision}
    files = hub.files(REPO, "step-500")
    ours = {"manifest.json", "weights.bin", "shard/0.bin"}
    assert set(files) == {".gitattributes", "README.md", "relay/run.json"} | {f"checkpoint/{path}" for path in ours}
    assert files["checkpoint/manifest.json"] == (run.ckpt / "step_00000500" / "manifest.json").read_bytes()
    assert hub.repo(REPO).private

    again = await call(send_job(where, run, "step_00000500"))
    assert (again.tag, again.revision, again.stored) == ("step-500", sent.revision, True)
    assert not hub.resent()


async def test_the_next_step_takes_the_place_of_the_one_before(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    await call(send_job(where, run, "step_00000500"))
    hub.someone_commits(REPO, "README.md", b"---\nlicense: mit\n---\nMine.\n")
    put(run, 1, 1000)
    await call(send_job(where, run, "step_00001000", files=["weights.bin"]))
    assert hub.verify(REPO) == []
    at_head = hub.files(REPO)
    kept = {path for path in at_head if path.startswith("checkpoint/")}
    assert kept == {"checkpoint/manifest.json", "checkpoint/weights.bin"}
    readme = at_head["README.md"].decode()
    assert "license: mit" in readme
    assert "Mine." in readme
    assert card.BEGIN in readme
    assert "step_00001000" in readme
    assert layout.decode_run(at_head[layout.RUN]).complete is False
    assert "checkpoint/shard/0.bin" in hub.files(REPO, "step-500")


@pytest.mark.parametrize("place", ["uploading", "uploaded", "commit", "committed", "verify", "tag", "tagged"])
async def test_killed_anywhere_the_next_one_finishes_and_sends_nothing_twice(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, place: str
) -> None:
    put(run, 1, 500)
    with pytest.raises(Killed):
        await call(send_job(where, run, "step_00000500"), fault=place)
    assert hub.verify(REPO) == []
    sent = await call(send_job(where, run, "step_00000500"))
    assert hub.verify(REPO) == []
    assert hub.repo(REPO).tags == {"step-500": sent.revision}
    assert not hub.resent()
    assert sum(commit.title == "step_00000500" for commit in hub.repo(REPO).commits.values()) == 1


async def test_a_child_that_is_killed_is_an_error_and_its_work_is_finished(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    call.real = True
    with programs.sending(), pytest.raises(Trouble) as died:
        await call(send_job(where, run, "step_00000500"), fault="committed")
    assert died.value.code == "child_died"
    assert "SIGKILL" in died.value.words
    assert died.value.kind == "unknown"
    with programs.sending():
        sent = await call(send_job(where, run, "step_00000500"))
    assert hub.verify(REPO) == []
    assert hub.repo(REPO).tags == {"step-500": sent.revision}
    assert not hub.resent()


@pytest.mark.parametrize(
    "fault",
    [
        Fault.lost_reply("create"),
        Fault.cuts("create"),
        Fault.says("create", 503),
        Fault.lost_reply("commit"),
        Fault.late("commit"),
        Fault.cuts("commit"),
        Fault.says("commit", 503),
        Fault.moved("commit"),
        Fault.lost_reply("tag"),
        Fault.says("lfs-batch", 503),
        Fault.cuts("lfs-put", "read"),
        Fault.says("lfs-put", 503),
        Fault.lost_reply("lfs-put"),
        Fault.late("lfs-put"),
    ],
    ids=lambda fault: f"{fault.route}-{fault.at}-{fault.status}",
)
async def test_what_nobody_knows_is_looked_up(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, fault: Fault
) -> None:
    put(run, 1, 500)
    hub.fault(fault)
    sent = await call(send_job(where, run, "step_00000500"))
    assert not hub.faults.waiting
    assert hub.verify(REPO) == []
    assert hub.repo(REPO).tags == {"step-500": sent.revision}
    ours = [commit for commit in hub.repo(REPO).commits.values() if commit.title == "step_00000500"]
    assert len(ours) == 1
    assert not hub.resent()


async def test_an_answer_that_never_comes_is_not_the_one_before_it(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    """That there was no repository yet says nothing of whether it could be made."""
    put(run, 1, 500)
    hub.fault(Fault.never("create", times=None))
    with pytest.raises(Trouble) as lost:
        await call(send_job(msgspec.structs.replace(where, timeout=0.2), run, "step_00000500"))
    assert (lost.value.code, lost.value.kind) == ("no_answer", "unknown")


async def test_a_hub_that_never_answers_is_given_up(hub: TestHub, where: Where, run: RunFolder, call: Calls) -> None:
    put(run, 1, 500)
    hub.fault(Fault.never("lfs-put", times=None))
    call.quiet["uploading"], call.real = 1.0, True
    with programs.sending(), pytest.raises(Trouble, match="nothing moved while uploading") as stalled:
        await call(send_job(where, run, "step_00000500"))
    assert stalled.value.kind == "unknown"


@pytest.mark.parametrize(
    ("token", "fault", "code"),
    [
        ("hf_expired", None, "bad_token"),
        ("hf_nobody", None, "bad_token"),
        ("hf_read", None, "no_permission"),
        ("", Fault.quota(), "quota"),
        ("", Fault.storage_pattern(), "quota"),
    ],
)
async def test_what_comes_again_for_ever_is_told_apart(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, token: str, fault: Fault | None, code: str
) -> None:
    put(run, 1, 500)
    if fault:
        hub.fault(fault)
    job = send_job(msgspec.structs.replace(where, token=token or where.token), run, "step_00000500")
    with pytest.raises(Trouble) as refused:
        await call(job)
    assert (refused.value.code, refused.value.kind) == (code, "permanent")
    assert not token or token not in refused.value.words


async def test_a_wait_that_the_hub_names(hub: TestHub, where: Where, run: RunFolder, call: Calls) -> None:
    put(run, 1, 500)
    hub.fault(Fault.limited("commit", 120))
    with pytest.raises(Trouble) as limited:
        await call(send_job(where, run, "step_00000500"))
    assert (limited.value.code, limited.value.kind, limited.value.wait) == ("rate_limited", "transient", 121.0)


async def test_the_fence_is_asked_before_commit_and_tag(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    call.allowed = lambda what: 0.0
    with pytest.raises(Trouble) as refused:
        await call(send_job(where, run, "step_00000500"))
    assert refused.value.code == "refused"
    assert hub.asked("commit") == []
    call.allowed = lambda what: 1e-9 if what == "commit" else 10.0  # it was frozen in between
    with pytest.raises(Trouble) as late:
        await call(send_job(where, run, "step_00000500"))
    assert late.value.code == "refused"
    assert hub.asked("commit") == []
    call.allowed = lambda what: 10.0 if what == "commit" else 0.0
    with pytest.raises(Trouble):
        await call(send_job(where, run, "step_00000500"))
    assert hub.repo(REPO).tags == {}


async def test_an_older_epoch_pushes_nothing_over_a_later_one(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    put(run, 1, 600)
    await call(send_job(where, run, "step_00000500", epoch=4))
    with pytest.raises(Trouble) as superseded:
        await call(send_job(where, run, "step_00000600", epoch=3))
    assert superseded.value.code == "superseded"
    assert superseded.value.kind == "permanent"
    assert set(hub.repo(REPO).tags) == {"step-500"}


async def test_another_runs_and_a_public_repository_are_left_alone(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    job = send_job(where, run, "step_00000500")
    other = layout.decode_run(job.beside[0].text.encode())
    await call(job)
    hub.someone_commits(REPO, layout.RUN, msgspec.structs.replace(other, run_id="run-2").encode())
    with pytest.raises(Trouble, match="holds the run run-2"):
        await call(Check(where, RUN), Checked)
    public = msgspec.structs.replace(where, repo="relay/public")
    await call(Check(msgspec.structs.replace(public, private=False), RUN), Checked)
    with pytest.raises(Trouble) as refused:
        await call(send_job(public, run, "step_00000500"))
    assert refused.value.code == "not_private"
    assert hub.repo("relay/public").tags == {}


async def test_a_folder_of_peoples_with_the_name_of_ours_stays(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    await call(Check(where, RUN), Checked)
    hub.someone_commits(REPO, "checkpoint/theirs.bin")
    with pytest.raises(Trouble, match=r"theirs\.bin is there, and no run of Relay's") as refused:
        await call(send_job(where, run, "step_00000500"))
    assert refused.value.kind == "permanent"
    assert "checkpoint/theirs.bin" in hub.files(REPO)


async def test_what_the_volume_spoilt_is_not_sent(hub: TestHub, where: Where, run: RunFolder, call: Calls) -> None:
    put(run, 1, 500)
    weights = run.ckpt / "step_00000500" / "weights.bin"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(Trouble) as damaged:
        await call(send_job(where, run, "step_00000500"))
    assert damaged.value.code == "damaged"
    assert hub.repo(REPO).tags == {}


async def test_the_same_name_with_other_content_gets_a_tag_of_its_own(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, tmp_path: Path
) -> None:
    put(run, 1, 500)
    await call(send_job(where, run, "step_00000500"))
    (tmp_path / "other").mkdir()
    elsewhere = new_run(tmp_path / "other", epoch=2)
    put(elsewhere, 2, 500, "other")
    sent = await call(send_job(where, elsewhere, "step_00000500", epoch=2))
    assert sent.tag == "step-500.e2"
    assert hub.verify(REPO) == []


async def test_a_tag_of_ours_is_there_already_only_with_all_its_files(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    await call(send_job(where, run, "step_00000500"))
    repo = hub.repo(REPO)
    tree = dict(repo.commits[repo.tags["step-500"]].tree)
    del tree["checkpoint/weights.bin"]
    repo.tags["step-500"] = hub.store.add(repo, "main", tree, "cleanup", "", "relay").oid
    sent = await call(send_job(where, run, "step_00000500"))
    assert (sent.tag, sent.stored) == ("step-500", False)
    assert hub.verify(REPO) == []
    assert hub.repo(REPO).tags == {"step-500": sent.revision}


async def test_all_files_after_some_of_them_are_sent_and_some_after_all_are_there(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    some = await call(send_job(where, run, "step_00000500", files=["weights.bin"]))
    every = await call(send_job(where, run, "step_00000500"))
    assert (every.tag, every.stored) == ("step-500", False)
    assert every.revision != some.revision
    assert hub.verify(REPO) == []
    assert layout.decode_run(hub.files(REPO, "step-500")[layout.RUN]).complete
    again = await call(send_job(where, run, "step_00000500", files=["weights.bin"]))
    assert (again.revision, again.stored) == (every.revision, True), "nothing that is there goes"


@pytest.mark.parametrize("place", ["uploaded", "committed", "verify", "tag", "untagged", "tagged"])
async def test_killed_anywhere_a_tag_that_lacks_files_is_mended_by_the_next(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, place: str
) -> None:
    put(run, 1, 500)
    shelve(hub, run, "step_00000500", drop=["checkpoint/shard/0.bin"], complete=False)
    with pytest.raises(Killed):
        await call(send_job(where, run, "step_00000500"), fault=place)
    sent = await call(send_job(where, run, "step_00000500"))
    assert hub.verify(REPO) == []
    assert hub.repo(REPO).tags == {"step-500": sent.revision}


async def test_only_the_newest_stay_and_the_others_space_is_free(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    for step in (100, 200, 300, 400):
        put(run, 1, step)
    for step in (100, 200):
        shelve(hub, run, f"step_{step:08d}")
    for step in (300, 400):
        await call(send_job(where, run, f"step_{step:08d}"))
    hub.someone_commits(REPO, "theirs.bin", b"x" * 5000)
    before = hub.stored_bytes(REPO)
    trimmed = await call(Trim(where, RUN, 1, 2), Trimmed)
    assert trimmed.tags == ["step-100", "step-200"]
    assert trimmed.freed > 0
    assert set(hub.repo(REPO).tags) == {"step-300", "step-400"}
    assert hub.verify(REPO) == []
    assert hub.stored_bytes(REPO) == before - trimmed.freed
    assert await call(Trim(where, RUN, 1, 2), Trimmed) == Trimmed([], 0)


async def test_a_trim_that_was_killed_is_finished(hub: TestHub, where: Where, run: RunFolder, call: Calls) -> None:
    for step in (100, 200, 300):
        put(run, 1, step)
        shelve(hub, run, f"step_{step:08d}")
    with pytest.raises(Killed):
        await call(Trim(where, RUN, 1, 1), Trimmed, fault="untagged")
    assert (await call(Trim(where, RUN, 1, 1), Trimmed)).freed > 0
    assert set(hub.repo(REPO).tags) == {"step-300"}
    assert hub.verify(REPO) == []
