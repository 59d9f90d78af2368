"""Whole agents, a commander and a hub, in processes of their own: what is trained comes to the Hub, in nobody's way."""

from __future__ import annotations

import dataclasses
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
from agent_rig import Rig, commander, eventually, mock, rig

from relay_agent.config import load
from relay_agent.hub import layout
from relay_agent.hub.examine import examined
from tests.hub import Fault, RemoteHub, hub_process

__all__ = ["commander", "rig"]
REPO = "relay/run"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteHub]:
    with hub_process(tmp_path_factory.mktemp("hub"), by=programs.Popen) as hub:
        yield hub


@pytest.fixture(autouse=True)
def sending() -> Iterator[None]:
    with programs.sending():
        yield


def fetched(hub: RemoteHub, repo: str, tag: str, path: str) -> bytes:
    asked = urllib.request.Request(f"{hub.url}/{repo}/resolve/{tag}/{path}")
    asked.add_header("Authorization", f"Bearer {hub.token}")
    with urllib.request.urlopen(asked, timeout=5) as answer:
        data: bytes = answer.read()
    return data


@pytest.fixture
def variables(hub: RemoteHub, rig: Rig) -> dict[str, str]:
    hub.clear()
    return {
        "HF_REPO": "relay/{run_id}", "HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_DRY_RUN": "false",
        "HF_END_WAIT": "30",
    }  # fmt: skip


def test_the_run_is_on_the_hub_when_it_has_ended(rig: Rig, hub: RemoteHub, variables: dict[str, str]) -> None:
    repo = f"relay/{rig.run_id}"
    agent = rig.agent(mock("--steps", 20, "--save-every", 10, "--step-seconds", 0.02), **variables)
    assert agent.wait(60) == 0, agent.says()
    assert hub.verify(repo) == []
    told = ("relay/run.json", "relay/metrics.jsonl", "relay/events.jsonl", "README.md")
    run, metrics, events, card = (fetched(hub, repo, "step-20", path) for path in told)
    assert json.loads(run)["complete"] is True
    assert b'"loss"' in metrics
    assert b"hub.wish" in events
    assert rig.run_id.encode() in card
    synced = json.loads((rig.folder / "hf/last_synced.json").read_text())
    assert (synced["repo"], synced["step"]) == (repo, 20)
    assert rig.told()["last_hf_revision"] == synced["revision"]
    assert "hub.synced" in rig.kinds()
    everything = agent.says() + (rig.folder / "events.jsonl").read_text() + repr((run, metrics, events, card))
    assert hub.token not in everything


def test_a_commander_with_new_books_grants_above_what_has_pushed(
    rig: Rig, hub: RemoteHub, variables: dict[str, str]
) -> None:  # fmt: skip
    repo, told = f"relay/{rig.run_id}", layout.RunFile(1, rig.run_id, "sft", "step_00000001", 1, 7, 1, 7, True, [])
    variables["HF_REPO"] = repo
    other = dataclasses.replace(rig, run_id=f"{rig.run_id}-other")
    assert other.agent(mock("--steps", 1, "--save-every", 1), **variables | {"HF_REPO": repo}).wait(60) == 0
    hub.someone_commits(repo, layout.RUN, told.encode().decode())
    agent = rig.agent(mock("--steps", 4, "--save-every", 4, "--step-seconds", 0.02), **variables)
    assert agent.wait(60) == 0, agent.says()
    assert rig.run()["epoch"] == 8
    assert "step-4" in hub.tags(repo)


def test_a_hub_that_never_answers_is_in_nobodys_way(rig: Rig, hub: RemoteHub, variables: dict[str, str]) -> None:
    more = variables | {"HF_END_WAIT": "900"}
    agent = rig.agent(mock("--steps", 40, "--save-every", 20, "--step-seconds", 0.05), **more)
    eventually(lambda: rig.run()["step"] >= 1, "a step")  # before that the Hub is asked what there is of the run
    hub.fault(Fault.never("*", times=None))
    agent.heard("waiting up to 900 s for the last sync")
    assert rig.run()["step"] == 40
    assert len(rig.checkpoints()) == 2
    agent.process.send_signal(signal.SIGINT)
    assert agent.wait(10) == 0, agent.says()
    assert "the wait for it was ended" in agent.says()
    assert rig.run()["status"] == "completed"


def test_an_agent_killed_while_it_sends_leaves_the_rest_to_the_next(
    rig: Rig, hub: RemoteHub, variables: dict[str, str]
) -> None:
    repo = f"relay/{rig.run_id}"
    hub.fault(Fault("commit", delay=60.0, match=rig.run_id))
    trainer = mock("--steps", 4000, "--save-every", 10, "--step-seconds", 0.05)
    first = rig.agent(trainer, **variables)
    eventually(
        lambda: any(each.route == "commit" for each in hub.requests() if each.repo == repo), "a commit on its way"
    )
    first.process.kill()
    first.wait()
    again = rig.agent(trainer, worker="pod-b", **variables)
    eventually(lambda: (rig.folder / "hf/last_synced.json").exists(), "a sync", 90)
    assert hub.verify(repo) == []
    assert "hub.synced" in {event["event"] for event in rig.events()}
    again.process.kill()


def test_a_bad_token_is_said_before_training_gets_far(rig: Rig, hub: RemoteHub, variables: dict[str, str]) -> None:
    agent = rig.agent(
        mock("--steps", 5, "--save-every", 5, "--step-seconds", 0.02), **variables | {"HF_TOKEN": "hf_expired"}
    )
    assert agent.wait(60) == 0, agent.says()
    assert agent.says().count("the Hub does not know HF_TOKEN, or it is over") >= 1
    assert agent.says().count("nothing more is synced until somebody sees to it; training goes on") == 1
    assert "hub.failed" in rig.kinds()
    assert rig.run()["status"] == "completed"


@pytest.mark.parametrize(
    ("token", "fault", "level", "words"),
    [
        ("hf_write", None, "ok", "is, or will be, private"),
        ("hf_nobody", None, "fail", "does not know HF_TOKEN"),
        ("hf_write", Fault.says("whoami", 503, times=None), "warn", "the Hub has trouble"),
        ("", None, "fail", "HF_TOKEN is not set"),
    ],
)
async def test_doctor_asks_the_hub_and_makes_nothing(
    hub: RemoteHub, tmp_path: Path, token: str, fault: Fault | None, level: str, words: str
) -> None:
    hub.clear()
    if fault is not None:
        hub.fault(fault)
    before = hub.repos()
    environ = {
        "HF_REPO": "relay/of-a-doctor", "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_DRY_RUN": "false",
        "RELAY_AGENT_STATE": str(tmp_path),
    }  # fmt: skip
    word = await examined(load(environ, needs_url=False))
    assert word is not None
    assert word.level == level
    assert words in word.why
    assert hub.repos() == before
    assert not token or token not in word.why


@pytest.mark.parametrize("token", ["", "hf_write"])
async def test_doctor_says_in_dry_run_whether_the_hub_answers(hub: RemoteHub, tmp_path: Path, token: str) -> None:
    hub.clear()
    before = hub.repos()
    environ = {"HF_REPO": "relay/of-a-doctor", "HF_TOKEN": token, "RELAY_AGENT_STATE": str(tmp_path)}
    for url, words in ((hub.url, "the Hub answers"), ("http://127.0.0.1:9", "the Hub cannot be reached")):
        word = await examined(load(environ | {"HF_ENDPOINT": url}, needs_url=False))
        assert word is not None
        assert (word.level, "nothing is sent to relay/of-a-doctor" in word.why) == ("warn", True)
        assert words in word.why
    assert hub.repos() == before


async def test_doctor_says_what_is_to_be_set(tmp_path: Path) -> None:
    environ = {"HF_REPO": "me/x", "HF_DRY_RUN": "false", "RELAY_AGENT_STATE": str(tmp_path)}
    word = await examined(load(environ, needs_url=False))
    assert word == ("fail", "HF_TOKEN is not set", "set it to a token that may write there")
