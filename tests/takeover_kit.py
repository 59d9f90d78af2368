"""For tests of what becomes of a trainer whose agent is gone: a rig whose guardians outlive no test, and its words."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_rig import Agent, Rig, rigged

from relay_agent import guardian
from relay_agent.pod.pod import read_note

ORPHAN = {"ORPHAN_TIMEOUT": "60"}


@contextmanager
def orphaning(root: Path, lease_seconds: float = 3.0) -> Iterator[Rig]:
    with rigged(root, lease_seconds) as rig:
        try:
            yield rig
        finally:
            stop_all(rig)


def stop_all(rig: Rig) -> None:
    """A guardian that waits for an agent is not left behind by a test that fails."""
    for folder in rig.root.glob("pod-*/runs/*/e*"):
        note = folder / "attempt.json"
        if read_note(folder) is not None and note.exists():
            guard = rig.guard(folder.parents[2].name, int(folder.name[1:]))
            guardian.signal_all(guardian.tree(guard), signal.SIGKILL)


def kill(agent: Agent) -> None:
    agent.process.kill()
    agent.process.wait()


def trainer_pid(rig: Rig) -> int:
    """The one that the latest `trainer.started` names."""
    (event,) = [event for event in rig.events() if event["event"] == "trainer.started"][-1:]
    return int(event["message"].rpartition(" ")[2])


def steps(rig: Rig) -> list[str]:
    return [line.split()[1] for line in rig.lines() if line.startswith("step ")]


def forget_everything(rig: Rig) -> None:
    """The commander's books are gone; who it is stays."""
    rig.kill_commander()
    for path in rig.state.iterdir():
        if path.is_file() and path.name != "key":
            path.unlink()
    rig.start_commander()
