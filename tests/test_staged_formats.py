"""What a trainer stages is in whatever form it likes; where that is a known one, it is whole by that, too."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import mine, new_run, stage, take
from publisher_kit import Rig
from writers.kit import safetensors, torch_zip

from relay_agent.checkpoints import publish as publish_module
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.staging import Staged
from relay_agent.checkpoints.tree import Unsettled
from relay_agent.volume.volume import RunFolder

WEIGHTS, ARCHIVE = safetensors("a", each=4096), torch_zip("b")
INDEX = json.dumps({"weight_map": {"a": "model-2.safetensors"}}).encode()
WHOLE = {
    "model.safetensors": WEIGHTS,
    "optimizer.pt": ARCHIVE,
    "state.json": b'{"step": 3}\n{"step": 4}\n',
    "rng.bin": bytes(5000),
    "lock": b"",
    "empty.bin": b"",
    "zeros": bytes(9000),
    "words.safetensors.txt": b"no weights",
    "state.pkl": pickle.dumps({"step": 3}) + pickle.dumps({"step": 3, "of": "another"}),
    "joblib.pt": pickle.dumps([1.0]) + bytes(4096),
    "raw.bin": b"\x80\x04 raw bytes that begin as a pickle does",
    "base.safetensors.index.json": INDEX,
    "done.json": b"",
    "marker.pt": b"",
    "table.ckpt": bytes(9000),
}
"""Files of no known form may be empty, and hold nothing but zeros; what is pickled may have more behind it, and an
index be a copy of another model's."""
CUT = {
    "cut off": {"model.safetensors": WEIGHTS[:-1000]},
    "in its header": {"shard/model.safetensors": WEIGHTS[:20]},
    "an archive": {"optimizer.pt": ARCHIVE[: len(ARCHIVE) // 2]},
    "an archive by its first bytes": {"optimizer": ARCHIVE[: len(ARCHIVE) // 2]},
    "text": {"state.json": b'{"step": '},
    "empty": {"model.safetensors": b""},
    "zeros": {"optimizer.pt": bytes(9000)},
    "no weights by that name": {"model.safetensors": b"these are words, and no weights"},
}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(new_run(tmp_path))


def saves(run: RunFolder, files: dict[str, bytes], *, marker: bool, step: int = 3) -> Path:
    path = stage(run, 1, step, marker=marker).path
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


@pytest.mark.parametrize("marker", [True, False])
async def test_what_is_whole_is_published_whatever_lies_beside_it(rig: Rig, marker: bool) -> None:
    publisher = rig.publisher(marks=None if marker else False)
    saves(rig.run, WHOLE, marker=marker)
    for _ in rig.clock.watch(6):
        await publisher.look()
    assert (rig.told.steps, rig.told.events) == ([3], [])


@pytest.mark.parametrize("marker", [True, False])
@pytest.mark.parametrize("files", CUT.values(), ids=CUT)
async def test_what_is_cut_off_is_set_aside_and_said(rig: Rig, files: dict[str, bytes], marker: bool) -> None:
    """Marked too, as in the trainer's own folder: whoever went on past a full disk marks it all the same."""
    publisher = rig.publisher(marks=None if marker else False)
    saves(rig.run, files, marker=marker)
    for _ in rig.clock.watch(6):
        await publisher.look()
    assert rig.told.steps == []
    ((kind, words),) = rig.told.events
    assert kind == "checkpoint.torn"
    assert next(iter(files)).partition(".index")[0].partition("/")[0] in words
    assert (rig.run.bad / "e00000001.step_3").exists()
    await publisher.finish(0)
    assert "1 checkpoint could not be published" in publisher.unpublished(3)


def test_so_it_is_with_what_a_dead_attempt_left(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    saves(run, CUT["cut off"], marker=True)
    saves(run, {name: data or b"1" for name, data in WHOLE.items()}, marker=True, step=2)
    take(run, 2)
    done = Salvage(run, 2, mine).work()
    assert [each.step for each in done.published] == [2]
    assert sorted(told.kind for told in done.told) == ["checkpoint.salvaged", "checkpoint.torn"]
    assert (run.bad / "e00000001.step_3").exists()


def test_what_is_written_to_or_taken_away_meanwhile_is_not_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    path = saves(run, WHOLE, marker=True)
    check_files = publish_module.check_files

    def later(*given: Any, **options: Any) -> None:
        (path / "optimizer.pt").write_bytes(ARCHIVE[:100])
        check_files(*given, **options)

    monkeypatch.setattr(publish_module, "check_files", later)
    with pytest.raises(Unsettled):
        publish(run, Staged(3, path), 1, mine)
