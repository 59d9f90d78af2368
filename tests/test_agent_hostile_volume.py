"""A trainer may write wherever its pod may: what it plants under Relay's names hangs nothing, redirects nothing."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from agent_rig import AGENT, SECRET, Rig, eventually


@pytest.mark.parametrize("plant", ["mkfifo {}", "ln -sf {victim} {}", "mkdir {}", "ln -f {victim} {}"])
def test_what_lies_under_our_names_is_moved_aside(rig: Rig, plant: str) -> None:
    victim = rig.root / "victim"
    victim.write_text("mine")
    planting = plant.format("$f", victim=victim)  # again where the agent came between
    script = f'cd "$RELAY_RUN_ROOT"; for f in events.jsonl state.json; do until rm -f $f; {planting}; do :; done; done'
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
    assert "step 1/2\n" in log.read_text()
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


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_an_agent_without_a_stderr_trains(rig: Rig, closed: str) -> None:
    env = {
        **os.environ,
        "COMMANDER_URL": rig.url,
        "RELAY_SHARED_SECRET": SECRET,
        "RELAY_L1_ROOT": str(rig.volume),
        "RELAY_AGENT_STATE": str(rig.root / "pod-a"),
        "RUN_ID": rig.run_id,
        "SLIME_SFT_CMD": "echo step 1/1 loss 1; exit 6",
        "RETRIES": "0",
    }
    done = subprocess.run(["bash", "-c", f'exec "$0" {closed}', AGENT], env=env, timeout=30)
    assert done.returncode == 6
    assert (rig.folder / "logs" / "e00000001.log").read_text() == "step 1/1 loss 1\n"
