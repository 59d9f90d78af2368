"""What a token may do, whether a repository is private when it matters, and what answers that is no Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hub_sync_kit import REPO, RUN, Calls, put, send_job
from msgspec.structs import replace

from relay_agent.config import load
from relay_agent.hub import examine
from relay_agent.hub.far.client import connect
from relay_agent.hub.far.rights import see_writer
from relay_agent.hub.protocol import Check, Checked, Listed, ListSteps, Where
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import Fault, TestHub

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


@pytest.fixture
def run(run: RunFolder) -> RunFolder:
    put(run, 1, 500)
    return run


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False], ids=["there", "not there"])
@pytest.mark.parametrize(
    ("token", "repo", "words"),
    [
        ("hf_read", REPO, "HF_TOKEN only reads"),
        ("hf_stranger", REPO, "stranger"),
        ("hf_write", "others/run", "relay is not others"),
        ("hf_write", REPO, ""),
        ("hf_write", "relay-lab/run", ""),
    ],
)
async def test_doctor_says_of_a_token_that_cannot_write(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, token: str, repo: str, words: str, there: bool
) -> None:
    if there and not repo.startswith("others/"):
        await call(send_job(replace(where, repo=repo), run, "step_00000500"))
    job = Check(replace(where, token=token, repo=repo), RUN, make=False)
    if not words:
        assert (await call(job, Checked)).doubt == ""
        return
    with pytest.raises(Trouble, match=words) as refused:
        await call(job, Checked)
    assert (refused.value.code, refused.value.kind) == ("no_permission", "permanent")


def who(**token: Any) -> dict[str, Any]:
    return {
        "name": "me",
        "orgs": [{"name": "Lab", "roleInOrg": "read"}, {"name": "ours"}],
        "auth": {"accessToken": token},
    }


def scoped(kind: str, name: str, *permissions: str) -> dict[str, Any]:
    entity = {"type": kind, "name": name}
    return who(role="fineGrained", fineGrained={"scoped": [{"entity": entity, "permissions": list(permissions)}]})


@pytest.mark.parametrize(
    ("said", "repo", "words"),
    [
        (who(role="write"), "lab/run", "only reads in"),
        (who(role="write"), "Ours/run", ""),
        (who(role="write"), "ME/run", ""),
        (who(role="write"), "nobody/run", "me is not nobody"),
        (scoped("user", "me", "repo.content.read", "repo.write"), "me/run", ""),
        (scoped("model", "me/run", "repo.write"), "me/run", ""),
        (scoped("org", "lab", "repo.write"), "me/run", "no repo.write"),
        (scoped("user", "me", "repo.content.read"), "me/run", "no repo.write"),
    ],
)
def test_what_a_token_says_of_itself(said: dict[str, Any], repo: str, words: str) -> None:
    if not words:
        assert see_writer(said, repo, there=False) == ""
        return
    with pytest.raises(Trouble, match=words):
        see_writer(said, repo, there=False)


@pytest.mark.parametrize("said", [{}, {"auth": 1, "orgs": {}}, who(), who(role="fineGrained"), who(role="god"), []])
def test_a_token_that_says_nothing_of_itself_is_doubted(said: Any) -> None:
    assert "shows when" in see_writer(said, "me/run", there=False)


async def test_doctor_warns_where_it_cannot_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def doubts(*_: Any, **__: Any) -> Checked:
        return Checked("me", False, True, doubt="whether it may write shows when the run begins")

    monkeypatch.setattr(examine.calls, "call", doubts)
    environ = {"HF_REPO": "me/x", "HF_TOKEN": "hf_x", "HF_DRY_RUN": "false", "RELAY_AGENT_STATE": str(tmp_path)}
    word = await examine.examined(load(environ, needs_url=False))
    assert word is not None
    assert (word.level, "shows when" in word.why) == ("warn", True)


async def test_without_a_token_none_is_sent(hub: TestHub, where: Where, run: RunFolder, call: Calls) -> None:
    await call(send_job(replace(where, private=False), run, "step_00000500"))
    listed = await call(ListSteps(replace(where, token="", private=False)), Listed)
    assert [step.tag for step in listed.steps] == ["step-500"]
    api, _ = connect(replace(where, token=""))
    assert "authorization" not in {name.lower() for name in api._build_hf_headers()}


# -- private -----------------------------------------------------------------------------------------------------------


class Turns(list[str]):
    """Makes the repository public when a phase begins."""

    def __init__(self, hub: TestHub, phase: str) -> None:
        super().__init__()
        self._hub = hub
        self._phase = phase

    def append(self, phase: str) -> None:
        super().append(phase)
        if phase == self._phase:
            self._hub.repo(REPO).private = False


async def test_what_turns_public_while_it_uploads_gets_no_commit(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    call.phases = Turns(hub, "uploading")
    with pytest.raises(Trouble) as refused:
        await call(send_job(where, run, "step_00000500"))
    assert (refused.value.code, refused.value.kind) == ("not_private", "permanent")
    assert hub.repo(REPO).tags == {}
    assert "checkpoint/manifest.json" not in hub.files(REPO)


async def test_what_turns_public_behind_the_commit_is_said(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    call.phases = Turns(hub, "verify")
    assert (await call(send_job(where, run, "step_00000500"))).bared
    hub.repo(REPO).private = True
    put(run, 1, 600)
    call.phases = []
    assert not (await call(send_job(where, run, "step_00000600"))).bared


# -- what is no Hub ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind"),
    [('{"login": "please"}', "application/json"), ("<html>Sign in</html>", "text/html"), ("[]", "application/json")],
)
async def test_what_answers_and_is_no_hub_is_one_clear_line(call: Calls, body: str, kind: str) -> None:
    async def portal(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type=kind)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", portal)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = "http://{}:{}".format(*runner.addresses[0][:2])
        where = Where(REPO, "hf_x", url, timeout=5.0)
        for job, result in ((Check(where, RUN, make=False), Checked), (ListSteps(where), Listed)):
            with pytest.raises(Trouble, match="is not the Hub") as trouble:
                await call(job, result)
            assert url in trouble.value.words
            assert trouble.value.kind == "unknown"
    finally:
        await runner.cleanup()


async def test_a_network_that_breaks_is_not_called_so(hub: TestHub, where: Where, call: Calls) -> None:
    hub.fault(Fault.cuts("whoami"))
    with pytest.raises(Trouble) as trouble:
        await call(Check(where, RUN, make=False), Checked)
    assert "not the Hub" not in trouble.value.words
