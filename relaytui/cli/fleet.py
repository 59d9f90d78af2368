"""Pods for the demo: real `relay-agent` processes, each with a folder of its own, on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relaytui.wire.errors import RelayError

STOP_SECONDS = 15.0
"""How long agents get to save and say goodbye before they are killed."""


def agent_command() -> list[str]:
    """How to start `relay-agent`: the one beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name("relay-agent")
    found = str(beside) if beside.exists() else shutil.which("relay-agent")
    if found is None:
        raise RelayError(
            "no_agent", "relay-agent is not installed beside relay-tui", "install the relay-tui package anew"
        )
    return [found]


@dataclass
class Fleet:
    """The agents of one demo. `variables` is what they all get, such as the commander's URL and the secret."""

    root: Path
    variables: Mapping[str, str]
    pods: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    wants: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Run and mode of the pods that are not gone for good."""

    def start(self, name: str, run_id: str, mode: str) -> None:
        """Start pod `name`, an agent that wants `run_id`."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RELAY_", "SLIME_", "HF_"))},
            **self.variables,
            "RUN_ID": run_id,
            "WORKER_ID": name,
            "MODE": mode,
            "RELAY_AGENT_STATE": str(folder / "state"),
            "ORPHAN_TIMEOUT": "0",  # killing its agent is what stands for the end of a pod here
        }
        with (folder / "agent.log").open("ab") as log:
            self.pods[name] = subprocess.Popen(
                agent_command(),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the demo, which stops its pods in order
            )
        self.wants[name] = (run_id, mode)

    def left(self) -> list[tuple[str, str]]:
        """Pods that ended by themselves, each with the run that it wants: after a drain, say."""
        return [(name, run_id) for name, (run_id, _) in self.wants.items() if self.pods[name].poll() is not None]

    def again(self, name: str) -> None:
        self.start(name, *self.wants[name])

    def kill(self, name: str) -> None:
        """SIGKILL to everything on it: the pod is gone without a word."""
        pod = self.pods[name]
        del self.wants[name]
        below = _below(pod.pid)
        pod.kill()
        for pid in below:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        pod.wait()

    def stop(self) -> None:
        """SIGTERM to all, as a provider would; SIGKILL to whoever is still there after STOP_SECONDS, or at Ctrl-C."""
        left = [pod for pod in self.pods.values() if pod.poll() is None]
        for pod in left:
            pod.send_signal(signal.SIGTERM)
        try:
            for pod in left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pod.wait(STOP_SECONDS)
        finally:  # also where Ctrl-C says that nobody wants to wait for that
            for pod in left:
                if pod.poll() is None:
                    pod.kill()
                    pod.wait()


def _below(pid: int) -> list[int]:
    """Descendants of a process; none where the system has no /proc (there a killed agent's guardian ends the rest)."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_below(child)]
    return found
