"""A trainer that ends well and leaves a process behind, by real agents: its last save is neither torn nor lost."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from agent_rig import Rig

from relay_agent.checkpoints.manifest import verify

SETTLES = {"RELAY_SETTLE_SECONDS": "4", "COMPLETE_MARKER": "never"}
"""Longer than what is left has by itself."""


def trainer(last: str) -> str:
    script = f"""
    for s in 1 2 3; do echo step $s/3; done
    d=$RELAY_CKPT_STAGING_ROOT/step_3; mkdir $d
    {last}
    exit 0
    """
    return f"exec bash -c {shlex.quote(script)}"


@pytest.mark.parametrize(
    "last",
    [
        "setsid sleep 60 >/dev/null & echo 1 >$d/w",
        "(echo 1 >$d/v; sleep 1; echo 2 >$d/w; sleep 60) &",
        "(for n in 1 2 3 4 5; do echo $n >$d/$n; sleep 1; done) &",
    ],
    ids=["harmless", "saves and stays", "saves for long"],
)
def test_an_unmarked_save_has_the_time_to_keep_still_beside_it(rig: Rig, last: str) -> None:
    agent = rig.agent(trainer(last), **SETTLES)
    assert agent.wait() == 0, agent.says()
    assert rig.run()["status"] == "completed"
    assert rig.checkpoints() == ["step_00000003"]
    whole = 5 if "for n" in last else 2 if "$d/v" in last else 1
    assert len(verify(rig.folder / "ckpt/step_00000003").files) == whole


def test_one_that_never_keeps_still_is_torn(rig: Rig, tmp_path: Path) -> None:
    """And not waited for without end."""
    last = "(while :; do echo 1 >>$d/w; sleep 0.1; done) &"
    agent = rig.agent(trainer(last), RELAY_SETTLE_SECONDS="0.3", COMPLETE_MARKER="never")
    assert agent.wait() != 0, agent.says()
    assert rig.checkpoints() == []
    assert (rig.folder / "ckpt/.bad/e00000001.step_3").exists()
