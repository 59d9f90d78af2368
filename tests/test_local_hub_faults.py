"""What the test hub does wrong on purpose, as the real client sees it, and where and when it does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import programs
import pytest
from local_hub_kit import REPO, client, hub, sha256

from tests.hub import QUOTA, ROUTES, STORAGE_PATTERN, ClientError, Fault, FaultPlan, RealClient, TestHub
from tests.hub.store import large

__all__ = ["client", "hub"]

COMMIT = "say(api.create_commit('relay/run-1', [Add('a.txt', b'mine')], commit_message='mine').oid)"
UPLOAD = """
op = Add("a.bin", b"x" * 3000)
api.preupload_lfs_files("relay/run-1", [op], free_memory=False)
"""


async def fails(client: RealClient, hub: TestHub, script: str, *args: Any, **more: Any) -> ClientError:
    with pytest.raises(ClientError) as failed:
        await client(hub, script, *args, **more)
    return failed.value


# -- where it strikes ------------------------------------------------------------------------------------------------

CALLS = {
    "create": "api.create_repo('relay/other')",
    "delete": "api.delete_repo('relay/run-1')",
    "whoami": "api.whoami()",
    "validate-yaml": "api.create_commit('relay/run-1', [Add('README.md', b'x')], commit_message='x')",
    "info": "api.repo_info('relay/run-1')",
    "settings": "api.update_repo_settings('relay/run-1', private=True)",
    "auth-check": "api.auth_check('relay/run-1', write=True)",
    "lfs-batch": UPLOAD,
    "lfs-put": UPLOAD,
    "lfs-part": UPLOAD,
    "lfs-complete": UPLOAD,
    "lfs-verify": UPLOAD,
    "preupload": UPLOAD,
    "commit": COMMIT,
    "tag": "api.create_tag('relay/run-1', tag='x')",
    "untag": "api.delete_tag('relay/run-1', tag='old')",
    "branch": "api.create_branch('relay/run-1', branch='x')",
    "unbranch": "api.delete_branch('relay/run-1', branch='old')",
    "squash": "api.super_squash_history('relay/run-1')",
    "lfs-delete": "api.permanently_delete_lfs_files('relay/run-1', api.list_lfs_files('relay/run-1'))",
    "refs": "api.list_repo_refs('relay/run-1')",
    "commits": "api.list_repo_commits('relay/run-1')",
    "tree": "list(api.list_repo_tree('relay/run-1'))",
    "paths-info": "api.get_paths_info('relay/run-1', ['a'])",
    "lfs-files": "list(api.list_lfs_files('relay/run-1'))",
    "resolve-head": "huggingface_hub.get_hf_file_metadata(f'{api.endpoint}/relay/run-1/resolve/main/.gitattributes')",
    "resolve": "api.hf_hub_download('relay/run-1', '.gitattributes', force_download=True)",
}


def test_every_route_is_called_by_these_tests() -> None:
    assert set(CALLS) == set(ROUTES) - {"xet-token", "cdn-head", "cdn"}


@pytest.mark.parametrize("route", CALLS)
async def test_a_fault_strikes_the_route_it_names_and_no_other(client: RealClient, hub: TestHub, route: str) -> None:
    hub.part_size = 1000 if route in ("lfs-part", "lfs-complete") else None
    hub.someone_tags(REPO, "old")
    hub.repo(REPO).branches["old"] = hub.repo(REPO).branches["main"]
    hub.repo(REPO).objects[hub.content.put(b"stored")] = 6
    hub.fault(Fault.says(route, 418, "this one"))
    failed = await fails(client, hub, CALLS[route])
    assert route == "validate-yaml" or "this one" in failed.text + str(failed.cause)
    assert [each.route for each in hub.requests if each.fault] == [route]
    assert hub.requests[-1].route == route  # nothing came after it
    assert hub.faults.waiting == []


async def test_a_fault_strikes_so_many_times_after_so_many_and_where_its_path_says(
    client: RealClient, hub: TestHub
) -> None:
    hub.fault(Fault.says("tag", 500, times=2, skip=1), Fault.says("info", 500, match="other", times=None))
    script = """
for number in range(4):
    try:
        api.create_tag("relay/run-1", tag=f"t{number}")
    except huggingface_hub.errors.HfHubHTTPError as error:
        say([number, error.response.status_code])
api.repo_info("relay/run-1")
"""
    assert await client(hub, script) == [[1, 500], [2, 500]]
    assert sorted(hub.repo(REPO).tags) == ["t0", "t3"]
    hub.store.create("relay/other", "model", private=True, author="relay")
    for _ in range(2):
        assert (await fails(client, hub, "api.repo_info('relay/other')")).status == 500
    hub.faults.clear()
    await client(hub, "api.repo_info('relay/other')")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"route": "tag", "at": "later", "status": 500}, "not 'later'"),
        ({"route": "tag", "cut": True, "hang": True}, "in one way"),
        ({"route": "tag", "at": "read", "delay": 1.0}, "ends the request"),
        ({"route": "tag", "cut": True, "after": 3}, "of a body that was read"),
        ({"route": "tag", "colour": "red"}, "no colour"),
    ],
)
def test_a_fault_that_could_not_strike_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Fault.of(wrong)


async def test_a_fault_of_no_route_is_refused(hub: TestHub) -> None:
    with pytest.raises(ValueError, match="there is no route 'tags'"):
        hub.fault(Fault.says("tags", 500))


# -- statuses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["preupload", "lfs-batch", "lfs-put", "lfs-verify"])
async def test_what_the_client_tries_again_gets_through(client: RealClient, hub: TestHub, route: str) -> None:
    hub.fault(Fault.says(route, 503, times=2))
    await client(hub, UPLOAD)
    assert client.waits == [1, 2]
    assert [each.status for each in hub.asked(route)] == [503, 503, 200]
    assert hub.repo(REPO).objects == {sha256(b"x" * 3000): 3000}


async def test_a_commit_is_tried_once(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.says("commit", 503))
    assert (await fails(client, hub, COMMIT)).status == 503
    assert len(hub.asked("commit")) == 1
    assert "a.txt" not in hub.files(REPO)


async def test_a_rate_limit_says_how_long(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.limited("preupload", 7), Fault.retry_after("lfs-batch", 3))
    await client(hub, UPLOAD)
    assert client.waits == [8, 4]
    hub.fault(Fault.limited("commit", 250, "commits"))
    failed = await fails(client, hub, COMMIT)
    assert failed.status == 429
    assert "your 'commits' rate limit" in failed.text
    assert "Retry after 250 seconds" in failed.text


async def test_storage_limits_are_said_for_ever(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.quota())
    for _ in range(2):
        failed = await fails(client, hub, UPLOAD)
        assert failed.status == 403
        assert QUOTA in failed.text
    hub.faults.clear()
    hub.fault(Fault.storage_pattern("commit"))
    assert STORAGE_PATTERN in (await fails(client, hub, COMMIT)).text


# -- connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["commit", "lfs-put", "tag", "refs"])
@pytest.mark.parametrize("at", ["before", "read", "done"])
async def test_a_connection_is_cut(client: RealClient, hub: TestHub, route: str, at: str) -> None:
    hub.fault(Fault.cuts(route, at))
    script = UPLOAD if route == "lfs-put" else CALLS[route]
    if route == "lfs-put":
        await client(hub, script)  # the client tries again
        assert hub.resent()[sha256(b"x" * 3000)] == (3000 if at == "done" else 0)
        assert hub.received()[sha256(b"x" * 3000)] == (3000 if at == "before" else 6000)
    else:
        failed = await fails(client, hub, script)
        assert {"RemoteProtocolError", "ReadError", "WriteError"} & set(failed.kinds)
        assert ("a.txt" in hub.files(REPO)) is (route == "commit" and at == "done")
        assert ("x" in hub.repo(REPO).tags) is (route == "tag" and at == "done")
    struck = hub.asked(route)[0]
    assert struck.status is None
    assert (struck.received == 0) is (at == "before" or route == "refs")


async def test_a_body_is_cut_in_the_middle(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.cuts("lfs-put", "read", after=1_000_000))
    await client(hub, UPLOAD.replace("3000", "30_000_000"))
    first, second = hub.asked("lfs-put")
    assert 1_000_000 <= first.received < 30_000_000 == second.received
    assert not hub.resent()  # nothing was stored when it came again
    assert not hub.content.unfinished()


async def test_no_answer_ever(client: RealClient, hub: TestHub) -> None:
    for at, there in (("before", False), ("read", False), ("done", True)):
        hub.fault(Fault("commit", at=at, hang=True))
        failed = await fails(client, hub, COMMIT, timeout=0.2)
        assert "ReadTimeout" in failed.kinds
        assert ("a.txt" in hub.files(REPO)) is there
    await hub.wait_for("commit", 3)
    assert [each.status for each in hub.asked("commit")] == [None] * 3


async def test_an_upload_that_is_never_answered_is_sent_again(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.never("lfs-put"), Fault("lfs-put", at="done", hang=True, skip=1))
    await client(hub, UPLOAD, timeout=0.2)
    assert client.waits == [1, 2]
    assert [each.stored for each in hub.asked("lfs-put")] == [False, False, True]


async def test_the_hub_stops_although_it_owes_answers(client: RealClient, tmp_path: Path) -> None:
    async with TestHub(tmp_path / "hub") as hub:
        hub.fault(Fault.never("whoami"))
        asking = asyncio.create_task(fails(client, hub, "api.whoami()"))
        while not hub.asked("whoami"):
            await asyncio.sleep(0.01)
    assert "RemoteProtocolError" in (await asking).kinds


async def test_a_slow_body(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.slow("lfs-put", 50_000), Fault.slow("resolve", 50_000))
    await client(hub, UPLOAD + COMMIT.replace("Add('a.txt', b'mine')", "op"))
    data = await client(hub, "say(open(api.hf_hub_download('relay/run-1', 'a.bin')).read() == 'x' * 3000)")
    assert data == [True]
    for route in ("lfs-put", "resolve"):
        assert ((await hub.wait_for(route))[0].seconds or 0) >= 3000 / 50_000


async def test_a_download_goes_on_where_it_broke_off(client: RealClient, hub: TestHub, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    hub.repo(REPO).objects[hub.content.put(data)] = len(data)
    hub.store.add(hub.repo(REPO), "main", {"a.bin": large(sha256(data), len(data))}, "x", "", "relay")
    hub.fault(Fault("resolve", at="done", cut=True, after=300_000))
    hub.fault(Fault("resolve", at="done", hang=True, after=100_000))
    script = """
constants = huggingface_hub.constants
constants.DOWNLOAD_CHUNK_SIZE, constants.HF_HUB_DOWNLOAD_TIMEOUT = 100_000, 0.5
api.hf_hub_download("relay/run-1", "a.bin", local_dir=args[0], force_download=True)
"""
    await client(hub, script, str(tmp_path / "down"))
    assert (tmp_path / "down" / "a.bin").read_bytes() == data
    assert [(each.range, each.sent) for each in await hub.wait_for("resolve", 3)] == [
        (None, 300_000), ("bytes=300000-", 100_000), ("bytes=400000-", len(data) - 400_000),
    ]  # fmt: skip


async def test_an_answer_breaks_off(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault("refs", at="done", cut=True, after=10))
    failed = await fails(client, hub, CALLS["refs"])
    assert {"RemoteProtocolError", "ReadError"} & set(failed.kinds)
    assert (hub.asked("refs")[0].status, hub.asked("refs")[0].sent) == (200, 10)


async def test_a_client_that_dies_leaves_nothing_behind(
    hub: TestHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.fault(Fault.slow("lfs-put", 10_000_000))
    with RealClient(home=tmp_path / "home", by=programs.Popen) as dying:
        uploading = asyncio.create_task(dying(hub, UPLOAD.replace("3000", "30_000_000")))
        async with asyncio.timeout(20):
            while not (hub.asked("lfs-put") and hub.asked("lfs-put")[0].received):
                await asyncio.sleep(0.01)
        dying.kill()
        with pytest.raises(ConnectionError):
            await uploading
        await hub.wait_for("lfs-put")
    assert not hub.repo(REPO).objects
    assert not hub.content.unfinished()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# -- what is done, and what others do --------------------------------------------------------------------------------


async def test_a_commit_is_done_and_nobody_hears_of_it(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.lost_reply())
    failed = await fails(client, hub, COMMIT)
    assert "RemoteProtocolError" in failed.kinds
    head = hub.repo(REPO).branches["main"]
    assert hub.files(REPO)["a.txt"] == b"mine"
    theirs = hub.someone_commits(REPO)
    assert await client(hub, COMMIT) == [theirs] != [head]  # the client takes the head for its own commit
    hub.fault(Fault.late())
    failed = await fails(client, hub, COMMIT.replace("b'mine'", "b'new'"))
    assert failed.status == 504
    assert hub.files(REPO)["a.txt"] == b"new"


async def test_somebody_else_moves_the_head_in_between(client: RealClient, hub: TestHub) -> None:
    hub.fault(Fault.moved("commit"))
    head = hub.repo(REPO).branches["main"]
    pinned = COMMIT.replace("commit_message", f"parent_commit='{head}', commit_message")
    assert (await fails(client, hub, pinned)).status == 412
    hub.fault(Fault.moved("commit", at="done", path="after.txt"))
    mine = (await client(hub, COMMIT))[0]
    titles = [each.title for each in hub.repo(REPO).history(hub.repo(REPO).branches["main"])]
    assert titles == ["Upload after.txt", "mine", "Upload theirs.txt", "initial commit"]
    assert hub.repo(REPO).branches["main"] != mine


async def test_somebody_else_has_the_tag_already(client: RealClient, hub: TestHub) -> None:
    first = hub.someone_tags(REPO, "x")
    hub.someone_commits(REPO)
    assert (await fails(client, hub, CALLS["tag"])).status == 409
    await client(hub, "api.create_tag('relay/run-1', tag='x', exist_ok=True)")
    assert hub.repo(REPO).tags["x"] == first


# -- by chance -------------------------------------------------------------------------------------------------------


def test_a_plan_of_the_same_seed_has_the_same_faults() -> None:
    plan = FaultPlan(7, share=0.5)
    fates = [plan.fate("commit", number) for number in range(300)]
    assert fates == [FaultPlan(7, share=0.5).fate("commit", number) for number in range(300)]
    assert fates != [FaultPlan(8, share=0.5).fate("commit", number) for number in range(300)]
    struck = [fate is not None for fate in fates]
    assert 60 < sum(struck) < 150
    assert not any(all(struck[at : at + 3]) for at in range(298))  # never three in a row
    assert FaultPlan(7, share=1.0, routes=("tag",)).fate("commit", 0) is None
    assert {fate.route for fate in fates if fate is not None} == {"commit"}


async def test_an_upload_gets_through_a_plan(client: RealClient, hub: TestHub) -> None:
    hub.faults.plan = FaultPlan(3, share=0.4)
    script = """
ops = [Add(f"{number}.bin", bytes([number]) * 2000) for number in range(5)]
for _ in range(100):
    try:
        api.preupload_lfs_files("relay/run-1", ops, free_memory=False, num_threads=1)
        api.create_commit("relay/run-1", ops, commit_message="x", num_threads=1)
        break
    except Exception as error:
        say(type(error).__name__)
for _ in range(100):
    try:
        api.create_tag("relay/run-1", tag="step-1", exist_ok=True)
        break
    except Exception as error:
        say(type(error).__name__)
"""
    await client(hub, script, timeout=5.0)
    hub.faults.clear()
    assert {path: set(data) for path, data in hub.files(REPO, "step-1").items() if path.endswith(".bin")} == {
        f"{number}.bin": {number} for number in range(5)
    }
    assert sum(each.fault is not None for each in hub.requests) > 3
