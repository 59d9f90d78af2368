"""An order from the shell is waited for, briefly: taken, refused and why, or not answered yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_fleet import RUNS
from dashboard_fleet import run as row
from msgspec.structs import replace
from scripted_commander import NOW, TOKEN, ScriptedCommander

from relaytui.cli.act import _describe
from relaytui.cli.group import cli
from relaytui.client import orders
from relaytui.client.answers import RunDetail
from relaytui.shell.program import run
from relaytui.wire.rows import OrderRow
from relaytui.wire.status import OrderKind, RunStatus

NAME = "sft-shakespeare"
ASKED = "/api/runs/sft-shakespeare/orders/7"
KINDS = ("drain", "cancel", "save", "sync")


@pytest.fixture
async def commander(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedCommander]:
    monkeypatch.setenv("RELAY_TOKEN", TOKEN)
    monkeypatch.setattr(orders, "EVERY", 0.005)
    made = await ScriptedCommander().start()
    made.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, RUNS[0]))
    for kind in KINDS:
        made.answers["POST", f"/api/runs/{NAME}/{kind}"] = (200, {"run": RUNS[0], "order_id": 7})
    yield made
    await made.stop()


def order(kind: str, **answer: Any) -> tuple[int, dict[str, OrderRow]]:
    return 200, {"order": OrderRow(7, NAME, 3, OrderKind(kind), "ada", "", NOW, **answer)}


class Shell:
    def __init__(self, commander: ScriptedCommander, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._target = ["--connect", commander.endpoint.url, "--state", str(folder)]
        self._capsys = capsys

    async def __call__(self, kind: str, *more: str) -> tuple[int, str, str]:
        asked = ["--yes", "--expected-epoch", "3"] if kind in ("drain", "cancel") else []
        code = await asyncio.to_thread(run, "relay-tui", cli, [*self._target, kind, NAME, *asked, *more])
        said = self._capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def shell(commander: ScriptedCommander, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(commander, capsys, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_is_said_and_has_a_code(commander: ScriptedCommander, shell: Shell, kind: str) -> None:
    """`relay-tui sync` of a run without a repository said that it was asked, and nothing more."""
    commander.answers["GET", ASKED] = order(kind, accepted=False, message="HF_REPO is not set\x1b[2J", closed_at=NOW)
    code, out, err = await shell(kind)
    assert (code, out) == (75, "")
    assert err == f"relay-tui: pod-a refuses to {kind} {NAME}: HF_REPO is not set\n"
    code, out, err = await shell(kind, "--json")
    assert code == 75
    body = json.loads(out)
    assert (body["order_id"], body["outcome"], body["order"]["message"]) == (7, "refused", "HF_REPO is not set\x1b[2J")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_taken_is_said_with_its_answer(commander: ScriptedCommander, shell: Shell, kind: str) -> None:
    commander.answers["GET", ASKED] = order(kind, accepted=True, message="syncing the newest checkpoint to me/run")
    code, out, err = await shell(kind)
    assert (code, out) == (0, "")
    assert "pod-a" in err
    assert "not answered" not in err
    if kind in ("save", "sync"):
        assert err.endswith("syncing the newest checkpoint to me/run\n")
    assert json.loads((await shell(kind, "--json"))[1])["outcome"] == "taken"


async def test_an_answer_is_waited_for_and_no_longer_than_said(commander: ScriptedCommander, shell: Shell) -> None:
    commander.answers["GET", ASKED] = order("sync")
    code, _, err = await shell("sync", "--wait", "0.05")
    then = f"`relay-tui --connect {commander.endpoint.url} events {NAME}` shows it then"
    assert (code, err) == (0, f"pod-a has not answered yet whether it can sync {NAME} (order 7); {then}\n")
    before = len(commander.requests)
    assert json.loads((await shell("sync", "--wait", "0", "--json"))[1])["outcome"] == "unanswered"
    assert not any("orders" in path for _, path, *_ in commander.requests[before:]), "0: it is not asked for"
    assert (await shell("sync", "--wait", "-1"))[0] == 2
    asking = asyncio.create_task(shell("sync", "--wait", "60"))
    while not any("orders" in path for _, path, *_ in commander.requests[before:]):
        await asyncio.sleep(0.005)
    commander.answers["GET", ASKED] = order("sync", accepted=False, message="no", closed_at=NOW)
    assert (await asking)[0] == 75


async def test_an_attempt_that_ends_before_it_answers_is_said(commander: ScriptedCommander, shell: Shell) -> None:
    commander.answers["GET", ASKED] = order("sync", closed_at=NOW)
    code, _, err = await shell("sync")
    assert code == 75
    assert "ended before pod-a answered" in err


async def test_what_is_given_is_given_where_its_answer_cannot_be_had(shell: Shell) -> None:
    """By a commander of before there was such a route, or one that goes away meanwhile."""
    code, _, err = await shell("sync")
    assert code == 0
    assert "has not answered yet" in err


@pytest.mark.parametrize(
    ("kind", "status", "why"),
    [
        ("drain", RunStatus.QUEUED, "nobody holds sft-shakespeare: there is nothing to drain"),
        ("drain", RunStatus.LOST, "nobody holds sft-shakespeare: there is nothing to drain"),
        ("drain", RunStatus.DRAINING, "sft-shakespeare is draining already"),
        ("requeue", RunStatus.RUNNING, "sft-shakespeare is running: only an ended run is queued again"),
        ("force-acquire", RunStatus.FAILED, "sft-shakespeare is failed: there is nothing to take from anyone"),
    ],
)
async def test_what_cannot_be_done_is_refused_before_it_is_asked_about(
    commander: ScriptedCommander,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    kind: str,
    status: RunStatus,
    why: str,
) -> None:
    """A drain of a queued run promised that `its holder stops the trainer`, asked, and was refused then."""
    commander.answers["GET", f"/api/runs/{NAME}"] = (200, RunDetail(NOW, row(NAME, status)))
    target = ["--connect", commander.endpoint.url, "--state", str(tmp_path)]
    assert await asyncio.to_thread(run, "relay-tui", cli, [*target, kind, NAME]) == 75
    said = capsys.readouterr().err
    assert said.startswith(f"relay-tui: {why}")
    assert said.count("\n") == 1
    assert not any(method == "POST" for method, *_ in commander.requests)


def test_what_is_asked_about_is_shown_without_control_sequences() -> None:
    """A commander may be an older one, or know runs from one."""
    said = _describe(RunDetail(NOW, replace(RUNS[0], holder="pod\x1b]0;x\x07-a", newest_checkpoint="step\x1b[2J")))
    assert said.isprintable()
    assert "held by pod" in said
