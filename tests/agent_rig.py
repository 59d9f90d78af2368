"""A commander, a volume and agents as a pod starts them: real processes over real sockets, for tests."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import programs
import pytest
from ports import free_port

from relay_agent import guardian
from relay_agent.checkpoints.manifest import verify
from relaytui.wire.proof import derived_token

UNKNOWN = {"step": 0, "newest_step": 0, "published": 0, "attempts": []}
AGENT = programs.AGENT
TUI = programs.TUI
LAUNCHERS = Path(__file__).resolve().parent.parent / "launchers"
SECRET = programs.SECRET
PATIENCE = 30.0


def eventually(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true answer of `condition`."""
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.02)
    return answer


def mock(*flags: object) -> str:
    """Without site-packages: where many are installed, looking through them is half of its start."""
    return f"exec python3 -S {LAUNCHERS}/mock_trainer.py " + " ".join(map(str, flags))


@dataclass
class Agent:
    process: subprocess.Popen[bytes]
    log: Path

    def says(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def heard(self, words: str) -> None:
        eventually(lambda: words in self.says() or self.process.poll() is not None, f"{words!r} in {self.log}")
        assert words in self.says(), self.says()


@dataclass
class Rig:
    """A commander in a process of its own, a volume, and agents; `run_id` is what they train unless told otherwise."""

    root: Path
    run_id: str = "run-1"
    lease_seconds: float = 3.0
    port: int = 0
    state_folder: Path | None = None
    commander: subprocess.Popen[bytes] | None = None
    agents: list[Agent] = field(default_factory=list)
    host: str = "127.0.0.1"
    serving: dict[str, str] = field(default_factory=dict)
    """Variables of the commander's besides."""
    within: tuple[str, ...] = ()
    """Words before an agent's command, such as `ip netns exec NAME`."""

    @property
    def volume(self) -> Path:
        return self.root / "volume"

    @property
    def folder(self) -> Path:
        """Of the run, on the volume."""
        return self.volume / "runs" / self.run_id

    @property
    def state(self) -> Path:
        """Of the commander."""
        return self.state_folder or self.root / "state"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start_commander(self) -> None:
        if not self.port:
            self.port = free_port()
        env = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        env |= {"RELAY_SHARED_SECRET": SECRET, "RELAY_LEASE_SECONDS": str(self.lease_seconds)} | self.serving
        with (self.root / "commander.log").open("ab") as log:
            self.commander = programs.Popen(
                [TUI, "--state", self.state, "serve", "--port", str(self.port)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(self.healthy, f"a commander at {self.url}")

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/health", timeout=1):
                return True
        except OSError:
            return False

    def kill_commander(self) -> None:
        assert self.commander is not None
        self.commander.kill()
        self.commander.wait()

    def call(self, path: str, **body: object) -> Any:
        token = derived_token((self.state / "key").read_bytes(), "operator")
        data = json.dumps(body).encode() if body else None
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=5) as answer:
            return json.load(answer)

    def run(self, run_id: str = "") -> dict[str, Any]:
        """The run's row, with its attempts (oldest first); empty before the commander knows it."""
        try:
            answer = self.call(f"/api/runs/{run_id or self.run_id}")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise
            return {**UNKNOWN, "status": None}
        attempts = sorted(answer["attempts"], key=lambda attempt: int(attempt["epoch"]))
        return {**UNKNOWN, **answer["run"], "attempts": attempts}  # the API leaves defaults out

    def lines(self) -> list[str]:
        return [line["text"] for line in self.call(f"/api/runs/{self.run_id}/log?limit=5000")["lines"]]

    def kinds(self) -> list[str]:
        """Of the run's events, as the commander has them."""
        return [event["kind"] for event in self.call(f"/api/events?run={self.run_id}&limit=1000")["events"]]

    def agent(
        self,
        command: str | None,
        worker: str = "pod-a",
        *,
        stderr: int | None = None,
        by: type[subprocess.Popen[bytes]] = programs.Popen,
        **variables: str,
    ) -> Agent:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "SLIME_"))},
            "COMMANDER_URL": self.url,
            "RELAY_SHARED_SECRET": SECRET,
            "RELAY_L1_ROOT": str(self.volume),
            "RELAY_AGENT_STATE": str(self.root / worker),
            "RELAY_SETTLE_SECONDS": "0.5",
            "RETRIES": "0",  # a crash is the end, unless a test says otherwise
            "PREEMPT": "none",  # whatever machine the tests run on
            "ORPHAN_TIMEOUT": "0",  # a pod is killed whole, unless a test says otherwise
            "RUN_ID": self.run_id,
            "WORKER_ID": worker,
            **({"SLIME_SFT_CMD": command} if command else {}),
            **variables,
        }
        path = self.root / f"{worker}.{len(self.agents)}.log"
        with path.open("wb") as log:
            out = log if stderr is None else stderr
            process = by(
                [*self.within, AGENT], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=out, cwd=self.root
            )
        self.agents.append(Agent(process, path))
        return self.agents[-1]

    def pod_folder(self, worker: str = "pod-a", epoch: int = 1) -> Path:
        """What an agent keeps of an attempt."""
        return self.root / worker / "runs" / self.run_id / f"e{epoch:08d}"

    def guard(self, worker: str = "pod-a", epoch: int = 1) -> str:
        """The mark of an attempt's trainer."""
        note = self.pod_folder(worker, epoch) / "attempt.json"
        text = eventually(lambda: note.exists() and note.read_bytes(), "a note of the attempt")
        return str(json.loads(text)["guard"])

    def checkpoints(self) -> list[str]:
        """Names of published checkpoints on the volume; each must be whole."""
        names = sorted(path.name for path in (self.folder / "ckpt").glob("step_*"))
        for name in names:
            verify(self.folder / "ckpt" / name, self.run_id)
        return names

    def events(self) -> list[dict[str, Any]]:
        """events.jsonl of the run."""
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def told(self) -> dict[str, Any]:
        """state.json of the run."""
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    def close(self) -> None:
        for agent in self.agents:
            agent.process.kill()
            agent.process.wait()
        if self.commander is not None:
            self.commander.kill()
            self.commander.wait()


@contextmanager
def rigged(root: Path, lease_seconds: float = 3.0) -> Iterator[Rig]:
    """A rig with its commander up; nothing of it is left afterwards."""
    rig = Rig(root, lease_seconds=lease_seconds)
    rig.volume.mkdir()
    try:
        rig.start_commander()
        yield rig
    finally:
        rig.close()


@pytest.fixture(scope="module")
def commander(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One for the whole file."""
    with rigged(tmp_path_factory.mktemp("commander")) as rig:
        yield rig


@contextmanager
def beside(commander: Rig, root: Path) -> Iterator[Rig]:
    """Agents and a volume of their own at a commander that others have, too."""
    shared = Rig(root, run_id=f"run-{secrets.token_hex(4)}", port=commander.port, state_folder=commander.state)
    shared.volume.mkdir()
    try:
        yield shared
    finally:
        shared.close()
        for pid in guardian.processes():  # one that hangs does not see that its agent is gone
            with suppress(OSError):
                if shared.run_id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def rig(commander: Rig, tmp_path: Path) -> Iterator[Rig]:
    """At the commander that the whole file shares."""
    with beside(commander, tmp_path) as shared:
        yield shared
