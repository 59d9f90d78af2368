"""What the bytes of one file say: cut anywhere they are refused, whole they pass; nothing runs or costs much."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers import dcp as dcp_writer
from writers.kit import numbers, safetensors, torch_zip

from relay_agent.checkpoints.formats import check_file
from relay_agent.checkpoints.formats.json_text import MAX_DEPTH
from relay_agent.checkpoints.formats.pickled import LEGACY
from relay_agent.checkpoints.tree import Cancelled, Torn


def refused(data: bytes, name: str, deep: bool = False) -> str:
    """Why a file of this name with these bytes is refused, "" where it passes."""
    fd = os.memfd_create("file")
    try:
        os.write(fd, data)
        check_file(fd, deep, name=name)
    except Torn as torn:
        return torn.reason
    finally:
        os.close(fd)
    return ""


def hdf5(version: int = 0, size: int = 200) -> bytes:
    at = {0: 40, 2: 28}[version]
    head = bytearray(b"\x89HDF\r\n\x1a\n" + bytes([version, 8, 8, 0, 0, 8, 8]) + bytes(81))
    head[at : at + 8] = size.to_bytes(8, "little")
    return bytes(head) + numbers("hdf5", size - len(head))


def wide_zip() -> bytes:
    """As torch writes it: the 64-bit end record is there, however small it is."""
    data = torch_zip("wide")
    at = data.rfind(b"PK\x05\x06")
    _, _, _, _, entries, size, offset, _ = struct.unpack("<4s4H2LH", data[at:])
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, entries, entries, size, offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:at] + end64 + locator + end


def wide_entries() -> bytes:
    """As of a file over 4 GB: sizes and offsets stand in the extra field of each entry."""
    data = torch_zip("wide")
    at = data.find(b"PK\x01\x02")
    start, directory, count = at, b"", 0
    while data[at : at + 4] == b"PK\x01\x02":
        entry = bytearray(data[at : at + 46])
        packed, size, name, extra, comment = struct.unpack_from("<2L3H", entry, 20)
        (offset,) = struct.unpack_from("<L", entry, 42)
        struct.pack_into("<2L2H", entry, 20, 0xFFFFFFFF, 0xFFFFFFFF, name, 36)
        struct.pack_into("<L", entry, 42, 0xFFFFFFFF)
        wide = struct.pack("<2H4x", 0x6666, 4) + struct.pack("<2H3Q", 1, 24, size, packed, offset)
        directory += bytes(entry) + data[at + 46 : at + 46 + name] + wide
        at += 46 + name + extra + comment
        count += 1
    return data[:start] + directory + zip_end(count, len(directory), start)


def zip_end(entries: int, size: int, offset: int, comment: bytes = b"") -> bytes:
    return struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, entries, entries, size, offset, len(comment)) + comment


STATE = {"global_step": 5, "best": float("nan"), "log_history": [{"loss": 0.5, "text": 'a "quoted" } one'}, {}, []]}
WHOLE: dict[str, tuple[str, bytes]] = {
    "safetensors": ("model.safetensors", safetensors("a", ("one", "two", "three"), 64)),
    "no tensors": ("model.safetensors", struct.pack("<Q", 8) + b"{}      "),
    "torch": ("optimizer.pt", torch_zip("a", size=64)),
    "torch, 64 bit": ("model.ckpt", wide_zip()),
    "torch, over 4 GB": ("model.ckpt", wide_entries()),
    "archive of an unknown name": ("model_500", torch_zip("a", size=64)),
    "pickle": ("random_states_0.pkl", pickle.dumps({"a": [1, 2.5, "x"], "b": b"bytes"}, protocol=4)),
    "metadata": (".metadata", dcp_writer.shards("a", 1)[".metadata"]),
    "piece": ("__0_0.distcp", torch_zip("a", size=64)),
    "hdf5": ("model.weights.h5", hdf5(0)),
    "hdf5, new": ("model.weights.h5", hdf5(2)),
    "json": ("trainer_state.json", json.dumps(STATE, indent=1).encode()),
    "json list": ("list.json", b"[1, -2.5e+3, Infinity, null]"),
    "index": ("model.safetensors.index.json", b'{"metadata": {}, "weight_map": {"a": "x.safetensors"}}'),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_passes_and_no_cut_does(kind: str) -> None:
    name, data = WHOLE[kind]
    assert refused(data, name) == refused(data, name, deep=True) == ""
    telling = 4 if kind == "archive of an unknown name" else 0
    passing = [count for count in range(telling, len(data)) if not refused(data[:count], name)]
    assert passing == []


@pytest.mark.parametrize("kind", WHOLE)
def test_full_size_before_its_bytes_came_is_refused(kind: str) -> None:
    """As a file is after power loss, on some mounts, and while some writers are at it."""
    name, data = WHOLE[kind]
    assert refused(bytes(len(data)), name) == "it holds nothing but zeros"
    if kind not in ("hdf5", "hdf5, new", "json list"):  # these tell no more than their size
        assert refused(data[: len(data) // 2] + bytes(len(data) - len(data) // 2), name, deep=True)


@pytest.mark.parametrize(
    "kind", ["safetensors", "torch", "torch, 64 bit", "torch, over 4 GB", "pickle", "metadata", "json"]
)
def test_longer_than_it_says_is_refused(kind: str) -> None:
    name, data = WHOLE[kind]
    assert refused(data + b"\x01more", name)


tensors = st.lists(st.tuples(st.text(max_size=12), st.integers(0, 40)), max_size=6, unique_by=lambda each: each[0])


@settings(max_examples=60, deadline=None)
@given(tensors, st.randoms(use_true_random=False), st.data())
def test_any_safetensors_passes_and_any_cut_of_it_is_refused(
    named: list[tuple[str, int]], random: Any, data: st.DataObject
) -> None:
    """Tensors in any order, empty ones, any names."""
    header: dict[str, Any] = {}
    end = 0
    for name, size in named:
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    keys = list(header)
    random.shuffle(keys)
    text = json.dumps({"__metadata__": {'"data_offsets":[': "}"}} | {key: header[key] for key in keys}).encode()
    whole = struct.pack("<Q", len(text)) + text + b"\x01" * end
    assert refused(whole, "m.safetensors") == ""
    assert refused(whole[: data.draw(st.integers(0, len(whole) - 1))], "m.safetensors")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.data())
def test_any_archive_passes_and_any_cut_or_hole_is_refused(members: list[bytes], data: st.DataObject) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for number, member in enumerate(members):
            archive.writestr(f"archive/data/{number}", member)
    whole = stream.getvalue()
    assert refused(whole, "m.pt", deep=True) == ""
    assert refused(whole[: data.draw(st.integers(0, len(whole) - 1))], "m.pt")
    at = data.draw(st.integers(0, len(members) - 1))
    if any(members[at]):
        where = whole.index(f"archive/data/{at}".encode()) + len(f"archive/data/{at}")
        holed = whole[:where] + bytes(len(members[at])) + whole[where + len(members[at]) :]
        assert refused(holed, "m.pt") == "", "it would have to read everything"
        assert "damaged" in refused(holed, "m.pt", deep=True)


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda inner: (
    st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
), max_leaves=12).filter(lambda value: isinstance(value, list | dict)), st.booleans())  # fmt: skip
def test_any_json_passes(value: Any, ascii_only: bool) -> None:
    for indent in (None, 2):
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(errors="surrogatepass")
        assert refused(text, "x.json") == ""


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([name for name, _ in WHOLE.values()]), st.booleans())
def test_any_bytes_are_answered(data: bytes, name: str, deep: bool) -> None:
    for start in (b"", b"PK\x03\x04", b"\x80\x04", b"{", b"\x89HDF\r\n\x1a\n", struct.pack("<Q", 40) + b"{"):
        refused(start + data, name, deep)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_any_damage_is_answered(kind: str, draw: st.DataObject) -> None:
    name, data = WHOLE[kind]
    at = draw.draw(st.integers(0, len(data) - 1))
    other = draw.draw(st.binary(min_size=1, max_size=8))
    refused(data[:at] + other + data[at + len(other) :], name, deep=True)


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", [".metadata", "random_states_0.pkl", "optimizer.pt", "model.safetensors", "other"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_are_never_run(tmp_path: Path, name: str, protocol: int) -> None:
    bomb = pickle.dumps({"a": Trap(tmp_path / "ran"), "b": "__0_0.distcp"}, protocol=protocol)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", bomb)
    for data in (bomb, stream.getvalue(), LEGACY + b"." + bomb):
        refused(data, name, deep=True)
    assert not (tmp_path / "ran").exists()


def test_the_old_format_of_torch_tells_nothing() -> None:
    assert refused(LEGACY + b".\x80\x02M\xe9\x03.", "model.pth") == ""


def test_sums_that_a_trainer_turned_off_are_not_asked() -> None:
    """torch.serialization.set_crc32_options(False) writes 0 for each."""
    data = bytearray(torch_zip("a"))
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        data[at + 16 : at + 20] = bytes(4)
        at = data.find(b"PK\x01\x02", at + 1)
    assert refused(bytes(data), "model.pt", deep=True) == ""


def header(text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + data


def tensor(begin: object, end: object) -> bytes:
    return json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [begin, end]}}).encode()


@pytest.mark.parametrize("data", [
    struct.pack("<Q", 2**64 - 1) + b"{}", struct.pack("<Q", 2**62) + b"{}", struct.pack("<Q", 0) + b"{}",
    header(tensor(0, 2**64), b"x"), header(tensor(-1, 1), b"x"), header(tensor(1, 0), b"x"),
    header(tensor(0, 0.5), b"x"),
    header(tensor(0, "1"), b"x"), header(tensor(0, int("9" * 400)), b"x"), header(tensor(0, 10**12), b"x"),
    header(b'{"a":{"data_offsets":[0,1]},"b":{"data_offsets":[0,1]}}', b"x"),
    header(b'{"a":{"data_offsets":[0,1]},"b":{"data_offsets":[2,3]}}', b"xxx"),
    header(b'{"a":{"data_offsets":[0]}}', b"x"), header(b'{"a":1', b"x"), header(b"[]", b""), header(b"\xff\xfe", b""),
    header(b'{"a":' * 5000 + b"1" + b"}" * 5000), header(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
])  # fmt: skip
def test_hostile_headers_are_refused(data: bytes) -> None:
    assert refused(data, "model.safetensors")


def test_deep_json_is_refused_before_it_costs() -> None:
    for mark, end in ((b"[", b"]"), (b'{"a":', b"}")):
        depth = MAX_DEPTH + 1
        assert "deeper" in refused(mark * depth + b"1" * (mark != b"[") + end * depth, "x.json")
        assert refused(mark * 100_000 + end * 100_000, "x.json")


@pytest.mark.parametrize("data", [
    zip_end(1, 0, 0), zip_end(0, 2**31, 0), zip_end(0, 0, 2**31), zip_end(65535, 46, 0),
    zip_end(0, 2**32 - 1, 2**32 - 1),
    b"PK\x03\x04" + b"PK\x01\x02" + b"\xff" * 42 + zip_end(1, 46, 4),
    b"PK\x03\x04" + struct.pack("<4sLQL", b"PK\x06\x07", 0, 2**63, 1) + zip_end(0, 0, 0),
    b"\0" * 56 + struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1) + zip_end(0, 0, 0),
    struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2**63, 2**63, 2**63, 2**63)
    + struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1) + zip_end(0, 0, 0),
])  # fmt: skip
def test_hostile_archives_are_refused(data: bytes) -> None:
    assert refused(b"PK\x03\x04" + data, "model.pt", deep=True)


def test_archives_whose_parts_overlap_are_refused() -> None:
    """A few kilobytes that read as petabytes."""
    data = torch_zip("a", size=64)
    start = data.find(b"PK\x01\x02")
    end = data.rfind(b"PK\x05\x06")
    many = data[start:end] * 50
    assert "overlap" in refused(data[:start] + many + zip_end(200, len(many), start), "model.pt", deep=True)


@pytest.mark.parametrize("pickled", [
    b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.", b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b".",
    b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b".", b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    b"\x80\x02I" + b"9" * 200_000 + b"\n.", b"\x80\x02V" + b"x" * 200_000 + b".", b"\x80\x04\xff.",
])  # fmt: skip
def test_hostile_pickles_are_refused_without_the_memory_they_ask_for(pickled: bytes) -> None:
    tracemalloc.start()
    try:
        assert refused(pickled, "random_states_0.pkl")
        assert refused(pickled, ".metadata")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", ".metadata", "__0_0.distcp", "m.h5", "x.json", "x.pkl", "x"])
def test_a_terabyte_of_nothing_is_refused_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Torn, match="nothing but zeros"):
        check_file(path, deep=True)
    with path.open("r+b") as file:
        file.write(b"PK\x03\x04" if name != "x.json" else b"{")
        file.seek(-1, os.SEEK_END)
        file.write(b"}")
    if name != "x":
        with pytest.raises(Torn):
            check_file(path, deep=name == "x.json")


def test_a_header_that_covers_a_terabyte_costs_its_header(tmp_path: Path) -> None:
    text = tensor(0, 1 << 40)
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(header(text))
        file.truncate(8 + len(text) + (1 << 40))
    check_file(path, deep=True)


def test_large_headers_cost_a_window_of_memory() -> None:
    entries = ",".join(f'"layer.{n}":{{"dtype":"U8","shape":[1],"data_offsets":[{n},{n + 1}]}}' for n in range(5_000))
    whole = header(f"{{{entries}}}".encode(), b"\x01" * 5_000)
    tracemalloc.start()
    try:
        assert refused(whole, "m.safetensors") == ""
        assert tracemalloc.get_traced_memory()[1] < len(whole)
    finally:
        tracemalloc.stop()


def test_a_long_string_and_blanks_lie_across_windows() -> None:
    for text in (
        b"\xef\xbb\xbf [1]",
        b'{"a":"' + b"x" * 300_000 + b'"}',
        b'{"a"' + b" " * 200_000 + b': "b"}',
        b"[1" + b"2" * 70_000 + b"]",
    ):
        assert refused(text, "x.json") == ""
    for cut in range(65_500, 65_560):  # a key, its colon and a number on each side of a window's end
        assert refused(b'{"a":"' + b"x" * (cut - 30) + b'", "key" : -12.5e3, "word": true}', "x.json") == ""


def test_who_asks_can_stop_it() -> None:
    def stop() -> None:
        raise Cancelled

    for kind in ("safetensors", "torch", "index", "json"):
        name, data = WHOLE[kind]
        fd = os.memfd_create("file")
        os.write(fd, data)
        with pytest.raises(Cancelled):
            check_file(fd, deep=True, name=name, poll=stop)
        os.close(fd)
