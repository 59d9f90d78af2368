"""What an agent has not loaded while it trains: every megabyte of it is taken from the trainer's pod."""

from __future__ import annotations

import json
import sys

import pytest
from agent_rig import Rig, commander, mock, rig

__all__ = ["commander", "rig"]

NOT_WANTED = (
    "relay_agent.sending", "relay_agent.hub", "relay_agent.artifacts", "relay_agent.attempt.pushing",
    "relay_agent.attempt.storing", "relay_agent.attempt.restoring", "relay_agent.attempt.forking",
    "relay_agent.checkpoints.receiving", "relay_agent.checkpoints.placing", "relay_agent.checkpoints.forking",
    "relay_agent.doctor", "relaytui.archive", "relaytui.client", "relaytui.commander", "relaytui.dashboard",
    "huggingface_hub", "httpx2", "zstandard", "tarfile", "pickletools", "difflib", "yaml", "numpy", "torch",
    "psutil", "rich", "textual", "multiprocessing", "sqlite3",
)  # fmt: skip
"""Packages and modules, with all that is in them."""
SPY = """
import atexit, json, signal, sys
sys.argv[0] = "relay-agent"
atexit.register(lambda: open({path!r}, "w").write(json.dumps(sorted(sys.modules))))
from relay_agent.cli import main
main()
"""


def loaded(rig: Rig, monkeypatch: pytest.MonkeyPatch, **variables: str) -> set[str]:
    """Modules of an agent that has trained, published a checkpoint, and ended."""
    path = rig.root / "modules.json"
    spy = rig.root / "spy"
    spy.write_text(f"#!{sys.executable} -I\n{SPY.format(path=str(path))}")
    spy.chmod(0o700)
    monkeypatch.setattr("agent_rig.AGENT", spy)
    agent = rig.agent(mock("--steps", 4, "--save-every", 2, "--step-seconds", 0), **variables)
    assert agent.wait(60) == 0, agent.says()
    return set(json.loads(path.read_text()))


def unwanted(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if any(name == each or name.startswith(f"{each}.") for each in NOT_WANTED))


def test_an_agent_that_sends_nothing_has_loaded_nothing_of_what_would(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = loaded(rig, monkeypatch)
    assert rig.checkpoints() == ["step_00000002", "step_00000004"]
    assert {"aiohttp", "relay_agent.attempt.sending", "relay_agent.checkpoints.publisher"} <= modules
    assert unwanted(modules) == []
