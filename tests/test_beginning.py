"""What a new attempt resumes from where the commander knows of a newest checkpoint: that one, or a word."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from checkpoint_kit import ManualClock, new_run, put, take

from relay_agent.attempt.beginning import Beginning
from relay_agent.checkpoints.publish import Published
from relay_agent.checkpoints.rollback import Rollback, note
from relay_agent.outcome.stop import Stop
from relay_agent.volume.claims import Claim
from relay_agent.volume.volume import RunFolder
from relaytui.wire.errors import RelayError
from relaytui.wire.messages import CheckpointRef


class Told(list[tuple[str, str]]):
    def event(self, kind: str, message: str, data: Any = None) -> None:
        self.append((kind, message))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self]


def ref(done: Published, epoch: int) -> CheckpointRef:
    return CheckpointRef(done.name, done.step, epoch, done.manifest_sha256)


def begin(
    run: RunFolder, epoch: int, newest: CheckpointRef | None, missing: str = "ask", *, healthy: bool = False,
    artifacts: str = "none", hf_repo: str = "",
) -> tuple[str | None, Told]:  # fmt: skip
    """Name of what it resumes from, and what was told."""
    told = Told()

    async def resume() -> str | None:
        settings: Any = SimpleNamespace(
            on_missing_checkpoint=missing, run_id=run.run_id, artifacts=artifacts, hf_repo=hf_repo
        )
        tenure: Any = SimpleNamespace(lease=SimpleNamespace(epoch=epoch))
        teller: Any = told
        begun = Beginning(settings, run, newest, 3, "mock", tenure, teller, Stop(), healthy, clock=ManualClock())
        found = await begun.resume()
        await asyncio.sleep(0)
        return found.name if found else None

    return asyncio.run(resume()), told


def test_another_checkpoint_of_the_same_name_is_not_the_newest(tmp_path: Path) -> None:
    for pod in ("a", "b"):
        (tmp_path / pod).mkdir()
    one, other = new_run(tmp_path / "a", 1), new_run(tmp_path / "b", None)
    put(one, 1, 60)
    take(other, 2)
    newest = ref(put(other, 2, 60, "other"), 2)
    with pytest.raises(RelayError, match="another one than that of epoch 2") as refused:
        begin(one, 3, newest)
    assert refused.value.code == "checkpoint_missing"
    name, told = begin(one, 3, newest, "older")
    assert (name, told.kinds()) == ("step_00000060", ["checkpoint.missing"])
    assert begin(one, 3, newest, "restart")[0] is None
    assert begin(other, 3, newest)[0] == "step_00000060"


@pytest.mark.parametrize(
    ("more", "settings", "words"),
    [
        ({"stored": True}, {}, "the commander has step_00000060 in the artifact store: set ARTIFACTS to final"),
        ({"hub": "step-60"}, {}, "step_00000060 is on the Hub as step-60: set HF_REPO to that repository"),
        ({"stored": True, "hub": "step-60"}, {"artifacts": "final", "hf_repo": "me/run"}, "mount the volume"),
        ({}, {}, "mount the volume"),
    ],
)
def test_who_has_the_missing_one_is_said(
    tmp_path: Path, more: dict[str, Any], settings: dict[str, str], words: str
) -> None:
    (tmp_path / "a").mkdir()
    done = put(new_run(tmp_path / "a", 1), 1, 60)
    newest = CheckpointRef(done.name, done.step, 1, done.manifest_sha256, **more)
    with pytest.raises(RelayError, match="is not on this volume; no whole one is here") as refused:
        begin(new_run(tmp_path, None), 3, newest, **settings)
    assert refused.value.hint.startswith(words)
    assert "or set ON_MISSING_CHECKPOINT to restart" in refused.value.hint


def test_the_same_one_is_known_by_its_manifest_whoever_told_of_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    done = put(run, 1, 60)
    assert begin(run, 4, ref(done, 3)) == ("step_00000060", [])
    assert begin(run, 4, CheckpointRef(done.name, done.step, 3, ""))[0] == "step_00000060", "from older books"


def test_a_claim_that_lies_does_not_lead_past_the_newest(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    newest = [put(run, 1, step) for step in (10, 20, 30)][-1]
    lie = Claim(2, "pod", "inc", "step_00000010", "config", 1.7e9)
    (run.claims / "00000002.json").write_bytes(msgspec.json.encode(lie))  # from before there were sums
    assert begin(run, 3, None)[0] == "step_00000010"
    name, told = begin(run, 3, ref(newest, 1))
    assert (name, told.kinds()) == ("step_00000030", ["resume.named"])
    (run.ckpt / "step_00000030" / "weights.bin").write_bytes(b"torn")
    name, told = begin(run, 3, ref(newest, 1))
    assert name == "step_00000010"
    assert "step_00000030 is damaged" in dict(told)["checkpoint.bad"]


def test_a_spoilt_claim_is_told_and_the_line_goes_on_without_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    newest = [put(run, 1, step) for step in (10, 20, 30)][-1]
    take(run, 2, "step_00000030")
    claim = run.claims / "00000002.json"
    claim.write_bytes(claim.read_bytes().replace(b'"step_00000030"', b'"step_00000010"'))
    name, told = begin(run, 3, ref(newest, 1))
    assert (name, told.kinds()[0]) == ("step_00000030", "claim.damaged")
    take(run, 3, name)
    assert begin(run, 4, ref(newest, 1)) == ("step_00000030", [])


def test_who_went_back_because_the_loss_was_bad_is_not_led_forth_again(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    newest = [put(run, 1, step) for step in (10, 20, 30)][-1]
    note(run, Rollback(1, 25, "the loss was nan", 1.7e9))
    take(run, 2, "step_00000020")
    assert begin(run, 3, ref(newest, 1))[0] == "step_00000020"


def test_the_line_goes_on_beyond_what_the_commander_heard_of(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    known = put(run, 1, 100)
    put(run, 1, 20)  # its counter began anew
    assert begin(run, 2, ref(known, 1)) == ("step_00000020", [])
