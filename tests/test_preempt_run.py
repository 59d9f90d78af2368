"""Notices and the real agent: it has saved, published and given the lease back before its pod is gone."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent_rig import Agent, Rig, eventually, mock
from preempt_kit import settings

from relay_agent.preempt.clues import Clues
from relay_agent.preempt.said import describe

NEVER = 100_000
COMMAND = mock("--steps", 5000, "--step-seconds", 0.05, "--save-every", NEVER)


def notices(rig: Rig) -> list[dict[str, Any]]:
    return [event for event in rig.events() if event["event"] == "preempt.notice"]


def left_in_order(rig: Rig, agent: Agent) -> dict[str, Any]:
    """Its notice, once it has ended."""
    assert agent.wait() == 143, agent.says()
    run = rig.run()
    assert (run["status"], run["attempts"][0]["outcome"]) == ("queued", "preempted"), "free for the next pod"
    assert rig.checkpoints()[-1] == run["newest_checkpoint"], "what it saved last is there"
    assert "preempt.notice" in rig.kinds(), "the commander was told, too"
    (notice,) = notices(rig)
    return notice


def test_slurms_signal_saves_publishes_and_frees_the_run(rig: Rig) -> None:
    agent = rig.agent(COMMAND, PREEMPT="slurm", PREEMPT_GRACE="60", SLURM_JOB_ID="41")
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    for _ in range(2):
        agent.process.send_signal(signal.SIGUSR1)
    notice = left_in_order(rig, agent)
    assert (notice["source"], notice["plan"], notice["left"]) == ("slurm", "save", "60")
    assert "SIGUSR1 to job 41" in notice["message"]


def test_outside_of_slurm_it_is_none(rig: Rig) -> None:
    agent = rig.agent(COMMAND, SLURM_JOB_ID="41")  # the rig says PREEMPT=none
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    agent.process.send_signal(signal.SIGUSR1)
    before = rig.run()["step"]
    eventually(lambda: rig.run()["step"] >= before + 5, "steps after it")
    assert notices(rig) == []
    agent.process.kill()


class Imds(BaseHTTPRequestHandler):
    """A spot instance's metadata service: no notice until there is one."""

    action: bytes | None = None

    def do_PUT(self) -> None:
        self._answer(200, b"a-token")

    def do_GET(self) -> None:
        if self.path.endswith("/spot/instance-action") and self.action is not None:
            self._answer(200, self.action)
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Imds)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        Imds.action = None
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_spot_notice_saves_publishes_and_frees_the_run(rig: Rig, imds: str) -> None:
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 100))
    agent = rig.agent(COMMAND, PREEMPT="aws", PREEMPT_URL=imds)
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    Imds.action = json.dumps({"action": "terminate", "time": end}).encode()
    notice = left_in_order(rig, agent)
    assert (notice["source"], notice["plan"]) == ("aws", "save")
    assert abs(_at(notice["deadline"]) - _at(end)) <= 1
    assert "a-token" not in agent.says()


def _at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def test_a_pod_with_little_time_kills_its_trainer_before_it_is_killed(rig: Rig) -> None:
    command = mock("--hang-at", 3, "--ignore-sigterm", "--children", 2, "--daemons")
    agent = rig.agent(command, PREEMPT_GRACE="3", RELAY_STOP_GRACE="3000")
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 137, agent.says()
    assert rig.run()["attempts"][0]["outcome"] == "preempted", "told before the pod was gone"


# -- what doctor says --------------------------------------------------------------------------------------------

DOCKER = Clues({}, container=True, first=True)


@pytest.mark.parametrize(
    ("clues", "variables", "words", "todo"),
    [
        (Clues({}), {}, ["nobody is asked", "30 s (RELAY_STOP_GRACE)"], ""),
        (Clues({}), {"PREEMPT": "none"}, ["PREEMPT is none"], ""),
        (DOCKER, {}, ["the pod 10 s (docker: docker stop without --time)", "killed 7 s after"], ""),
        (DOCKER, {"RELAY_STOP_GRACE": "60"}, ["leaves a pod 10 s"], "set PREEMPT_GRACE"),
        (DOCKER, {"RELAY_STOP_GRACE": "60", "PREEMPT_GRACE": "90"}, ["90 s (PREEMPT_GRACE)", "killed 60 s after"], ""),
        (Clues({"SLURM_JOB_ID": "4"}), {}, ["SIGUSR1", "--signal=B:USR1@120", "30 s where no time"], ""),
        (Clues({}), {"PREEMPT": "slurm"}, ["SIGUSR1"], "SLURM_JOB_ID"),
        (Clues({}, {"sys_vendor": "Amazon EC2"}), {}, ["watches EC2's spot notices (120 s"], ""),
    ],
)
def test_doctor_says_who_is_watched_and_what_time_there_is(
    tmp_path: Path, clues: Clues, variables: dict[str, str], words: list[str], todo: str
) -> None:
    said, what = describe(settings(tmp_path, **variables), clues)
    for each in words:
        assert each in said
    assert todo in what
    assert bool(todo) == bool(what)
