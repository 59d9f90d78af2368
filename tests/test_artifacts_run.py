"""Runs without a Hub: what they end with is at the commander, and a pod with an empty disk goes on from there."""

from __future__ import annotations

import io
import json
import shutil
import signal
import tarfile
import urllib.request
from typing import Any

import zstandard
from agent_rig import Rig, eventually, mock

from relaytui.wire.proof import derived_token

SIZE = 3_000_000


def artifacts(rig: Rig) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = rig.call(f"/api/artifacts?run={rig.run_id}")["artifacts"]
    return rows


def checkpoints(rig: Rig) -> list[tuple[str, bool]]:
    return [(row["name"], row.get("final", False)) for row in artifacts(rig) if row["kind"] == "checkpoint"]


def test_the_last_checkpoint_and_small_files_are_at_the_commander_before_the_run_ends(rig: Rig) -> None:
    command = f"echo '{{}}' > $RELAY_OUTPUT_DIR/report.json; {mock('--steps', 10, '--step-seconds', 0, '--size', SIZE)}"
    agent = rig.agent(command, ARTIFACTS="final", ARTIFACTS_FILES="*.json")
    assert agent.wait() == 0, agent.says()
    assert rig.run()["status"] == "completed"
    assert checkpoints(rig) == [("step_00000010", True)], agent.says()
    assert [row["name"] for row in artifacts(rig)] == ["checkpoint.manifest.json", "step_00000010", "report.json"]
    kinds = rig.kinds()
    assert kinds.count("artifact.stored") == 3
    assert kinds.index("artifact.stored") < kinds.index(
        "attempt.ended" if "attempt.ended" in kinds else "run.completed"
    )
    assert "artifact.stored" in [event["event"] for event in rig.events()]
    shown = rig.run()["transfers"]
    assert [(each["kind"], each["phase"]) for each in shown] == [("artifact", "done")]
    is_read_by_anybody(rig, artifacts(rig)[1]["id"])


def is_read_by_anybody(rig: Rig, artifact: int) -> None:
    """By zstd and tar as everybody has them."""
    token = derived_token((rig.state / "key").read_bytes(), "operator")
    address = f"{rig.url}/api/artifacts/{artifact}/content"
    asked = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=5) as answer:
        data = zstandard.ZstdDecompressor().decompress(answer.read())
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        manifest = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert manifest["step"] == 10
    assert names == sorted(["manifest.json", *(file["path"] for file in manifest["files"])])


def test_a_pod_with_an_empty_volume_goes_on_from_the_store(rig: Rig) -> None:
    flags = ("--step-seconds", 0, "--size", SIZE)
    assert rig.agent(mock("--steps", 10, *flags), ARTIFACTS="every").wait() == 0
    whole = {path.name: path.read_bytes() for path in (rig.folder / "ckpt" / "step_00000010").iterdir()}
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=1, why="more steps")
    shutil.rmtree(rig.volume)
    rig.volume.mkdir()
    unaware = rig.agent(mock("--steps", 12, *flags), "pod-b")
    assert unaware.wait() == 2, "it trains nothing, and says where the checkpoint is"
    assert "the commander has step_00000010 in the artifact store: set ARTIFACTS to final" in unaware.says()
    second = rig.agent(mock("--steps", 12, *flags), "pod-b", ARTIFACTS="final")
    assert second.wait() == 0, second.says()
    assert "resuming from step_00000010 at step 10" in second.says()
    assert {path.name: path.read_bytes() for path in (rig.folder / "ckpt" / "step_00000010").iterdir()} == whole
    assert "restore.artifact" in rig.kinds()
    assert checkpoints(rig)[-1] == ("step_00000012", True)
    assert not list((rig.folder / "ckpt" / ".incoming").iterdir())


def test_a_hub_that_nobody_reaches_does_not_keep_the_checkpoint_from_the_store(rig: Rig) -> None:
    hub = {"HF_REPO": "me/run", "HF_TOKEN": "hf_x", "HF_DRY_RUN": "false", "HF_ENDPOINT": "http://127.0.0.1:9"}
    agent = rig.agent(mock("--steps", 5, "--step-seconds", 0), ARTIFACTS="final", **hub)
    agent.heard("for the last sync to me/run")
    eventually(lambda: checkpoints(rig) == [("step_00000005", True)], "it is in the store")
    assert agent.process.poll() is None
    agent.process.send_signal(signal.SIGINT)
    assert agent.wait(10) == 0, agent.says()
    assert "hub.left" in rig.kinds()


def test_ctrl_c_ends_the_wait(rig: Rig) -> None:
    """For a store that fails just now."""
    uploads = rig.state / "artifacts" / "uploads"
    shutil.rmtree(uploads)
    uploads.write_text("no folder")
    try:
        agent = rig.agent(mock("--steps", 5, "--step-seconds", 0), ARTIFACTS="final")
        agent.heard("the upload to the artifact store waits")
        assert agent.process.poll() is None
        assert rig.run()["status"] == "running", "its lease is held while it waits"
        agent.process.send_signal(signal.SIGINT)
        assert agent.wait(10) == 0, agent.says()
    finally:
        uploads.unlink()
        uploads.mkdir(mode=0o700)
    assert "not all that should be is in the artifact store: the wait for it was ended" in agent.says()
    assert "artifact.left" in rig.kinds()
    assert rig.run()["status"] == "completed", "it was when its trainer ended"
    assert checkpoints(rig) == []


def test_a_completed_run_that_is_queued_again_for_its_last_upload_is_completed_again(rig: Rig) -> None:
    """Its trainer finds nothing left to do, and says so by its exit code alone."""
    command = mock("--steps", 5, "--step-seconds", 0)
    assert rig.agent(command, ARTIFACTS="final", ARTIFACTS_END_WAIT="0").wait() == 0
    assert "artifact.left" in rig.kinds()
    assert (rig.run()["status"], checkpoints(rig)) == ("completed", [])
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=1, why="its checkpoint is not in the store")
    again = rig.agent(command, ARTIFACTS="final")
    assert again.wait() == 0, again.says()
    assert rig.run()["status"] == "completed", again.says()
    assert checkpoints(rig) == [("step_00000005", True)]
