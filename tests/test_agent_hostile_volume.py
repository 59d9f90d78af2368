"""A trainer may write wherever its pod may: what it plants under Relay's names hangs nothing, redirects nothing."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_rig import Rig, eventually, rigged


@pytest.fixture(scope="module")
def commander(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("commander")) as rig:
        yield rig


@pytest.fixture
def rig(commander: Rig, tmp_path: Path) -> Iterator[Rig]:
    shared = Rig(tmp_path, run_id=f"run-{secrets.token_hex(4)}", port=commander.port, state_folder=commander.state)
    shared.volume.mkdir()
    try:
        yield shared
    finally:
        shared.close()


@pytest.mark.parametrize("plant", ["mkfifo {}", "ln -sf {victim} {}", "mkdir {}", "ln -f {victim} {}"])
def test_what_lies_under_our_names_is_moved_aside(rig: Rig, plant: str) -> None:
    victim = rig.root / "victim"
    victim.write_text("mine")
    names = ["events.jsonl", "state.json"]
    rm = 'cd "$RELAY_RUN_ROOT"; rm -f events.jsonl state.json; '
    script = rm + "; ".join(plant.format(name, victim=victim) for name in names)
    script += "; echo step 1/2; touch planted; trap 'exit 143' TERM; while :; do sleep 0.05; done"
    log = rig.folder / "logs" / "e00000001.log"
    log.parent.mkdir(parents=True)
    if plant.startswith("mkfifo"):
        os.mkfifo(log)
    elif plant.startswith("mkdir"):
        log.mkdir()
    elif "-sf" in plant:
        log.symlink_to(victim)
    else:
        log.hardlink_to(victim)
    agent = rig.agent(script)
    eventually(lambda: (rig.folder / "planted").exists() or agent.process.poll() is not None, "it is planted", 8)
    assert (rig.folder / "planted").exists(), agent.says()
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(15) == 143
    assert victim.read_text() == "mine"
    assert rig.told()["status"] == "PREEMPTED"
    assert rig.events()[-1]["event"] == "attempt.ended"
    assert log.read_text().startswith("step 1/2\n")
    assert os.path.lexists(log.with_name(f"{log.name}.foreign.1"))
    assert not list(rig.folder.glob(".*.tmp"))


def test_a_log_folder_that_is_a_link_leads_nowhere(rig: Rig) -> None:
    """Linked away after the run's folders were looked at; the log is read back from nowhere either."""
    elsewhere = rig.root / "elsewhere"
    elsewhere.mkdir()
    trap = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
    agent = rig.agent(f'cd "$RELAY_RUN_ROOT"; mv logs was; ln -s {elsewhere} logs; touch planted; exit 3')
    assert agent.wait(15) == 3
    rig.run_id = f"{rig.run_id}-b"
    (rig.folder / "logs").mkdir(parents=True)
    (rig.folder / "events.jsonl").symlink_to(elsewhere / "events")
    agent = rig.agent(f"touch {rig.root}/up; {trap}", "pod-b")
    eventually(lambda: (rig.root / "up").exists() or agent.process.poll() is not None, "it trains", 8)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait(15) == 143
    assert list(elsewhere.iterdir()) == []
