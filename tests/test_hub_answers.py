"""What is made of what the Hub answers, and what lies behind it: whose fault it is, and whether time mends it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gzip
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from aiohttp import web
from checkpoint_kit import RUN, mine, new_run, put, stage
from hub_pull_kit import listed, pull_job, shelve
from hub_sync_kit import Calls, send_job, serving
from huggingface_hub.errors import HfHubHTTPError
from msgspec.structs import replace

from relay_agent import secret_words
from relay_agent.checkpoints.manifest import Manifest, decode, read
from relay_agent.checkpoints.publish import publish
from relay_agent.hub import layout
from relay_agent.hub.far import list_steps, remote
from relay_agent.hub.far.failures import from_storage, told
from relay_agent.hub.protocol import (
    Check,
    Checked,
    Highest,
    Job,
    Listed,
    ListSteps,
    Pulled,
    Reached,
    Sent,
    Trim,
    Trimmed,
    Where,
)
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import Fault, TestHub
from tests.hub.store import Repo

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own
NAME = "step_00000500"
EXPIRED = "AccessDenied: Request has expired"


@pytest.fixture
def saved(run: RunFolder) -> RunFolder:
    put(run, 1, 500)
    return run


@pytest.fixture(scope="module")
def sent_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, str], Repo]]:
    """Where `sent` comes from: its volume, the Hub's folder and its repositories."""
    folder = tmp_path_factory.mktemp("sent")
    (folder / "volume").mkdir()
    run = new_run(folder / "volume")
    put(run, 1, 500)

    async def send() -> dict[tuple[str, str], Repo]:
        async with TestHub(folder / "hub") as hub:
            hub.large_above = 1000
            hub.someone_commits(repo_made(hub), "README.md", b"Mine.\n")
            where = Where("relay/run-1", hub.token, hub.url, timeout=5.0)
            assert (await Calls(folder / "cache")(send_job(where, run, NAME))).tag == "step-500"
            return hub.store.repos

    repos = asyncio.run(send())
    put(run, 1, 600)
    return folder, repos


@pytest.fixture
def sent(sent_once: tuple[Path, dict[tuple[str, str], Repo]], hub: TestHub, tmp_path: Path) -> RunFolder:
    """A run whose first checkpoint is on the Hub, and which has saved again since. Somebody wrote into the README."""
    folder, repos = sent_once
    hub.large_above = 1000
    hub.store.repos = copy.deepcopy(repos)
    shutil.copytree(folder / "hub", tmp_path / "hub", dirs_exist_ok=True)
    shutil.copytree(folder / "volume", tmp_path / "volume", symlinks=True)
    return RunFolder(tmp_path / "volume" / "runs" / RUN)


# -- what lies behind the Hub ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "status", "error"),
    [
        ("lfs-put", 400, "RequestTimeout: Your socket connection to the server was not read from or written to"),
        ("lfs-put", 401, "no"),
        ("lfs-put", 403, EXPIRED),
        ("lfs-part", 403, EXPIRED),
        ("lfs-part", 404, "NoSuchUpload"),
    ],
)
async def test_storage_that_refuses_once_is_asked_again_and_no_token_is_blamed(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls, route: str, status: int, error: str
) -> None:
    hub.large_above, hub.part_size = 1000, 1000 if route == "lfs-part" else None
    hub.fault(Fault.says(route, status, error))
    with pytest.raises(Trouble, match="the storage behind the Hub") as refused:
        await call(send_job(where, saved, NAME))
    assert refused.value.kind == "transient"
    assert "HF_TOKEN" not in refused.value.words
    assert error[:40] in refused.value.words
    assert (await call(send_job(where, saved, NAME))).tag == "step-500"
    assert hub.verify("relay/run-1") == []


@pytest.mark.parametrize(("status", "error"), [(403, EXPIRED), (404, "NoSuchKey"), (400, "bad")])
async def test_so_is_a_cdn_while_a_checkpoint_comes_back(
    hub: TestHub, saved: RunFolder, call: Calls, tmp_path: Path, status: int, error: str
) -> None:
    hub.redirect = True
    revision = shelve(hub, saved, NAME)
    hub.fault(Fault.says("cdn", status, error))
    job = pull_job(hub, saved, NAME, revision, tmp_path / "place")
    with pytest.raises(Trouble, match="the storage behind the Hub") as refused:
        await call(job, Pulled)
    assert refused.value.kind == "transient"
    assert "HF_TOKEN" not in refused.value.words
    assert (await call(job, Pulled)).moved > 0


async def test_the_hub_itself_still_says_what_a_token_may(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls
) -> None:
    hub.large_above = 1000
    hub.fault(Fault.says("lfs-batch", 403, "no"))
    with pytest.raises(Trouble, match="HF_TOKEN may not do this") as refused:
        await call(send_job(where, saved, NAME))
    assert refused.value.kind == "permanent"


async def test_the_signature_of_an_address_is_not_told(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls
) -> None:
    hub.large_above = 1000
    url = "https://s3.example/a/b?X-Amz-Signature=5ec7e7&X-Amz-Credential=AKIA"
    hub.fault(Fault.says("lfs-put", 403, f"Cannot access content at: {url} now"))
    with pytest.raises(Trouble, match=r"content at: https://s3\.example/a/b now") as refused:
        await call(send_job(where, saved, NAME))
    assert "5ec7e7" not in refused.value.words


@pytest.mark.parametrize(
    ("endpoint", "url", "code", "storage"),
    [
        ("", "https://huggingface.co/api/models/me/x", "", False),
        ("", "https://hf-hub-lfs.s3.amazonaws.com/x?X-Amz-Signature=1", "", True),
        ("", "https://hf-hub-lfs.s3.amazonaws.com/x", "RepoNotFound", False),
        ("", "https://huggingface.co/api/complete_multipart?uploadId=1", "", True),
        ("http://hub.corp", "https://HUB.corp/me/x/resolve/main/a", "", False),
        ("https://mirror.example", "https://huggingface.co/me/x/resolve/main/a", "", False),
        ("http://127.0.0.1:8000", "http://127.0.0.1:9000/lfs/put", "", True),
    ],
)
def test_who_answered(endpoint: str, url: str, code: str, *, storage: bool) -> None:
    headers = {"X-Error-Code": code} if code else {}
    response = httpx2.Response(403, headers=headers, request=httpx2.Request("GET", url))
    assert from_storage(response, endpoint) is storage


@contextlib.asynccontextmanager
async def moved(hub: TestHub, status: int = 308) -> AsyncIterator[str]:
    """An address that sends every request on to the Hub's; its URL."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": hub.url + request.raw_path})

    async with serving(answer) as url:
        yield url


@pytest.mark.parametrize("status", [302, 308])
@pytest.mark.parametrize("what", ["check", "list", "highest", "send", "pull", "trim"])
async def test_an_address_that_sends_requests_on_is_said_as_that(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls, tmp_path: Path, what: str, status: int
) -> None:
    """No token goes to another host, and who answers there knows none."""
    revision = shelve(hub, saved, NAME)
    async with moved(hub, status) as url:
        there = replace(where, endpoint=url)
        jobs: dict[str, tuple[Job, type]] = {
            "check": (Check(there, RUN), Checked),
            "list": (ListSteps(there), Listed),
            "highest": (Highest(there, RUN), Reached),
            "send": (send_job(there, saved, NAME), Sent),
            "pull": (replace(pull_job(hub, saved, NAME, revision, tmp_path / "place"), where=there), Pulled),
            "trim": (Trim(there, RUN, 1, 2), Trimmed),
        }
        with pytest.raises(Trouble, match="sends requests on") as refused:
            await call(*jobs[what])
    assert (refused.value.code, refused.value.kind) == ("moved_away", "permanent")
    assert f"HF_ENDPOINT={hub.url}" in refused.value.words
    assert "HF_TOKEN" not in refused.value.words
    assert "storage" not in refused.value.words


async def test_what_needs_no_token_comes_from_there(hub: TestHub, where: Where, saved: RunFolder, call: Calls) -> None:
    shelve(hub, saved, NAME)
    hub.repo("relay/run-1").private = False
    async with moved(hub) as url:
        listed = await call(ListSteps(replace(where, endpoint=url)), Listed)
    assert [step.trouble for step in listed.steps] == [""]


# -- waits that the Hub names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "route", ["info", "refs", "tree", "resolve", "preupload", "lfs-batch", "lfs-put", "commit", "tag"]
)
async def test_a_wait_that_the_hub_names_is_told_at_once_wherever_it_is_named(
    hub: TestHub, where: Where, sent: RunFolder, call: Calls, route: str
) -> None:
    hub.fault(Fault.limited(route, 3600, times=None))
    before = len(hub.requests)
    with pytest.raises(Trouble, match="too many requests") as limited:
        await call(send_job(where, sent, "step_00000600"))
    assert (limited.value.code, limited.value.kind) == ("rate_limited", "transient")
    assert limited.value.wait == 3601
    asked = [each for each in hub.requests[before:] if each.route == route and each.status == 429]
    assert len(asked) <= 2, "nobody goes on asking"


@pytest.mark.parametrize(
    ("status", "header"),
    [
        (429, {"Retry-After": str(10**13)}),
        (503, {"Retry-After": str(10**13)}),
        (429, {"RateLimit": f'"api";r=0;t={"9" * 5000}'}),
    ],
    ids=["429", "503", "a window"],
)
async def test_a_wait_without_end_is_a_day(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls, status: int, header: dict[str, str]
) -> None:
    hub.large_above = 1000
    hub.fault(Fault("lfs-batch", status=status, headers=header, times=None))
    with pytest.raises(Trouble) as limited:
        await call(send_job(where, saved, NAME))
    assert limited.value.wait == 86_400


async def test_a_short_wait_is_kept_on_the_spot(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=slept.append))
    hub.large_above = 1000
    hub.fault(Fault.retry_after("lfs-batch", 5), Fault("preupload", status=429, headers={"Retry-After": "²"}))
    assert (await call(send_job(where, saved, NAME))).tag == "step-500"
    assert sorted(slept) == [1, 6]


# -- answers without end -----------------------------------------------------------------------------------------------

MANY = 64 << 20
TAGS = b'{"branches": [], "converts": [], "tags": ['
TAG = b'{"name": "step-1", "ref": "refs/tags/step-1", "targetCommit": "' + b"a" * 40 + b'"},'
SOME = TAG * 1000


def packed(data: bytes) -> bytes:
    return gzip.compress(data, 1)


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes, times: int = 1, **headers: str) -> AsyncIterator[str]:
    """A peer that answers everything so; its URL."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": "application/json", **headers})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(times):
                await response.write(body)
        return response

    async with serving(answer) as url:
        yield url


@pytest.mark.parametrize(
    ("what", "status", "code"),
    [("plain", 200, "endless"), ("packed", 200, "endless"), ("twice", 200, "no_hub"), ("plain", 418, "unknown")],
)
async def test_an_answer_without_an_end_is_not_read_to_it(
    where: Where, call: Calls, what: str, status: int, code: str
) -> None:
    body, times = SOME, MANY // len(SOME)
    if what != "plain":
        body, times = packed(TAGS + SOME * times), 1
    if what == "twice":
        body = packed(body)
    coding = {"plain": {}, "packed": {"Content-Encoding": "gzip"}, "twice": {"Content-Encoding": "gzip, gzip"}}[what]
    async with answering(status, body, times, **coding) as url:
        with pytest.raises(Trouble) as endless:
            await call(ListSteps(replace(where, endpoint=url)), Listed)
    assert endless.value.code == code
    assert endless.value.kind != "permanent"
    assert len(endless.value.words) < 400


async def test_what_is_packed_once_is_read(where: Where, call: Calls) -> None:
    body = packed(b'{"branches": [], "converts": [], "tags": []}')
    async with answering(200, body, **{"Content-Encoding": "gzip"}) as url:
        assert (await call(ListSteps(replace(where, endpoint=url)), Listed)).steps == []


async def test_large_manifests_are_read_one_at_a_time(
    hub: TestHub, saved: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (600, 700, 800):
        put(saved, 1, step)
    for name in ("step_00000500", "step_00000600", "step_00000700", "step_00000800"):
        shelve(hub, saved, name)
    alone: list[bool] = []

    def seen(data: bytes) -> Manifest:
        alone.append(list_steps._LARGE.locked())
        return decode(data)

    monkeypatch.setattr(list_steps, "decode", seen)
    monkeypatch.setattr(list_steps, "SMALL", 10)
    assert {step.trouble for step in (await listed(hub)).values()} == {""}
    assert alone == [True] * 4
    monkeypatch.setattr(list_steps, "MOST", 1)
    assert {step.trouble for step in (await listed(hub)).values()} == {"its manifest lists more than 1 files"}


async def test_a_repository_that_lists_files_without_end_is_left_alone(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call(send_job(where, saved, NAME))
    monkeypatch.setattr(remote, "MOST_FILES", 2)
    put(saved, 1, 600)
    with pytest.raises(Trouble, match="lists files without end") as endless:
        await call(send_job(where, saved, "step_00000600"))
    assert (endless.value.code, endless.value.kind) == ("endless", "transient")


# -- what the library refuses itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [".git", ".cache"])
async def test_a_folder_that_the_hub_does_not_take_is_said_with_what_to_do(
    where: Where, run: RunFolder, call: Calls, folder: str
) -> None:
    staged = stage(run, 1, 500)
    (staged.path / "data" / folder).mkdir(parents=True)
    (staged.path / "data" / folder / "config").write_text("x")
    publish(run, staged, 1, mine)
    with pytest.raises(Trouble) as refused:
        await call(send_job(where, run, NAME))
    assert (refused.value.code, refused.value.kind) == ("bad_path", "permanent")
    assert f"data/{folder}/config" in refused.value.words
    assert f"HF_PUSH='!*{folder}/*'" in refused.value.words


async def test_a_file_that_the_hub_does_not_take_is_said_with_its_own_words(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls
) -> None:
    hub.large_above = 1000
    await call(Check(where, RUN), Checked)
    (large,) = [file for file in read(saved.ckpt / NAME).manifest.files if file.size > 1000]
    hub.repo("relay/run-1").objects[large.sha256] = 5
    with pytest.raises(Trouble, match=r"does not take a file of it: .*is stored with 5 bytes") as refused:
        await call(send_job(where, saved, NAME))
    assert (refused.value.code, refused.value.kind) == ("refused_by_hub", "transient")


@pytest.mark.parametrize("proxy", ["foo://u:pa55word@127.0.0.1:9", "socks5://u:pa55word@127.0.0.1:9"])
async def test_a_proxy_of_no_known_kind_is_said_with_its_variable(
    where: Where, saved: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(Trouble, match="HTTPS_PROXY") as refused:
        await call(send_job(where, saved, NAME))
    assert (refused.value.code, refused.value.kind) == ("bad_proxy", "permanent")
    assert "pa55word" not in refused.value.words


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("echoed", range(150, 245, 5))
@pytest.mark.parametrize("known", [True, False])
def test_no_beginning_of_a_token_is_told_where_words_are_cut(echoed: int, *, known: bool) -> None:
    token = "hf_Zq9SECRETxTOKENy7654321"
    before = secret_words.known()
    secret_words.know({token: "[HF_TOKEN]"} if known else {})
    try:
        text = "x" * echoed + " " + token
        request = httpx2.Request("GET", "https://huggingface.co/api/models/me/x")
        response = httpx2.Response(400, request=request)
        job = ListSteps(Where("me/x", token))
        for error in (
            HfHubHTTPError(text, response=response, server_message=text),
            RuntimeError(text),
            httpx2.ConnectError(text),
            httpx2.UnsupportedProtocol(text),
        ):
            assert "hf_" not in told(error, job).words
    finally:
        secret_words.know(before)


# -- a 404 that does not say of what -----------------------------------------------------------------------------------


ASKED = {"resolve": 3, "info": 4, "refs": 1, "tree": 3, "preupload": 1, "lfs-batch": 1, "commit": 1, "tag": 1}
"""How often a sending asks for each, or oftener."""


@pytest.mark.parametrize(("route", "skip"), [(route, skip) for route, times in ASKED.items() for skip in range(times)])
async def test_one_404_that_does_not_say_of_what_is_no_end(
    hub: TestHub, where: Where, sent: RunFolder, call: Calls, route: str, skip: int
) -> None:
    hub.fault(Fault.says(route, 404, "odd", skip=skip))
    came: list[Trouble] = []
    try:
        await call(send_job(where, sent, "step_00000600"))
    except Trouble as trouble:
        came.append(trouble)
        await call(send_job(where, sent, "step_00000600"))
    assert hub.faults.waiting == [], "it was never asked so often"
    assert [each.words for each in came if each.kind != "transient"] == []
    assert hub.verify("relay/run-1") == []
    assert b"Mine." in hub.files("relay/run-1")["README.md"]


async def test_a_hub_that_goes_on_so_is_believed_where_it_lists_no_such_file(
    hub: TestHub, where: Where, saved: RunFolder, call: Calls
) -> None:
    repo_made(hub)
    hub.fault(Fault.says("resolve", 404, "odd", times=None, match=layout.RUN))
    assert (await call(send_job(where, saved, NAME))).tag == "step-500"
    with pytest.raises(Trouble, match=r"says 404 of relay/run\.json, and lists it") as odd:
        await call(send_job(where, saved, NAME))
    assert odd.value.kind == "transient"


BEHIND = {
    "check": ["resolve"],
    "send": ["info", *["resolve"] * 3, "tree", "tag"],
    "list": ["resolve"],
    "pull": ["resolve"] * 4,
    "trim": ["resolve"] * 3,
}
"""Which requests of a job name a commit, or a branch that is there; the first of each, the second, …"""


@pytest.mark.parametrize(
    ("what", "route", "skip"),
    [
        (what, route, routes[:number].count(route))
        for what, routes in BEHIND.items()
        for number, route in enumerate(routes)
    ],
)
async def test_a_copy_that_does_not_know_a_commit_yet_is_asked_again(
    hub: TestHub, where: Where, sent: RunFolder, call: Calls, tmp_path: Path, what: str, route: str, skip: int
) -> None:
    """What the Hub itself has just named is there: nothing is taken for missing, and nobody's words for none."""
    mine = hub.files("relay/run-1")["README.md"] + b"Mine.\n"
    hub.someone_commits("relay/run-1", "README.md", mine)
    jobs: dict[str, tuple[Job, type]] = {
        "check": (Check(where, RUN), Checked),
        "send": (send_job(where, sent, "step_00000600"), Sent),
        "list": (ListSteps(where, threads=1), Listed),
        "pull": (pull_job(hub, sent, NAME, hub.repo("relay/run-1").tags["step-500"], tmp_path / "place"), Pulled),
        "trim": (Trim(where, RUN, 1, 2), Trimmed),
    }
    hub.fault(Fault.says(route, 404, "Invalid rev id", code="RevisionNotFound", skip=skip))
    with pytest.raises(Trouble, match="does not know") as behind:
        await call(*jobs[what])
    assert hub.faults.waiting == [], "it was never asked so often"
    assert (behind.value.code, behind.value.kind) == ("not_known", "transient")
    await call(*jobs[what])
    assert hub.verify("relay/run-1") == []
    assert b"Mine." in hub.files("relay/run-1")["README.md"]


def repo_made(hub: TestHub) -> str:
    hub.store.create("relay/run-1", "model", True, "relay")
    return "relay/run-1"


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("SSL_CERT_FILE", None, "No such file"),
        ("SSL_CERT_FILE", "no certificate", "it holds no certificate"),
        ("SSL_CERT_DIR", None, "there is no such folder"),
    ],
)
async def test_certificates_that_cannot_be_read_are_said_with_their_variable_and_file(
    where: Where, call: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, why: str
) -> None:
    path = tmp_path / "corp.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv(name, str(path))
    with pytest.raises(Trouble, match=why) as unread:
        await call(ListSteps(where), Listed)
    assert (unread.value.code, unread.value.kind) == ("bad_certificates", "permanent")
    assert f"{name} names {path}" in unread.value.words
