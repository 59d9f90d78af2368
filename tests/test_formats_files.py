"""Files that need others beside them, and what is no file at all."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from writers import dcp as dcp_writer
from writers.kit import numbers, run, safetensors, torch_zip

from relay_agent.checkpoints.disk import folder
from relay_agent.checkpoints.formats import check_file, check_files, dcp
from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Torn, walk


def check_all(path: Path, deep: bool = False) -> None:
    with folder(path) as root:
        check_files(root, walk(root).files, deep)


def sharded(path: Path) -> Path:
    where = {f"layer.{n}": f"model-{n}.safetensors" for n in range(3)}
    for layer, name in where.items():
        (path / name).write_bytes(safetensors(layer, (layer,)))
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


def test_an_index_needs_every_shard(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    check_file(index)
    shard = tmp_path / "model-1.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(Torn, match=r"'model-1\.safetensors': 1 of its bytes are missing"):
        check_file(index)
    shard.unlink()
    with pytest.raises(Torn, match=r"'model-1\.safetensors': No such file"):
        check_file(index)
    shard.symlink_to(tmp_path / "model-0.safetensors")
    with pytest.raises(Torn, match=r"'model-1\.safetensors'"):
        check_file(index)


@pytest.mark.parametrize(
    "name",
    ["../m.safetensors", "/etc/passwd", "a//b", "", ".", "a/../b", "\0", "x\udc80", "model.safetensors.index.json"],
)
def test_an_index_names_files_beside_it(tmp_path: Path, name: str) -> None:
    sharded(tmp_path)
    index = tmp_path / "sub" / "model.safetensors.index.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(Torn):
        check_file(index)


def test_an_index_of_nothing_is_refused(tmp_path: Path) -> None:
    for text in ("{}", '{"weight_map": {}}', '{"weight_map": {"a": 5}}', "[]"):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(Torn):
            check_file(tmp_path / "model.safetensors.index.json")


def test_metadata_needs_every_file_in_its_size(tmp_path: Path) -> None:
    run(dcp_writer.fill(tmp_path, "a"))
    check_file(tmp_path / ".metadata", deep=True)
    check_all(tmp_path, deep=True)
    piece = tmp_path / "__1_0.distcp"
    data = piece.read_bytes()
    for other in (data[:-1], data + torch_zip("more")):
        piece.write_bytes(other)
        with pytest.raises(Torn, match="__1_0"):
            check_file(tmp_path / ".metadata")
    piece.unlink()
    with pytest.raises(Torn, match=r"'__1_0\.distcp': No such file"):
        check_file(tmp_path / ".metadata")


def test_a_hole_in_a_piece_shows_when_it_is_read(tmp_path: Path) -> None:
    run(dcp_writer.fill(tmp_path, "a"))
    piece = tmp_path / "__0_0.distcp"
    data = bytearray(piece.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8] = bytes(8)
    piece.write_bytes(data)
    check_file(tmp_path / ".metadata")
    with pytest.raises(Torn, match="__0_0"):
        check_file(tmp_path / ".metadata", deep=True)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_metadata_of_every_protocol_is_read(protocol: int) -> None:
    """The name of a file is written once and then pointed at."""
    name = "__0_0.distcp"
    state = {n: {"relative_path": name, "offset": n * 300, "length": 300} for n in range(4)}
    state[9] = {"relative_path": "__1_0.distcp", "offset": 0, "length": 2**40}  # type: ignore[dict-item]
    fd = os.memfd_create("metadata")
    os.write(fd, pickle.dumps(state, protocol=protocol))
    found = dcp.needed(Span.of(fd), deep=True)
    assert {name: need.size for name, need in found.items()} == {name: 1200, "__1_0.distcp": 2**40}
    assert found[name].pieces == [(0, 300), (300, 300), (600, 300), (900, 300)]
    os.close(fd)


def test_large_metadata_tells_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp, "FULL", 0)
    monkeypatch.setattr(dcp, "_WINDOW", 50)
    wanted = [f"__{n}_0.distcp" for n in range(30)] + ["x" * 90 + ".distcp"]
    fd = os.memfd_create("metadata")
    os.write(fd, pickle.dumps([{"relative_path": name, "offset": 0, "length": 1} for name in wanted], protocol=4))
    assert sorted(dcp.needed(Span.of(fd))) == sorted(wanted)
    os.close(fd)


@pytest.mark.parametrize("name", ["../x.distcp", "/x.distcp", "a/../x.distcp"])
def test_metadata_names_files_beside_it(tmp_path: Path, name: str) -> None:
    run(dcp_writer.fill(tmp_path, "a"))
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"relative_path": name, "offset": 0, "length": 1}))
    with pytest.raises(Torn, match="no file beside it"):
        check_file(tmp_path / ".metadata")


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors", "x", "x.json", ".metadata", "events.log"])
def test_empty_files_and_files_of_zeros_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(Torn, match="empty"):
        check_file(path)
    path.write_bytes(bytes(100_000))
    with pytest.raises(Torn, match="nothing but zeros"):
        check_file(path)
    path.with_name("merges.txt").write_bytes(bytes(5000) + b"words" + bytes(3000))
    check_file(path.with_name("merges.txt"))


def test_links_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real.pt").write_bytes(torch_zip("a"))
    (tmp_path / "link.pt").symlink_to(tmp_path / "real.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "below").mkdir()
    (tmp_path / "around").symlink_to(tmp_path)
    for path in ("link.pt", "pipe.pt", "below", "none.pt", "around/real.pt"):
        with pytest.raises(Torn):
            check_file(tmp_path / path)
    with pytest.raises(Torn):
        check_file("/dev/zero")
    check_file(tmp_path / "real.pt")
    check_file(str(tmp_path / "real.pt"), deep=True)


def test_every_file_of_a_folder_is_looked_at_once(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "raw.bin").write_bytes(numbers("raw", 100))
    looks = 0

    def count() -> None:
        nonlocal looks
        looks += 1

    with folder(tmp_path) as root:
        files = walk(root).files
        check_files(root, files, poll=count)
    opened_once, windows = len(files), 4  # three headers and an index
    assert looks == opened_once + windows
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "optimizer.pt").write_bytes(torch_zip("a")[:-5])
    with pytest.raises(Torn, match=r"'sub/optimizer\.pt': it is cut off"):
        check_all(tmp_path)
