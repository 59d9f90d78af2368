"""Single files whose insides are forged or damaged, and checkpoints that hold what none may: one of them costs itself
alone, and is told of while its trainer lives."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from taking_kit import SETTLE, Taker
from test_taking import Rig
from writers import dcp, hf_trainer
from writers.kit import run, torch_zip

from relay_agent.checkpoints.adapters.base import MAX_STEP
from relay_agent.checkpoints.linked import LINKS_EVERY
from relay_agent.checkpoints.output_watch import OutputWatch, Ready


def deflated(outline: object, damage: int = 0) -> bytes:
    """As torch.save never writes it: packed. `damage`: so many of its packed bytes are others."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("ckpt/data.pkl"), pickle.dumps(outline, 2), zipfile.ZIP_DEFLATED)
    packed = bytearray(data.getvalue())
    at = packed.find(b"data.pkl") + len(b"data.pkl")
    packed[at : at + damage] = b"\xff" * damage
    return bytes(packed)


def vast_directory(path: Path) -> None:
    """A sparse file whose end says that four gigabytes of directory lie before it."""
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.seek(1 << 33)
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFF00, 0, 0))


FORGED: dict[str, Callable[[Path], object]] = {
    "damaged": lambda path: path.write_bytes(deflated({"global_step": 5, "more": list(range(500))}, 30)),
    "a number of 300 digits": lambda path: path.write_bytes(torch_zip("a", {"iter_num": 10**300, "step": 10**300})),
    "just too many": lambda path: path.write_bytes(torch_zip("a", {"global_step": MAX_STEP + 1})),
    "a directory of 4 GB": vast_directory,
}


@pytest.mark.parametrize("forgery", FORGED)
@pytest.mark.parametrize("name", ["ckpt.pt", "last.ckpt", "train/weights/last.pt"])
def test_a_forged_file_costs_itself_alone(tmp_path: Path, name: str, forgery: str) -> None:
    taker = Taker(tmp_path)
    path = taker.out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if "weights" in name:
        (path.parents[1] / "args.yaml").write_text("task: detect\n")
    # Lightning looks into its last.ckpt where another one lies beside it.
    (path.parent / "epoch=0-step=3.ckpt").write_bytes(torch_zip("b", {"global_step": 3}))
    FORGED[forgery](path)
    run(hf_trainer.save(taker.out, 9))
    came = set(taker.steps()) | set(taker.steps(SETTLE + 1))
    assert {3, 9} <= came
    assert came <= {3, 9, 77}, "a step that is none is not told by the file; the one that was printed last counts"


def test_a_packed_outline_is_read_too(tmp_path: Path) -> None:
    taker = Taker(tmp_path)
    taker.out.mkdir(parents=True, exist_ok=True)
    (taker.out / "ckpt.pt").write_bytes(deflated({"iter_num": 5}))
    assert taker.steps() == [5]


@pytest.mark.parametrize("what", ["a symbolic link", "a FIFO", "not UTF-8"])
async def test_one_that_holds_what_none_may_is_told_of_at_once(tmp_path: Path, what: str) -> None:
    """Its trainer may go on for days, and every one of its checkpoints is like it."""
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    path = rig.out / "checkpoint-5"
    if what == "a FIFO":
        os.mkfifo(path / "pipe")
    elif what == "a symbolic link":
        (path / "tokenizer.json").symlink_to("/usr/share/tokenizer.json")
    else:
        Path(os.fsdecode(os.fsencode(path) + b"/\xff")).write_bytes(b"x")
    for _ in range(3):
        assert await rig.look() == []
    (said,) = rig.told.said("checkpoint.untaken")
    assert "checkpoint-5 is not taken" in said
    assert what in said
    run(hf_trainer.save(rig.out, 6))
    assert await rig.look() == [6]


async def test_one_that_is_saved_anew_without_it_is_taken(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(rig.out, 5))
    link = rig.out / "checkpoint-5" / "vocab.txt"
    link.symlink_to("/etc/hostname")
    assert await rig.look() == []
    link.unlink()
    assert await rig.look() == [5]


async def test_a_folder_that_is_a_link_is_told_of_with_where_it_leads(tmp_path: Path) -> None:
    """Nothing is taken through a link; who saves behind one would hear of that when all is lost."""
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    elsewhere = tmp_path / "scratch" / "ckpts"
    (tmp_path / "data").mkdir()
    rig.out.mkdir(parents=True, exist_ok=True)
    (rig.out / "checkpoints").symlink_to(elsewhere)
    (rig.out / "data").symlink_to(tmp_path / "data")
    assert await rig.look() == []
    run(hf_trainer.save(elsewhere, 5))
    for _ in range(3):
        assert await rig.look(LINKS_EVERY) == []
    (said,) = rig.told.said("checkpoint.untaken")
    assert said.startswith(f"checkpoints is not taken: it is a link to {elsewhere}")
    assert "CHECKPOINT_DIR" in said


async def test_links_beside_what_is_taken_are_nobodys_matter(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    run(hf_trainer.save(tmp_path / "old", 5))
    run(hf_trainer.save(rig.out, 5))
    (rig.out / "old").symlink_to(tmp_path / "old")
    (rig.out / "latest").symlink_to("checkpoint-5")
    (rig.out / "up").symlink_to("..")
    assert await rig.look() == [5]
    await rig.look(LINKS_EVERY)
    await rig.publisher.finish(0)
    assert rig.told.said("checkpoint.untaken") == []


async def test_a_damaged_one_that_several_kinds_could_have_is_read_once_by_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in turns for ever, each time whole; what is said of it is what is wrong with it."""
    rig = Rig(tmp_path)
    await rig.taking.prepare(None)
    tries: list[str] = []
    before = OutputWatch.take

    def counting(self: OutputWatch, ready: Ready, *more: Any) -> Any:
        tries.append(ready.adapter.name)
        return before(self, ready, *more)

    monkeypatch.setattr(OutputWatch, "take", counting)
    run(dcp.save(rig.out / "run", 9))
    (rig.out / "run" / "step-9" / ".metadata").write_bytes(b"\x80\x04" + b"\x8c\xff" * 9 + b".")
    for _ in range(8):
        assert await rig.look(SETTLE) == []
    assert len(tries) == len(set(tries)), tries
    said = rig.told.said("checkpoint.untaken")
    assert said
    assert all("pickle" in each for each in said), said
