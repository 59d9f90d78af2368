"""What makes a folder a checkpoint, and everything that does not."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpoint_kit import RUN, new_run, put

from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import MANIFEST, Torn, read, sizes_match, verify
from relay_agent.checkpoints.tree import Unreadable, torn_by


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return put(new_run(tmp_path), 1, 500).path


def edit(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def reason(path: Path, run_id: str | None = RUN) -> str:
    with pytest.raises(Torn) as torn:
        verify(path, run_id)
    assert torn.value.reason.isprintable()
    return torn.value.reason


def test_the_manifest_says_what_a_resume_needs(checkpoint: Path) -> None:
    manifest = verify(checkpoint, RUN)
    assert (manifest.run_id, manifest.name, manifest.step, manifest.epoch, manifest.seq, manifest.base) == (
        RUN,
        "step_00000500",
        500,
        1,
        1,
        None,
    )
    assert [file.path for file in manifest.files] == ["shard/0.bin", "weights.bin"]
    assert manifest.total_bytes == sum(file.size for file in manifest.files) > 0
    written = json.loads((checkpoint / MANIFEST).read_bytes())
    assert written["relay_manifest"] == 1
    assert sizes_match(read(checkpoint, RUN))


def test_unknown_fields_of_a_later_version_are_no_harm(checkpoint: Path) -> None:
    edit(checkpoint, from_the_future={"a": 1})
    assert verify(checkpoint, RUN)


FILE = {"path": "weights.bin", "size": 1200, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "changes",
    [
        {"relay_manifest": 2},
        {"relay_manifest": "1"},
        {"relay_manifest": None},
        {"step": -1},
        {"step": "500"},
        {"step": True},
        {"step": 501},
        {"step": 1e300},
        {"step": 2**53 + 1, "name": f"step_{2**53 + 1}"},
        {"epoch": -1},
        {"epoch": 2**53 + 1},
        {"epoch": 2**63},
        {"seq": 0},
        {"seq": 2**53 + 1},
        {"seq": 10**400},
        {"saved_at": -1},
        {"saved_at": 2**63},
        {"run_id": "run-2"},
        {"run_id": "../run-1"},
        {"name": "step_00000501"},
        {"name": "step_final"},
        {"name": "step_00000500.e00000009"},
        {"name": 500},
        {"base": "../x"},
        {"files": []},
        {"files": {}},
        {"files": [None]},
        {"files": [{**FILE, "size": -1}]},
        {"files": [{**FILE, "size": "1200"}]},
        {"files": [{**FILE, "sha256": "Z" * 64}]},
        {"files": [{**FILE, "sha256": "0" * 64 + "\n"}]},
        {"files": [FILE, FILE]},
        {"files": [{**FILE, "path": path} for path in ("z", "a")]},
        *(
            {"files": [{**FILE, "path": path}]}
            for path in ("/etc/passwd", "../../x", "a/../b", "a//b", "./a", "a/", "")
        ),
        {"files": [{**FILE, "path": "a\0b"}]},
        {"files": [{**FILE, "path": MANIFEST}]},
        {"files": [{**FILE, "path": "x" * 5000}]},
    ],
    ids=str,
)
def test_a_manifest_that_does_not_fit_is_torn(checkpoint: Path, changes: dict[str, Any]) -> None:
    edit(checkpoint, **changes)
    reason(checkpoint)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"\0" * 900, b"[" * 100_000, b'{"relay_manifest": NaN}']
)
def test_a_manifest_that_is_none_is_torn(checkpoint: Path, content: bytes) -> None:
    (checkpoint / MANIFEST).write_bytes(content)
    reason(checkpoint)


def flip(path: Path) -> None:
    data = bytearray((path / "weights.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "weights.bin").write_bytes(data)


def zero_tail(path: Path) -> None:
    data = (path / "weights.bin").read_bytes()
    (path / "weights.bin").write_bytes(data[:-64] + b"\0" * 64)


def swap(path: Path) -> None:
    (path / "shard" / "1.bin").write_bytes(b"shard 501")
    (path / "shard" / "1.bin").replace(path / "shard" / "0.bin")


def in_place_of_weights(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        (path / "weights.bin").unlink()
        make(path / "weights.bin")

    return damage


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's name may not be long
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def same_bytes_elsewhere(path: Path) -> None:
    """A link to a file with the very bytes: still not this checkpoint's own."""
    (path / "weights.bin").rename(path.parent / "elsewhere")
    (path / "weights.bin").symlink_to("../elsewhere")


def folder_elsewhere(path: Path) -> None:
    (path / "shard").rename(path.parent / "elsewhere")
    (path / "shard").symlink_to("../elsewhere")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda path: (path / MANIFEST).unlink(),
    "missing file": lambda path: (path / "weights.bin").unlink(),
    "missing folder": lambda path: (path / "shard").rename(path.parent / "gone"),
    "cut short": lambda path: os.truncate(path / "weights.bin", 100),
    "emptied": lambda path: os.truncate(path / "weights.bin", 0),
    "grown": lambda path: os.truncate(path / "weights.bin", 5000),
    "a bit flipped": flip,
    "a tail of zeros": zero_tail,
    "another's bytes": swap,
    "an extra file": lambda path: (path / "extra").touch(),
    "an extra file below": lambda path: (path / "shard" / "extra").touch(),
    "an extra link": lambda path: (path / "extra").symlink_to("/etc/passwd"),
    "a marker left": lambda path: (path / "COMPLETE").touch(),
    "a name that is no UTF-8": lambda path: Path(os.fsdecode(os.fsencode(path) + b"/\xff")).touch(),
    "link to its own bytes": same_bytes_elsewhere,
    "folder that is a link": folder_elsewhere,
    "link to itself": in_place_of_weights(lambda path: path.symlink_to(path.name)),
    "FIFO": in_place_of_weights(os.mkfifo),
    "device": in_place_of_weights(lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))),
    "socket": in_place_of_weights(bind),
    "folder in place of a file": in_place_of_weights(Path.mkdir),
    "a FIFO as manifest": lambda path: ((path / MANIFEST).unlink(), os.mkfifo(path / MANIFEST)),
    "a link as manifest": lambda path: (
        (path / MANIFEST).rename(path.parent / "m"),
        (path / MANIFEST).symlink_to("../m"),
    ),
    "a sparse terabyte": lambda path: os.truncate(path / "weights.bin", 1 << 40),
    "folders without end": lambda path: os.makedirs(path / "/".join("d" * 40)),  # noqa: PTH103 - 40 levels
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_named(checkpoint: Path, kind: str) -> None:
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    DAMAGE[kind](checkpoint)
    reason(checkpoint)


def test_what_is_no_folder_is_torn(checkpoint: Path) -> None:
    link = checkpoint.with_name("step_00000501")
    link.symlink_to(checkpoint.name)
    for path in (link, checkpoint / "weights.bin", checkpoint.with_name("step_00000502")):
        reason(path)


def test_the_cheap_look_sees_sizes_and_names(checkpoint: Path) -> None:
    sealed = read(checkpoint, RUN)
    flip(checkpoint)
    assert sizes_match(sealed)
    os.truncate(checkpoint / "weights.bin", 3)
    assert not sizes_match(sealed)


def test_a_volume_in_trouble_is_not_a_torn_checkpoint() -> None:
    for code in (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EACCES, errno.EMFILE):
        assert isinstance(torn_by(OSError(code, "trouble")), Unreadable)
    for code in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
        assert not isinstance(torn_by(OSError(code, "shape")), Unreadable)


def test_what_would_not_be_read_back_is_not_written(checkpoint: Path) -> None:
    manifest = verify(checkpoint, RUN)
    for changes in ({"seq": 2**53 + 1}, {"epoch": 2**53 + 1}, {"name": "x"}, {"files": []}, {"base": "../x"}):
        with pytest.raises(ValueError, match="no checkpoint"):
            msgspec.structs.replace(manifest, **changes).encode()


def test_the_highest_number_is_not_the_end_of_publishing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    edit(put(run, 1, 500).path, seq=2**53)
    for step in (600, 700):
        assert put(run, 1, step).name == f"step_{step:08d}"
    assert [sealed.manifest.step for sealed in survey(run).line] == [700, 600, 500]
