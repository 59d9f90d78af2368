"""Archives that somebody made to do harm, or that were spoilt on the way: one clear error, and nothing left."""

from __future__ import annotations

import errno
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relaytui.archive import tar
from relaytui.archive.errors import BadArchive
from relaytui.archive.extract import Limits, _Folders, extract
from relaytui.archive.frame import compressed
from relaytui.wire.errors import RelayError


def framed(content: bytes) -> bytes:
    return b"".join(compressed([content], len(content)))


def member(path: str, data: bytes = b"data") -> bytes:
    return tar.header(path, len(data)) + data + tar.padding(len(data))


GOOD = member("a/b.txt") + member("c") + tar.END


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder to extract in. Whatever happened, nothing but what the test names may lie there or beside it."""
    place = tmp_path / "outer" / "place"
    place.mkdir(parents=True)
    yield place
    assert list(tmp_path.rglob("*")) == [place.parent, place]


def refused(home: Path, data: bytes, limits: Limits = Limits(), sha256: str | None = None) -> str:  # noqa: B008
    with pytest.raises(BadArchive) as caught:
        extract(io.BytesIO(data).read, home / "out", limits, sha256=sha256)
    assert "\n" not in str(caught.value)
    return caught.value.words


def by_tarfile(change: Callable[[tarfile.TarInfo], None], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    """What Python's tarfile writes for a file that is in every other way as ours are, changed."""
    info = tarfile.TarInfo("file")
    info.size = 0
    change(info)
    return info.tobuf(kind) + tar.END


def of(**fields: object) -> Callable[[tarfile.TarInfo], None]:
    return lambda info: [setattr(info, name, value) for name, value in fields.items()] and None


TYPES = {
    "hard link": of(type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "symbolic link": of(type=tarfile.SYMTYPE, linkname="../../.."),
    "link to nothing": of(type=tarfile.SYMTYPE, linkname=""),
    "character device": of(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "block device": of(type=tarfile.BLKTYPE),
    "folder": of(type=tarfile.DIRTYPE),
    "FIFO": of(type=tarfile.FIFOTYPE),
    "contiguous file": of(type=tarfile.CONTTYPE),
    "old file": of(type=tarfile.AREGTYPE),
    "sparse file": of(type=tarfile.GNUTYPE_SPARSE),
    "solaris header": of(type=tarfile.SOLARIS_XHDTYPE),
    "setuid": of(mode=0o4755),
    "executable": of(mode=0o755),
    "owner": of(uid=1000),
    "named owner": of(uname="root"),
    "time": of(mtime=1),
}


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_no_plain_file_is_refused(home: Path, kind: str) -> None:
    refused(home, framed(by_tarfile(TYPES[kind])))


def test_tarfile_and_we_write_the_same_plain_file() -> None:
    """So that what the tests above change is the only difference."""
    assert by_tarfile(of()) == tar.header("file", 0) + tar.END


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    "change",
    [
        of(name="n" * 200),
        of(name="file", linkname="l" * 200, type=tarfile.SYMTYPE),
        of(size=9 << 30, name="s"),
        of(mtime=1.5),
        of(pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}),
        of(pax_headers={"path": "../x"}),
        of(pax_headers={"linkpath": "/etc"}),
        of(pax_headers={"hdrcharset": "BINARY"}),
    ],
)
def test_extensions_are_refused(home: Path, change: Callable[[tarfile.TarInfo], None], kind: int) -> None:
    data = by_tarfile(change, kind)
    if data != tar.header("file", 0) + tar.END:  # GNU's form has no pax headers: nothing was changed
        refused(home, framed(data))
    globally = tarfile.TarInfo.create_pax_global_header({"path": "x"})
    refused(home, framed(globally + GOOD))


NAMES = ["", ".", "..", "/", "/etc/x", "../x", "a/../../x", "a//b", "a/", "./a", "a/.", "a\\..\\b", "a\nb", "\x1b[2J"]
NAMES += ["\x85", "n" * 256, "d/" * 33 + "x", "ü" * 501, "x\x7f"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere_are_refused(home: Path, name: str) -> None:
    refused(home, framed(member(name) + tar.END))
    refused(home, framed(tar.header("ok", 0) + member(name) + tar.END))


def test_a_name_with_nul_or_other_bytes_is_refused(home: Path) -> None:
    head = bytearray(tar.header("abcdef", 0))
    for at, byte in ((3, 0), (2, 0xFF)):
        changed = head.copy()
        changed[at] = byte
        changed[148:156] = b"%06o\0 " % (sum(changed[:148]) + 8 * 32 + sum(changed[156:]))
        refused(home, framed(bytes(changed) + tar.END))


@pytest.mark.parametrize(
    "names",
    [
        ("a", "a"),
        ("b", "a"),
        ("a", "a/b"),
        ("a", "a.x", "a/b"),
    ],
)
def test_two_files_of_one_name_are_refused(home: Path, names: tuple[str, ...]) -> None:
    refused(home, framed(b"".join(map(member, names)) + tar.END))


TWINS = [("A", "a"), ("A/x", "a/y"), ("A", "a/b"), ("STRASSE", "straße"), ("e\u0301", "\u00e9"), ("fi", "\ufb01")]
"""Each of which some disks take for one name."""


@pytest.mark.parametrize("names", TWINS)
def test_names_that_some_disks_take_for_one_come_out_where_they_are_two(tmp_path: Path, names: tuple[str, str]) -> None:
    data = framed(b"".join(member(name, name.encode()) for name in names) + tar.END)
    assert extract(io.BytesIO(data).read, tmp_path / "out").files == names
    assert [(tmp_path / "out" / name).read_text() for name in names] == list(names)


@pytest.mark.parametrize(("there", "path"), [("a", "a"), ("a/", "a"), ("a/", "a/b"), ("a", "a/b"), ("a/b/", "a/b/c")])
def test_a_disk_that_takes_two_names_for_one_is_said_and_nothing_is_written_over(
    tmp_path: Path, there: str, path: str
) -> None:
    """To who makes `path` such a disk says that it is there, though nothing of that name was made."""
    at = tmp_path / there
    if there.endswith("/"):
        at.mkdir(parents=True)
    else:
        at.write_text("theirs")
    with _Folders(tmp_path) as folders, pytest.raises(RelayError) as caught:
        folders.new(path)
    assert caught.value.code == "one_name"
    assert path.split("/")[0] in caught.value.message
    assert caught.value.hint
    assert at.is_dir() or at.read_text() == "theirs"


def test_sizes_that_are_written_in_another_way_are_refused(home: Path) -> None:
    def with_size(field: bytes) -> bytes:
        head = bytearray(tar.header("a", 4))
        head[124:136] = field
        head[148:156] = b"%06o\0 " % (sum(head[:148]) + 8 * 32 + sum(head[156:]))
        return framed(bytes(head) + b"data" + tar.padding(4) + tar.END)

    for field in (
        b"0000000004 \0", b"          4\0", b"4\0".ljust(12, b"\0"), b"-0000000004\0", b"\x80" + bytes(10) + b"\4",
        b"\xff" * 12, b"00000000009\0", b"77777777777\0", b"000000000000",
    ):  # fmt: skip
        refused(home, with_size(field))


def test_pax_records_that_lie_are_refused(home: Path) -> None:
    def with_records(records: bytes, length: int | None = None) -> bytes:
        head = bytearray(tar.header("é", 0)[: tar.BLOCK])
        head[124:136] = b"%011o\0" % (len(records) if length is None else length)
        head[148:156] = b"%06o\0 " % (sum(head[:148]) + 8 * 32 + sum(head[156:]))
        return framed(bytes(head) + records + tar.padding(len(records)) + tar.header("?", 0) + tar.END)

    for records in (
        b"", b"1", b"0 path=x\n", b"99999999999 path=x\n", b"9 path=x\n9 path=x\n", b"9 path=x ", b"9 path=\xff\n",
        b"10 size=-1\n", b"11 size=1_0\n", b"9 PATH=x\n", b"-9 path=x\n", b"9 path=x\n", b"10 path=x\n\n",
        b"12 size=9999\n", "10 path=²\n".encode(), "11 size=²\n".encode(), b"9" * 5000,
    ):  # fmt: skip
        refused(home, with_records(records))
    refused(home, with_records(b"9 path=x\n", length=4 << 30))


def test_an_end_that_is_none(home: Path) -> None:
    for content in (
        b"", GOOD[:-512], GOOD[:-1024], GOOD + bytes(512), GOOD + b"x", GOOD + GOOD, GOOD[:600], GOOD[:514],
        tar.header("a", 600) + bytes(600) + b"x" * (-600 % 512) + tar.END, tar.header("a", 10**9) + tar.END,
        GOOD[:-512] + b"x" * 512,
    ):  # fmt: skip
        refused(home, framed(content))


def test_truncated_anywhere_and_with_more_behind(home: Path) -> None:
    data = framed(GOOD)
    for end in range(len(data)):
        refused(home, data[:end])
    for more in (b"\0", b"x" * 300_000, data, b"\x50\x2a\x4d\x18\4\0\0\0abcd", framed(b"")):
        assert "behind" in refused(home, data + more)
    refused(home, b"\x50\x2a\x4d\x18\4\0\0\0abcd" + data)


def frame_of(content: bytes, *, claim: int | None = None, window: int | None = None) -> bytes:
    """A frame by hand, of raw blocks, that may lie; its checksum is the right one."""
    size = (len(content) if claim is None else claim).to_bytes(8, "little")
    head = b"\x28\xb5\x2f\xfd" + (b"\xe4" if window is None else b"\xc4" + bytes([window])) + size
    blocks = b""
    for at in range(0, max(1, len(content)), 1000):
        piece = content[at : at + 1000]
        blocks += (len(piece) << 3 | (at + 1000 >= len(content))).to_bytes(3, "little") + piece
    return head + blocks + framed(content)[-4:]


def test_a_window_that_needs_gigabytes_is_refused(home: Path) -> None:
    for log in (24, 31, 41):
        assert "memory" in refused(home, frame_of(GOOD, window=(log - 10) << 3))
    refused(home, frame_of(GOOD, claim=1 << 40))  # all of it in one segment
    plain = frame_of(GOOD, window=(20 - 10) << 3)
    extract(io.BytesIO(plain).read, home / "out")
    assert (home / "out" / "a" / "b.txt").read_bytes() == b"data"
    (home / "out" / "a" / "b.txt").unlink()
    (home / "out" / "a").rmdir()
    (home / "out" / "c").unlink()
    (home / "out").rmdir()


def test_a_frame_says_what_it_holds_and_holds_it(home: Path) -> None:
    window = (20 - 10) << 3
    for claim in (0, len(GOOD) - 512, len(GOOD) - 1, len(GOOD) + 1, len(GOOD) + 512, 1 << 30):
        refused(home, frame_of(GOOD, claim=claim, window=window))
    unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(GOOD)
    assert "does not say" in refused(home, unsized)
    assert "checksum" in refused(home, zstandard.ZstdCompressor(write_checksum=False).compress(GOOD))
    spoilt = bytearray(framed(GOOD))
    spoilt[-1] ^= 1
    refused(home, bytes(spoilt))


def test_bombs(home: Path) -> None:
    zeros = tar.header("zeros", 100 << 20)
    whole = len(zeros) + (100 << 20) + len(tar.END)

    def content() -> Iterator[bytes]:
        yield zeros
        for _ in range(100):
            yield bytes(1 << 20)
        yield tar.END

    bomb = b"".join(compressed(content(), whole))
    assert len(bomb) < 100_000
    assert "grows" in refused(home, bomb)
    assert "over 1,000,000" in refused(home, bomb, Limits(content=1_000_000))
    assert "longer than the 1,000" in refused(home, bomb, Limits(size=1000))
    many = b"".join(member(f"{at:05}") for at in range(30)) + tar.END
    assert "more than 20 files" in refused(home, framed(many), Limits(files=20))
    # A block of one byte, 128 KiB long, thousands of times: in pieces that stay small.
    rle = (128 << 10 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    head = b"\x28\xb5\x2f\xfd\xc4" + bytes([(20 - 10) << 3]) + (1 << 30).to_bytes(8, "little")
    assert refused(home, head + rle * 9_000)


def test_how_much_it_grows_is_no_matter_where_its_size_is_known(tmp_path: Path) -> None:
    size = 70 << 20
    zeros = b"".join(compressed([tar.header("zeros", size), bytes(size), tar.END], size + 3 * tar.BLOCK))
    done = extract(io.BytesIO(zeros).read, tmp_path / "out", Limits.of(len(zeros), size, 1))
    assert done.bytes == size
    for of in (Limits.of(len(zeros), size - 100_000, 1), Limits.of(len(zeros), size, 0)):
        with pytest.raises(BadArchive):
            extract(io.BytesIO(zeros).read, tmp_path / "bomb", of)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_does_not_fit_on_the_disk_is_not_begun(home: Path) -> None:
    with pytest.raises(RelayError) as caught:
        extract(io.BytesIO(frame_of(GOOD, claim=1 << 60, window=80)).read, home / "out", Limits(content=1 << 61))
    assert caught.value.code == "disk"


def test_another_hash_than_was_told(home: Path) -> None:
    assert "sha256" in refused(home, framed(GOOD), sha256="0" * 64)


def test_what_is_there_already_stays(tmp_path: Path) -> None:
    for there in ("folder", "file", "link"):
        target = tmp_path / there
        if there == "link":
            target.symlink_to("nowhere")
        else:
            (target.mkdir if there == "folder" else target.touch)()
        with pytest.raises(RelayError) as caught:
            extract(io.BytesIO(framed(GOOD)).read, target)
        assert caught.value.code == "exists"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_reader_that_fails_or_is_stopped_leaves_nothing(home: Path) -> None:
    class Stopped(Exception):  # noqa: N818
        pass

    def stop(_: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        extract(io.BytesIO(framed(GOOD)).read, home / "out", progress=stop)


def test_an_archive_that_cannot_be_read_is_not_the_target_s_fault(home: Path) -> None:
    """The disk that the archive lies on fails: it was the target that could not be written, and its permissions."""

    def broken(_: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(RelayError) as caught:
        extract(broken, home / "out", source="/mnt/x/a.tar.zst")
    assert caught.value.message == "/mnt/x/a.tar.zst cannot be read: Input/output error"
    assert str(home) not in str(caught.value)


def test_who_shows_how_far_it_is_and_fails_is_not_the_target_s_fault(home: Path) -> None:
    def gone(_: int) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        extract(io.BytesIO(framed(GOOD)).read, home / "out", progress=gone)


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def swallow(home: Path, data: bytes) -> None:
    """Extracts, or raises BadArchive. What was made by chance is looked at, and removed."""
    try:
        done = extract(io.BytesIO(data).read, home / "out", Limits(content=1 << 24))
    except BadArchive:
        return
    found = sorted(path.relative_to(home / "out").as_posix() for path in (home / "out").rglob("*") if path.is_file())
    assert tuple(found) == tuple(sorted(done.files))
    for path in sorted((home / "out").rglob("*"), reverse=True):
        assert not path.is_symlink()
        path.unlink() if path.is_file() else path.rmdir()
    (home / "out").rmdir()


@FUZZ
@given(data=st.binary(max_size=600), magic=st.booleans())
def test_fuzz_any_bytes(home: Path, data: bytes, magic: bool) -> None:
    swallow(home, (b"\x28\xb5\x2f\xfd" if magic else b"") + data)


@FUZZ
@given(data=st.lists(st.one_of(st.binary(max_size=200), st.sampled_from([GOOD, tar.END, member("x"), member("é")]))))
def test_fuzz_any_content_in_a_good_frame(home: Path, data: list[bytes]) -> None:
    swallow(home, framed(b"".join(data)))


EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from("=+-")), min_size=1, max_size=6)


def edited(data: bytes, edits: list[tuple[int, int, str]]) -> bytes:
    out = bytearray(data)
    for at, byte, how in edits:
        at %= max(1, len(out))
        if how == "=" and out:
            out[at] = byte
        elif how == "+":
            out.insert(at, byte)
        else:
            del out[at : at + byte]
    return bytes(out)


@FUZZ
@given(edits=EDITS, inside=st.booleans())
def test_fuzz_a_good_archive_with_wrong_bytes(home: Path, edits: list[tuple[int, int, str]], inside: bool) -> None:
    content = GOOD[:-1024] + member("ü/" + "n" * 120) + tar.END
    swallow(home, framed(edited(content, edits)) if inside else edited(framed(content), edits))


@FUZZ
@given(names=st.lists(st.text(min_size=0, max_size=20), max_size=6))
def test_fuzz_any_names(home: Path, names: list[str]) -> None:
    try:
        content = b"".join(member(name) for name in sorted(names)) + tar.END
    except UnicodeEncodeError:
        return
    swallow(home, framed(content))
