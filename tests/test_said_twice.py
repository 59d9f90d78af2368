"""A key that stands twice in one JSON object: refused where it decides what is whole, the last one among metrics."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from checkpoint_kit import RUN, new_run, put

from relay_agent.checkpoints.adapters.view import view_of
from relay_agent.checkpoints.formats import check_file
from relay_agent.checkpoints.formats.once import Keys
from relay_agent.checkpoints.manifest import Torn, decode, verify
from relay_agent.reading.side_files import SideFiles


def torn(data: bytes, name: str) -> str:
    fd = os.memfd_create("file")
    try:
        os.write(fd, data)
        check_file(fd, name=name)
    except Torn as found:
        return found.reason
    finally:
        os.close(fd)
    return ""


def weights(header: str, size: int) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + bytes([1]) * size


def tensor(begin: int, end: int) -> str:
    return f'{{"dtype":"U8","shape":[{end - begin}],"data_offsets":[{begin},{end}]}}'


@pytest.mark.parametrize(
    ("find", "add"),
    [
        ('"step": 10,', '"step": 10,\n "step": 10,'),
        ('"files": [', '"files": [],\n "files": ['),
        ('"size": ', '"size": 7, "size": '),
        ('"run_id": ', '"run\\u005fid": "other", "run_id": '),
        ('"epoch": 1,', '"epoch": 1, "unknown": {"a": 1, "a": 2},'),
    ],
)
def test_a_manifest_that_says_a_key_twice_is_none(tmp_path: Path, find: str, add: str) -> None:
    path = put(new_run(tmp_path), 1, 10).path / "manifest.json"
    text = path.read_text()
    assert find in text
    assert decode(text.encode()).step == 10
    path.write_text(text.replace(find, add, 1))
    with pytest.raises(Torn, match=r"says .* twice"):
        verify(path.parent, RUN)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (f'{{"a":{tensor(0, 4)},"a":{tensor(4, 8)}}}', 8),
        (f'{{"a":{tensor(0, 4)},"b":{tensor(4, 8)},"a":{tensor(8, 12)}}}', 12),
        (f'{{"a":{tensor(0, 4)},"\\u0061":{tensor(4, 8)}}}', 8),
        ('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"data_offsets":[4,8]}}', 8),
    ],
)
def test_weights_whose_header_names_one_twice_are_refused_as_their_library_does(header: str, size: int) -> None:
    """It goes by the last, and misses the bytes of the first."""
    assert torn(weights(header, size), "model.safetensors") == "its header names a tensor twice"


def test_weights_with_metadata_and_many_names_pass() -> None:
    names = ",".join(f'"layer.{number}":{tensor(number, number + 1)}' for number in range(300))
    assert torn(weights(f'{{"__metadata__":{{"format":"pt","a":"b"}},{names}}}', 300), "model.safetensors") == ""


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        ('{"weight_map": {"a": "m1.safetensors", "a": "m2.safetensors"}}', True),
        ('{"weight_map": {"a": "m1.safetensors", "\\u0061": "m2.safetensors"}}', True),
        ('{"weight_map": {"a": "m1.safetensors"}, "weight_map": {"b": "m2.safetensors"}}', True),
        ('{"metadata": {"total_size": 1}, "weight_map": {"a": "m1.safetensors", "b": "m1.safetensors"}}', False),
    ],
)
def test_an_index_that_names_one_twice_is_refused(content: str, refused: bool) -> None:
    why = torn(content.encode(), "model.safetensors.index.json")
    assert ("twice" in why) is refused


def test_what_an_adapter_goes_by_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "twice.json").write_text('{"files": ["a"], "files": []}')
    (tmp_path / "deep.json").write_text('[{"a": {"epoch": 1, "epoch": 2}}]')
    (tmp_path / "once.json").write_text('{"epoch": 1, "of": [{"epoch": NaN}, {"epoch": 2}]}')
    with view_of(tmp_path) as view:
        assert view.json("twice.json") is None
        assert view.json("deep.json") is None
        assert isinstance(view.json("once.json"), dict)
        assert view.json("twice.json", twice=True) == {"files": []}


def test_of_many_keys_one_that_comes_again_is_found() -> None:
    keys = Keys()
    for number in range(20_000):
        keys.add(b'"layer.%d"' % number)
    assert not keys.twice
    keys.add(b'"layer.7"')
    assert keys.twice


def test_among_metrics_the_last_one_counts(tmp_path: Path) -> None:
    state = '{"global_step": 4, "max_steps": 9, "log_history": [{"loss": 9.0, "loss": 1.5, "step": 4}]}'
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text(state)
    (found,) = SideFiles(tmp_path).look()
    assert (found.step, found.metrics["loss"]) == (4, 1.5)
    with view_of(tmp_path) as view:
        assert isinstance(view.json("checkpoint-4/trainer_state.json", twice=True), dict)
