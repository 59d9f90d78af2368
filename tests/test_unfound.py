"""A trainer that trains on and on while nothing that it saves is found is told where Relay looks, once."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from checkpoint_kit import ManualClock, mine, new_run, stage
from test_taking import Told
from writers import hf_trainer
from writers.kit import run as write

from relay_agent.checkpoints.looked import CURE
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.taking import Taking
from relay_agent.checkpoints.unfound import NOTHING_FOR
from relay_agent.config import load
from relay_agent.volume.volume import RunFolder


class Rig:
    def __init__(self, place: Path, **variables: str) -> None:
        self.run: RunFolder = new_run(place)
        self.clock, self.told, self.step = ManualClock(), Told(), 40
        settings = load({"COMMANDER_URL": "http://a:1", **variables})
        self.taking = Taking(settings, self.run, 1, self.clock, self.told, lambda: self.step)
        self.publisher = Publisher(
            self.run, 1, "sft", "a trainer", 5.0, 9, self.clock, self.told,
            taking=self.taking, held=mine, safe=mine, on_fenced=lambda: None,
        )  # fmt: skip

    async def trains(self, seconds: float, steps: int = 1) -> list[str]:
        """`steps`: with each look. What was said of it by then. A few looks in a minute find as much as many."""
        for _ in chain(self.clock.watch(1.0), self.clock.watch(seconds - 1.0, every=5.0)):
            self.step += steps
            await self.publisher.look()
        return self.told.said("checkpoint.none")


async def test_it_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    assert await rig.trains(NOTHING_FOR - 1) == []
    said = await rig.trains(2 * NOTHING_FOR)
    words = (
        "5 minutes after its first step no checkpoint was found: Relay looks in $RELAY_CKPT_STAGING_ROOT "
        f"({rig.run.staging(1)}) and in $RELAY_OUTPUT_DIR ({rig.run.output(1)}); if it saves elsewhere, {CURE}"
    )
    assert said == [words]
    assert capsys.readouterr().err.count(words) == 1
    assert '--output_dir "$RELAY_OUTPUT_DIR" "$@"' in words, "a pod has no docs"


async def test_a_folder_that_somebody_named_is_called_as_it_was(tmp_path: Path) -> None:
    rig = Rig(tmp_path, CHECKPOINT_DIR="saves")
    await rig.taking.prepare(None)
    (said,) = await rig.trains(NOTHING_FOR + 2)
    assert f" and in CHECKPOINT_DIR ({rig.run.output(1) / 'saves'}); " in said


async def test_not_of_one_that_makes_no_steps(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    assert await rig.trains(2 * NOTHING_FOR, steps=0) == []
    assert await rig.trains(NOTHING_FOR - 1) == [], "it loaded for long"
    assert len(await rig.trains(2)) == 1


@pytest.mark.parametrize("what", ["staged", "half", "own", "own half", "misnamed"])
async def test_not_where_anything_was_found(tmp_path: Path, what: str) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    await rig.trains(5)
    if what == "staged":
        stage(rig.run, 1, 50)
    elif what == "half":
        stage(rig.run, 1, 50, marker=False)
    elif what == "own":
        write(hf_trainer.save(rig.taking.root, 50))
    elif what == "own half":
        (rig.taking.root / "checkpoint-50").mkdir()
        (rig.taking.root / "checkpoint-50" / "model.safetensors").write_bytes(b"half")
    else:
        (rig.run.staging(1) / "step-50").mkdir()
    assert await rig.trains(2 * NOTHING_FOR) == []


async def test_what_lay_there_before_is_none_of_its_own(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    write(hf_trainer.save(rig.taking.root, 5))
    await rig.taking.prepare(None)
    assert len(await rig.trains(2 * NOTHING_FOR)) == 1


async def test_not_where_none_are_looked_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, CHECKPOINTS="none")
    await rig.taking.prepare(None)
    assert await rig.trains(2 * NOTHING_FOR) == []
