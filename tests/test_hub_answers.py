"""What is made of what the Hub answers, and what lies behind it: whose fault it is, and whether time mends it."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from checkpoint_kit import put
from hub_pull_kit import pull_job, shelve
from hub_sync_kit import Calls, send_job

from relay_agent.hub.far.failures import from_storage
from relay_agent.hub.protocol import Pulled, Where
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import Fault, TestHub

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own
NAME = "step_00000500"
EXPIRED = "AccessDenied: Request has expired"


@pytest.fixture
def saved(run: RunFolder) -> RunFolder:
    put(run, 1, 500)
    return run


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
        ("http://hub.corp", "https://HUB.corp/me/x/resolve/main/a", "", False),
        ("https://mirror.example", "https://huggingface.co/me/x/resolve/main/a", "", False),
        ("http://127.0.0.1:8000", "http://127.0.0.1:9000/lfs/put", "", True),
    ],
)
def test_who_answered(endpoint: str, url: str, code: str, *, storage: bool) -> None:
    headers = {"X-Error-Code": code} if code else {}
    response = httpx2.Response(403, headers=headers, request=httpx2.Request("GET", url))
    assert from_storage(response, endpoint) is storage
