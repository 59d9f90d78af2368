"""The test hub as a process of its own: what a test asks of it and does to it from outside."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import programs
import psutil
import pytest
from local_hub_kit import client
from local_hub_kit import hub as own_hub

from tests.hub import ClientError, Fault, RealClient, RemoteHub, TestHub, Token, client_env, hub_process
from tests.hub.remote import CONTROL

__all__ = ["client", "own_hub"]

REPO = "relay/run-1"
YARDSTICK = Path(__file__).parent / "bench" / "bare" / "hub_upload.py"
SEND = """
ops = [Add("checkpoint/weights.bin", args[0].encode() * 1000), Add("note.txt", b"note")]
api.create_commit("relay/run-1", ops, commit_message="x")
api.create_tag("relay/run-1", tag=args[1])
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteHub]:
    with hub_process(tmp_path_factory.mktemp("hub") / "content", by=programs.Popen) as remote:
        yield remote


@pytest.fixture
async def hub(remote: RemoteHub, client: RealClient) -> RemoteHub:
    remote.clear()
    await client(
        remote, "api.delete_repo('relay/run-1', missing_ok=True); api.create_repo('relay/run-1', private=True)"
    )
    return remote


async def test_a_hub_elsewhere_is_asked_the_same_questions(client: RealClient, hub: RemoteHub) -> None:
    began = len(hub.requests())
    await client(hub, SEND, "w", "step-5")
    asked = [each.route for each in hub.requests(began)]
    assert asked == ["preupload", "lfs-batch", "lfs-put", "lfs-verify", "commit", "tag"]
    assert hub.repos() == [REPO]
    assert hub.tags(REPO) == {"step-5": hub.head(REPO)}
    assert hub.tree(REPO)["checkpoint/weights.bin"][0] == 1000
    assert sum(hub.received().values()) >= 1000
    assert not hub.resent()
    assert hub.stored_bytes(REPO) == sum(size for size, _ in hub.tree(REPO, "step-5").values())
    assert [each.tag for each in hub.verify(REPO)] == ["step-5"]  # it has no manifest


async def test_faults_and_knobs_go_over_the_control_route(client: RealClient, hub: RemoteHub) -> None:
    hub.fault(Fault.says("commit", 503), Fault.says("tag", 500, times=None))
    assert [each.route for each in hub.waiting()] == ["commit"]
    with pytest.raises(ClientError) as failed:
        await client(hub, SEND, "w", "step-5")
    assert failed.value.status == 503
    hub.clear()
    hub.set(part_size=400)
    try:
        await client(hub, SEND, "v", "step-5")
    finally:
        hub.set(part_size=None)
    assert len(await asyncio.to_thread(hub.wait_for, "lfs-part", 3)) == 3
    hub.plan(seed=1, share=1.0, routes=("whoami",), in_a_row=10_000)
    with pytest.raises(ClientError):
        await client(hub, "for _ in range(20): api.whoami()")
    hub.plan(None)
    theirs = hub.someone_commits(REPO, "theirs.txt", "words")
    assert hub.someone_tags(REPO, "step-9") == theirs == hub.head(REPO)
    hub.add_token(Token("hf_new", user="new"))
    assert await client(hub, "say(api.whoami()['name'])", token="hf_new") == ["new"]
    hub.make_private(REPO, False)
    assert await client(hub, "say(api.repo_info('relay/run-1').private)", token="hf_new") == [False]


async def test_the_benchs_own_upload_is_one_commit(hub: RemoteHub, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "weights.bin").write_bytes(b"w" * 5000)
    (tmp_path / "sub" / "note.txt").write_text("note")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(YARDSTICK), hub.url, REPO, str(tmp_path), stdout=asyncio.subprocess.PIPE,
        env=client_env(hub.url),
    )  # fmt: skip
    said = json.loads((await process.communicate())[0])
    assert said["bytes"] == 5004
    assert said["commit"] == hub.head(REPO)
    assert sorted(hub.tree(REPO)) == [".gitattributes", "checkpoint/sub/note.txt", "checkpoint/weights.bin"]


def test_what_cannot_be_done_is_said(hub: RemoteHub) -> None:
    with pytest.raises(AssertionError, match="no route 'tags'"):
        hub.fault(Fault.says("tags", 500))
    with pytest.raises(AssertionError, match="Repository not found"):
        hub.verify("relay/none")
    with pytest.raises(AssertionError, match="token"):
        hub.set(token="x")
    with pytest.raises(AssertionError, match="TimeoutError"):
        hub.wait_for("squash", deadline=0.01)


async def test_only_the_process_has_the_control_route(own_hub: TestHub) -> None:
    def ask() -> int:
        request = urllib.request.Request(own_hub.url + CONTROL, json.dumps({"do": "repos"}).encode())
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(request, timeout=10)
        with failed.value as answer:
            return answer.status or 0

    assert await asyncio.to_thread(ask) == 404


def test_the_process_ends_with_its_block(tmp_path: Path) -> None:
    with hub_process(tmp_path / "content") as hub:
        (child,) = (
            each for each in psutil.Process(os.getpid()).children() if str(tmp_path) in " ".join(each.cmdline())
        )
        assert hub.repos() == []
    assert not child.is_running()
