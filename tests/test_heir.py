"""An agent is killed before its trainer was started: the next one on that pod is the same holder, and need not wait."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from agent_rig import Rig, eventually, mock, rigged
from test_agent_pod import note, pod

from relay_agent.pod.pod import DONE
from relay_agent.pod.takeover import heir, look


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rigged(tmp_path, lease_seconds=300.0) as rig:
        yield rig


def test_the_newest_that_had_no_trainer_leaves_its_name(tmp_path: Path) -> None:
    here = pod(tmp_path)
    assert heir(here, "run-1") == ""
    for epoch, name in ((1, "a"), (2, "b")):
        folder = here.make_folder("run-1", epoch)
        here.write(
            folder, msgspec.structs.replace(note(here, folder), epoch=epoch, incarnation=name * 32, started=False)
        )
    assert look(here, "run-1") is None
    assert heir(here, "run-1") == "b" * 32
    assert heir(here, "run-2") == ""
    here.done(folder)
    assert (folder / DONE).exists()
    assert heir(here, "run-1") == "", "its end is told: it gives its lease back"
    folder = here.make_folder("run-1", 3)
    elsewhere = msgspec.structs.replace(note(here, here.folder("run-1", 1)), epoch=3, started=False)
    here.write(folder, elsewhere)
    assert heir(here, "run-1") == "", "a copied folder is another holder"


def test_killed_over_what_comes_before_the_trainer_it_goes_on_at_once(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = {"HF_REPO": "me/x", "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        (rig.folder / "claims").mkdir(parents=True)
        (rig.folder / "claims" / "00000001.json").write_bytes(b"{}")  # so that the Hub is asked with a lease in hand
        first = rig.agent(mock("--steps", 2), ON_MISSING_CHECKPOINT="restart", **hub)
        first.heard("looking for checkpoints of the run at me/x")
        eventually(lambda: (rig.pod_folder(epoch=2) / "attempt.json").exists(), "its note")
        first.process.kill()
        first.wait()
    second = rig.agent(mock("--steps", 2, "--step-seconds", 0.02), ON_MISSING_CHECKPOINT="restart")
    assert second.wait(60) == 0, second.says()
    assert "waiting for run" not in second.says()
    assert (rig.run()["epoch"], rig.run()["status"]) == (3, "completed")
