"""The commander killed at each system call of an upload: what is listed is whole, what was answered is there, and the
upload goes on. All points, none sampled."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from artifact_books import Books
from artifact_kit import part_files, sha, some, stored_files
from system_calls import Moment, moments

DATA, OTHER = some(10_000), some(9_000, 2)

COMMON = """
import os, sys
from pathlib import Path
from artifact_books import Books
from artifact_kit import some

def say(word):
    os.write(1, word.encode() + b"\\n")

data, other = some(10_000), some(9_000, 2)
"""
BEGIN_BOOKS = """
books = Books(Path(sys.argv[1]), keep=1, late=LATE)
books.acquire()
"""

CHUNKS = """
upload = books.begin(data, "step_1").upload
TRACED
say(f"at {books.chunk(upload, 0, data[:5_000])}")
say(f"at {books.chunk(upload, 5_000, data[5_000:])}")
"""

FINISH = """
books.put(other, "step_1")
upload = books.begin(data, "step_2").upload
books.chunk(upload, 0, data)
TRACED
say(f"stored {books.finish(upload, data).id}")
"""

DAMAGED = """
import asyncio
row = books.put(data, "step_1")
path = books.store.content.path(row.sha256)
path.write_bytes(data[:-1] + b"?")
asyncio.run(books.store.damaged(row.sha256, "test"))
upload = books.begin(data, "step_1").upload
books.chunk(upload, 0, data)
TRACED
say(f"stored {books.finish(upload, data).id}")
"""

BEGIN = """
TRACED
say(books.begin(data, "step_1").upload)
"""


def after(script: str, root: Path, *, late: bool = False) -> list[tuple[Moment, Path]]:
    """Each moment, and a folder that holds what was left then."""
    state = root / "state"
    state.mkdir(mode=0o700)
    found = moments(COMMON, BEGIN_BOOKS.replace("LATE", str(late)) + script, state)
    assert len(found) > 3, "it was seen at work"
    print(f"{found[-1].call} system calls, {len(found)} states of the files")
    return [(moment, moment.write(root / f"moment-{number}")) for number, moment in enumerate(found)]


def is_whole(books: Books, folder: Path) -> None:
    """Whatever is listed and not marked has its bytes."""
    for row in books.rows():
        if not row.damaged:
            assert sha(books.store.content.path(row.sha256).read_bytes()) == row.sha256
            assert len(books.store.content.path(row.sha256).read_bytes()) == row.size


def kept(moment: Moment, folder: Path) -> int:
    """Bytes of the upload that are there: no fewer than were answered, and those that were sent."""
    (part,) = [path.read_bytes() for path in part_files(folder)] or [b""]
    said = int(moment.said.split()[-1]) if moment.said else 0
    assert len(part) >= said, f"bytes that were answered are gone, killed at call {moment.call}"
    assert DATA.startswith(part)
    return len(part)


def test_chunks(root: Path) -> None:
    sizes, found = set(), after(CHUNKS, root)
    for moment, folder in found:
        size = kept(moment, folder)
        if size not in sizes:
            with closing((books := Books(folder)).db):
                assert books.rows() == []
                books.acquire()
                assert books.begin(DATA, "step_1").offset == size
                assert books.put(DATA, "step_1").sha256 == sha(DATA)
                is_whole(books, folder)
        sizes.add(size)
    assert sizes == {0, 2_000, 4_000, 5_000, 7_000, 9_000, 10_000}
    with pytest.raises(AssertionError, match="answered are gone"):  # an offset that is answered too early is caught
        kept(replace(found[0][0], said=b"at 5000"), found[0][1])


def test_a_begin(root: Path) -> None:
    for moment, folder in after(BEGIN, root):
        with closing((books := Books(folder)).db):
            books.acquire()
            begun = books.begin(DATA, "step_1")
            assert moment.said.decode().strip() in ("", begun.upload)
            assert (begun.offset, books.rows()) == (0, [])


@pytest.mark.parametrize("late", [False, True])
def test_a_finish_and_what_gives_way_to_it(root: Path, late: bool) -> None:
    """Asked to finish again, or begun again, in turns."""
    found = set()
    for number, (moment, folder) in enumerate(after(FINISH, root, late=late)):
        with closing((books := Books(folder, keep=1, late=late)).db):
            is_whole(books, folder)
            names = [row.name for row in books.rows()]
            assert names in (["step_1"], ["step_2"])
            assert names == ["step_2"] or not moment.said, f"an artifact that was told is gone, call {moment.call}"
            found.add(names[0])
            books.acquire()
            uploads = list(books.store.uploads.coming)
            if number % 2 and uploads:
                assert books.finish(uploads[0], DATA).name == "step_2"
            assert books.put(DATA, "step_2").name == "step_2"
            is_whole(books, folder)
            assert [row.name for row in books.rows()] == ["step_2"]
            assert sha(DATA) in stored_files(folder)
    assert found == {"step_1", "step_2"}


def test_a_damaged_one_is_mended(root: Path) -> None:
    found = set()
    for moment, folder in after(DAMAGED, root):
        with closing((books := Books(folder)).db):
            is_whole(books, folder)
            (row,) = books.rows()
            assert not row.damaged or not moment.said
            found.add(bool(row.damaged))
            books.acquire()
            books.put(DATA, "step_1")
            is_whole(books, folder)
            assert [bool(row.damaged) for row in books.rows()] == [False]
    assert found == {False, True}
