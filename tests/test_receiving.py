"""A checkpoint that comes from elsewhere: only what its manifest says gets in, and it goes on where it was cut off."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from checkpoint_kit import RUN

from relay_agent.checkpoints import receiving
from relay_agent.checkpoints.manifest import VERSION, FileEntry, Manifest, Torn, verify
from relay_agent.checkpoints.receiving import Receiving, TooMuch

FILES = {"shard/0.bin": b"shard" * 40, "shard/empty.bin": b"", "trainer.json": b"{}", "weights.bin": b"weights" * 500}


def entry(path: str, data: bytes = b"x") -> FileEntry:
    return FileEntry(path, len(data), hashlib.sha256(data).hexdigest())


def manifest(files: list[FileEntry], run_id: str = RUN) -> bytes:
    made = Manifest(
        VERSION, run_id, "step_00000500", 500, 3, 9, "step_00000400", "sft", "mock", "staging", None, 1.7e9, files
    )
    return msgspec.json.encode(made)


def whole() -> bytes:
    return manifest([entry(path, data) for path, data in FILES.items()])


def receive(coming: Receiving, upto: int = 1 << 30) -> Path | None:
    """All that is missing, in pieces of 100 bytes; None where `upto` bytes came before all had."""
    for file in coming.open():
        with coming.file(file) as got:
            while got.size < file.size:
                if upto <= 0:
                    return None
                piece = FILES[file.path][got.size : got.size + 100]
                got.take(piece)
                upto -= len(piece)
            got.finish()
        coming.settle(file)
    return coming.seal()


@pytest.mark.parametrize("upto", [0, 100, 250, 900, 3000])
def test_it_goes_on_where_it_was_cut_off(tmp_path: Path, upto: int) -> None:
    assert receive(Receiving(tmp_path / "in" / "a", whole()), upto) is None
    coming = Receiving(tmp_path / "in" / "a", whole())
    assert coming.came(coming.open()) >= upto
    folder = receive(coming)
    assert folder is not None
    assert verify(folder, RUN).step == 500
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.*")} == {*FILES, "manifest.json"}
    assert coming.open() == [], "all of it is there"
    assert receive(coming) == folder


def test_no_byte_more_than_was_said_gets_in(tmp_path: Path) -> None:
    coming = Receiving(tmp_path / "in" / "a", whole())
    file = coming.open()[-1]
    with pytest.raises(Torn, match="longer than the 3,500 bytes"), coming.file(file) as got:
        got.take(FILES[file.path] + b"!")
    assert coming.came([file]) == coming.total - file.size, "what was wrong is thrown away"


def sent(coming: Receiving, file: FileEntry, data: bytes) -> None:
    with coming.file(file) as got:
        got.take(data)
        got.finish()


CHANGED = b"W" + FILES["weights.bin"][1:]


@pytest.mark.parametrize(("data", "words"), [(CHANGED, "hash differs"), (b"we", "ends after 2")])
def test_what_is_not_what_was_saved_does_not_stay(tmp_path: Path, data: bytes, words: str) -> None:
    coming = Receiving(tmp_path / "in" / "a", whole())
    file = coming.open()[-1]
    with pytest.raises(Torn, match=words):
        sent(coming, file, data)
    assert not list((tmp_path / "in" / "a" / "parts").iterdir())


def test_what_somebody_planted_in_its_place_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    place = tmp_path / "in" / "a"
    coming = Receiving(place, whole())
    missing = coming.open()
    (place / "parts" / "0").symlink_to(other)
    (place / "parts" / "2").hardlink_to(other)
    os.mkfifo(place / "parts" / "3")
    (place / "step_00000500" / "weights.bin").symlink_to(other)
    assert coming.open() == missing
    folder = receive(coming)
    assert folder is not None
    assert verify(folder, RUN)
    assert other.read_bytes() == b"mine"


def test_a_folder_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "in" / "a" / "step_00000500").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in" / "a" / "step_00000500" / "shard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        Receiving(tmp_path / "in" / "a", whole()).open()
    assert not list((tmp_path / "elsewhere").iterdir())


HOSTILE: dict[str, tuple[Callable[[], list[FileEntry]], str]] = {
    "above": (lambda: [entry("../x")], "no path inside"),
    "absolute": (lambda: [entry("/etc/x")], "no path inside"),
    "null": (lambda: [entry("a\0b")], "no path inside"),
    "twice": (lambda: [entry("a"), entry("a")], "out of order or twice"),
    "file and folder": (lambda: [entry("a"), entry("a/b")], "both as a file and as a folder"),
    "ours": (lambda: [entry(".relay-unfinished/x")], "a name of ours"),
    "sealing": (lambda: [entry(".manifest.json.tmp")], "a name of ours"),
    "deep": (lambda: [entry("/".join("d" * 40))], "deeper than 32"),
    "long": (lambda: [entry("n" * 300)], "longer than 255"),
    "nothing": (lambda: [entry("a", b"")], "holds no data"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_manifest_that_means_harm_is_refused_before_anything_is_made(tmp_path: Path, case: str) -> None:
    files, words = HOSTILE[case]
    with pytest.raises(Torn, match=words):
        Receiving(tmp_path / "in" / "a", manifest(files()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"relay_manifest": 99}'])
def test_what_is_no_manifest_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Torn):
        Receiving(tmp_path / "in" / "a", data)


@pytest.mark.parametrize("limit", [{"f_bavail": 1}, {"f_favail": 1}])
def test_a_volume_without_room_for_it_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    room: dict[str, Any] = {"f_bavail": 10**9, "f_frsize": 512, "f_files": 100, "f_favail": 100, **limit}
    coming = Receiving(tmp_path / "in" / "a", whole())
    with monkeypatch.context() as patch:
        patch.setattr(receiving.os, "statvfs", lambda path: SimpleNamespace(**room))
        with pytest.raises(TooMuch, match="still to come"):
            coming.open()
    receive(coming, 2500)
    monkeypatch.setattr(receiving.os, "statvfs", lambda path: SimpleNamespace(**{**room, "f_bavail": 3, "f_favail": 9}))
    assert coming.open(), "what has come needs no more room"
