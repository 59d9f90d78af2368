"""Archives: the same files are the same bytes, and other programs can read them."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import zstandard

from relaytui.archive import frame, tar
from relaytui.archive.errors import Damaged, SourceChanged, Unpackable
from relaytui.archive.extract import extract
from relaytui.archive.pack import Pack

GOLDEN = "1f90f528d1c392f2060f392823e8007c463823339cac8aab6867cbf31647f622"


def folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


@functools.cache
def made(size: int, seed: int) -> bytes:
    """Bytes that are the same on every machine, half of them easy to compress."""
    out = bytearray()
    block = hashlib.sha256(b"%d" % seed).digest()
    while len(out) < size:
        block = hashlib.sha256(block).digest()
        out += block + bytes(range(32))
    return bytes(out)


def reproducible(size: int) -> bytes:
    return made(9_500_000, 1)[:size]


@functools.cache
def files() -> dict[str, bytes]:
    return {
        "manifest.json": b"{}",
        "model.safetensors": reproducible(9_000_000),
        "global_step5/rank_0.pt": made(700_000, 2)[:700_000],
        "global_step5/rank_1.pt": b"",
        "a.txt": bytes(512),
        "a/b.txt": b"x" * 513,
        "größe/" + "n" * 120: b"long",
    }


def packed(path: Path, names: Iterable[str] | None = None, workers: int = 1) -> bytes:
    return b"".join(Pack(path, names).chunks(workers))


def test_the_same_files_are_the_same_bytes(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", files())
    two = folder(tmp_path / "two", dict(reversed(files().items())))
    for path in two.rglob("*"):
        path.chmod(0o700)
        os.utime(path, (1, 1))
    (two / "empty").mkdir()
    data = packed(one)
    assert packed(two) == data == packed(two, list(files())) == packed(one, workers=3)
    # What zstd, Python and this code make of them together. A change here is a change for every archive ever stored:
    # nothing is found again by its hash.
    assert hashlib.sha256(data).hexdigest() == GOLDEN


def test_how_the_content_is_cut_changes_nothing() -> None:
    data = reproducible(9_500_000)
    whole = b"".join(frame.compressed([data], len(data)))
    small = [data[at : at + 100_003] for at in range(0, len(data), 100_003)]
    assert b"".join(frame.compressed(small, len(data), 2)) == whole


def test_other_programs_read_it(tmp_path: Path) -> None:
    data = packed(folder(tmp_path / "one", files()))
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompress(data))) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        assert all(member.isreg() and member.mode == 0o644 and not member.mtime for member in archive)
    assert read == files()
    listed = subprocess.run(
        ["tar", "-tf", "-"],
        input=zstandard.ZstdDecompressor().decompress(data),
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert listed.stderr == b""
    assert len(listed.stdout.splitlines()) == len(files())


def test_a_file_of_more_than_eight_gib_has_a_header_that_others_read(tmp_path: Path) -> None:
    size = 9 << 30
    head = tar.header("big", size)
    with (tmp_path / "big.tar").open("wb") as file:
        file.write(head)
        file.seek(len(head) + size)
        file.write(tar.header("next", 0) + tar.END)
    with tarfile.open(tmp_path / "big.tar") as archive:
        assert [(member.name, member.size) for member in archive] == [("big", size), ("next", 0)]
    stream = io.BytesIO(head)
    assert tar.read_header(stream.read) == ("big", size)


def test_the_way_back(tmp_path: Path) -> None:
    data = packed(folder(tmp_path / "one", files()))
    done = extract(io.BytesIO(data).read, tmp_path / "two", sha256=hashlib.sha256(data).hexdigest())
    assert {name: (tmp_path / "two" / name).read_bytes() for name in files()} == files()
    assert done.files == tuple(sorted(files()))
    assert (done.bytes, done.size) == (sum(map(len, files().values())), len(data))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def _link(path: Path) -> None:
    (path / "link").symlink_to("/etc/passwd")


def _fifo(path: Path) -> None:
    os.mkfifo(path / "fifo")


def _bytes_name(path: Path) -> None:
    (path / os.fsdecode(b"\xff")).touch()


def _backslash(path: Path) -> None:
    (path / "a\\b").touch()


@pytest.mark.parametrize("spoil", [_link, _fifo, _bytes_name, _backslash])
def test_what_no_archive_can_hold_is_said(tmp_path: Path, spoil: object) -> None:
    folder(tmp_path / "one", {"a.txt": b"1"})
    spoil(tmp_path / "one")  # type: ignore[operator]
    with pytest.raises(Unpackable):
        Pack(tmp_path / "one")


def test_names_that_differ_in_case_alone_come_back(tmp_path: Path) -> None:
    files = {"Model.bin": b"1", "model.bin": b"2", "Shard/0.bin": b"3", "shard/1.bin": b"4"}
    data = packed(folder(tmp_path / "one", files))
    extract(io.BytesIO(data).read, tmp_path / "two")
    assert {path: (tmp_path / "two" / path).read_bytes() for path in files} == files


def test_more_than_was_allowed_is_not_begun(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {})
    one.mkdir()
    with (one / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Unpackable, match="over 1,000,000"):
        Pack(one, max_bytes=1_000_000)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shrink(path: Path) -> None:
    os.truncate(path, 3)


def _rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def _replace(path: Path) -> None:
    path.with_name("other").write_bytes(path.read_bytes())
    path.with_name("other").replace(path)


def _become_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES = [
    *((change, name) for change in (_grow, _shrink, _rewrite) for name in ("early", "late")),
    # A file that is open is read as it was, whatever has its name now.
    *((change, "late") for change in (_replace, _become_fifo, Path.unlink)),
]


@pytest.mark.parametrize(("change", "name"), CHANGES)
def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path, change: object, name: str) -> None:
    path = folder(tmp_path / "one", {"early": reproducible(5_000_000), "late": reproducible(3_000_000)})
    pack = Pack(path)
    reads = iter(range(10_000))

    def when_it_reads() -> None:
        if next(reads) == 1:
            change(path / name)  # type: ignore[operator]

    with pytest.raises(SourceChanged, match=name):
        list(pack.chunks(check=when_it_reads))


def known(files: dict[str, bytes]) -> dict[str, tuple[int, str]]:
    return {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}


def test_files_that_are_what_they_have_to_be_are_the_same_archive(tmp_path: Path) -> None:
    path = folder(tmp_path / "one", files())
    (path / "beside").touch()
    assert b"".join(Pack(path, known=known(files())).chunks()) == packed(path, files())


def test_a_size_that_differs_is_found_before_a_byte_is_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "one", files())
    _shrink(path / "model.safetensors")
    with pytest.raises(Damaged, match=r"'model\.safetensors' has 3 bytes, not 9,000,000"):
        Pack(path, known=known(files()))


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "größe/" + "n" * 120])
def test_a_bit_that_turned_is_found_in_the_same_pass_before_the_end(tmp_path: Path, name: str) -> None:
    """Whichever file it is in: the archive has no end then that anybody could finish it with."""
    path = folder(tmp_path / "one", files())
    data = files()[name]
    (path / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    pack, got = Pack(path, known=known(files())), bytearray()
    with pytest.raises(Damaged, match=f"{name.split('/')[-1]}' is not what was saved"):
        got.extend(itertools.chain.from_iterable(pack.chunks()))
    assert pack.read_bytes <= pack.file_bytes
    assert packed(path, files()).startswith(got)
    assert len(got) < len(packed(path, files()))


def test_further_names_of_a_file_are_no_change(tmp_path: Path) -> None:
    path = folder(tmp_path / "one", {"a": b"1"})
    pack = Pack(path)
    os.link(path / "a", tmp_path / "b")
    assert b"".join(pack.chunks()) == packed(path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SourceChanged, match="No such file"):
        Pack(tmp_path / "none")
    with pytest.raises(SourceChanged, match="No such file"):
        Pack(folder(tmp_path / "one", {"a": b"1"}), ["a", "b"])
    (tmp_path / "link").symlink_to(tmp_path / "one")
    with pytest.raises(SourceChanged):
        Pack(tmp_path / "link")


def test_the_whole_is_never_in_memory(tmp_path: Path) -> None:
    path = folder(tmp_path / "one", {})
    path.mkdir()
    with (path / "zeros").open("wb") as file:
        file.truncate(160 << 20)
    code = (
        "import resource, sys; from pathlib import Path; from relaytui.archive.pack import Pack\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for _ in Pack(Path(sys.argv[1])).chunks(2): pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10
