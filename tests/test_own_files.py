"""Small files of Relay's on the volume, as a disk that is nearly full takes them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from relay_agent.volume import own_files

OLD, NEW = b'{"epoch":1}\n', b'{"epoch":2,"more":true}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "hf").mkdir()
    path = tmp_path / "hf" / "note.json"
    path.write_bytes(OLD)
    return path


class Bits:
    """A disk that takes a few bytes at a time, and `room` of them in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room, self.write = room, os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.write(fd, data[: min(5, self.room)])
        self.room -= taken
        return taken


def test_what_is_written_in_bits_is_written_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Bits(monkeypatch, 1000)
    own_files.replace(file, NEW)
    own_files.append(file, OLD)
    assert file.read_bytes() == NEW + OLD


def test_a_file_that_does_not_fit_leaves_the_one_before(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Bits(monkeypatch, len(NEW) - 1)
    with pytest.raises(OSError, match="No space"):
        own_files.replace(file, NEW)
    assert (file.read_bytes(), list(file.parent.iterdir())) == (OLD, [file])


def test_a_line_that_does_not_fit_leaves_no_half_of_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next line would be glued to it, and both be lost."""
    disk = Bits(monkeypatch, len(NEW) - 1)
    with pytest.raises(OSError, match="No space"):
        own_files.append(file, NEW)
    assert file.read_bytes() == OLD
    disk.room = 1000
    own_files.append(file, NEW)
    assert file.read_bytes() == OLD + NEW


def test_what_another_wrote_behind_half_a_line_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Bits):
        def __call__(self, fd: int, data: bytes) -> int:
            taken = super().__call__(fd, data)
            with file.open("ab", buffering=0) as other:
                self.write(other.fileno(), OLD)
            return taken

    Other(monkeypatch, 5)
    with pytest.raises(OSError, match="No space"):
        own_files.append(file, NEW)
    assert file.read_bytes() == OLD + NEW[:5] + OLD
