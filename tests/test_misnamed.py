"""Kinds that are not what somebody thought: another than CHECKPOINTS names, two in one folder, one that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from taking_kit import Taker
from writers import accelerate, hf_trainer, lightning
from writers.kit import run, torch_zip

from relay_agent.checkpoints.adapters import BY_NAME
from relay_agent.checkpoints.line import published
from relay_agent.checkpoints.linked import LINKS_EVERY
from relay_agent.checkpoints.output_watch import SEEN


def kinds(taker: Taker) -> dict[int, str]:
    """Of what was published, by step."""
    taker.publish()
    return {sealed.manifest.step: sealed.manifest.adapter for sealed in published(taker.run)[0]}


@pytest.mark.parametrize("named", ["lightning", "simpletuner", "megatron"])
def test_another_kind_than_the_one_that_is_named_is_told_of(tmp_path: Path, named: str) -> None:
    taker = Taker(tmp_path, kinds=(BY_NAME[named],))
    assert taker.look() == []
    run(hf_trainer.save(taker.out, 5))
    assert taker.look(LINKS_EVERY) == []
    refused = {doubt.path: doubt.why for doubt in taker.watch.refused()}
    assert refused == {"checkpoint-5": f"it is one of hf_trainer, and CHECKPOINTS names {named}"}
    run(hf_trainer.save(taker.out, 6))
    taker.look(exited=0)
    assert "checkpoint-6" in {doubt.path for doubt in taker.watch.refused()}, "also of a training that is soon over"


def test_what_lay_there_before_or_beside_what_is_taken_is_nobodys_matter(tmp_path: Path) -> None:
    taker = Taker(tmp_path, kinds=(BY_NAME["hf_trainer"],))
    run(lightning.save(taker.out, 4))
    (taker.staging / SEEN).unlink()
    taker.begin()  # as if it had lain there before
    taker.look(LINKS_EVERY)
    assert taker.watch.refused() == []
    run(hf_trainer.save(taker.out, 5))
    run(lightning.save(taker.out, 6))
    assert [taken.step for taken in taker.look(LINKS_EVERY)] == [5]
    taker.look(LINKS_EVERY)
    assert taker.watch.refused() == []


def test_a_trainer_that_changes_its_kind_is_followed(tmp_path: Path) -> None:
    taker = Taker(tmp_path)
    run(hf_trainer.save(taker.out, 5))
    taker.look()
    (taker.out / "ckpt.pt").write_bytes(torch_zip("a state"))
    taker.look()
    run(lightning.save(taker.out, 7))
    taker.look()
    assert kinds(taker) == {5: "hf_trainer", 77: "single_file", 7: "lightning"}


def test_two_kinds_in_one_folder_are_one_checkpoint(tmp_path: Path) -> None:
    """Of the one that knows more."""
    taker = Taker(tmp_path)
    run(hf_trainer.save(taker.out, 5))
    run(accelerate.state(taker.out / "checkpoint-5", "5"))
    (taker.out / "checkpoint-5" / "last.ckpt").write_bytes(torch_zip("of lightning's"))
    assert [taken.step for taken in taker.look()] == [5]
    assert taker.look(100) == []
    assert kinds(taker) == {5: "hf_trainer"}
