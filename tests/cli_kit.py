"""`relay-tui` as a shell runs it, and a commander of its own process to run it against."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest

RELAY = programs.TUI


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_") and name != "PORT"}
    return {**kept, **more}


def relay(
    *arguments: str | Path, env: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [RELAY, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env or clean_environment(),
    )


class Served:
    """A commander of its own process, with one run held by one worker of the original's kind."""

    def __init__(self, state: Path, *options: str, **variables: str) -> None:
        self.state = state
        if not state.exists():
            state.mkdir(mode=0o700, parents=True)
            (state / "key").write_bytes(programs.KEY)
        self.process = programs.Popen(
            [RELAY, "serve", "--json", "--port", "0", "--state", state, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(**variables),
        )
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read() if self.process.stderr else ""
            text += line
        self.url: str = json.loads(text)["url"]

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        import urllib.request

        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"X-Relay-Secret": self.secret, "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            result: dict[str, Any] = json.load(answer)
            return result

    @property
    def secret(self) -> str:
        return relay("token", "worker", "--state", self.state).stdout.strip()

    def stop(self) -> str:
        """What it said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=10)[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    commander = Served(tmp_path_factory.mktemp("commander") / "state")
    grant = commander.call("/api/lease/acquire", {"worker_id": "pod-1", "run_id": "tiny"})
    assert grant["status"] == "granted"
    body = {"lease_token": grant["lease_token"], "run_id": "tiny", "step": 7, "status": "RUNNING", "msg": "hello"}
    commander.call("/api/job/report", body)
    yield commander
    commander.stop()
