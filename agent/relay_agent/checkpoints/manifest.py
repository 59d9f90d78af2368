"""The manifest: what makes a folder a checkpoint. Written last; everything about a checkpoint is read from it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from relay_agent.checkpoints.disk import folder, read_file
from relay_agent.checkpoints.formats import once
from relay_agent.checkpoints.tree import Check, Torn, Tree, hash_files, never, torn_by, walk
from relay_agent.checkpoints.unfinished import UNFINISHED
from relaytui.wire.ids import Count, Epoch, Id, Seq, step_name
from relaytui.wire.text import counted

__all__ = ["MANIFEST", "VERSION", "FileEntry", "Manifest", "Sealed", "Torn", "read", "sizes_match", "verify"]

MANIFEST = "manifest.json"
SEALING = f".{MANIFEST}.tmp"
"""What becomes the manifest. An object store copies it before it goes: both may be there where that was interrupted."""
OURS = (MANIFEST, SEALING, UNFINISHED)
"""Top-level names that are no part of what was saved."""
VERSION = 1
MAX_BYTES = 64 << 20
MAX_SEQ = 2**53
"""As the wire has it."""
MAX_TIME = 2**63 - 1
NAME = re.compile(r"step_[0-9]{8,16}(\.e[0-9]{8,16}(\.[0-9]{1,6})?)?\Z")
"""Names a published checkpoint can have. Nothing else in `ckpt/` is ever looked at."""


class FileEntry(Struct, frozen=True, order=True):
    path: Annotated[str, Meta(min_length=1, max_length=4096)]  # relative, `/` between parts
    size: Count
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Origin(Struct, frozen=True):
    """The checkpoint of another run that a fork begins with."""

    run_id: Id
    name: Id
    step: Count
    epoch: Epoch
    manifest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]  # its SHA-256
    repo: str = ""  # on the Hub, and the tag there; empty: it lay on the same volume
    tag: str = ""


class Manifest(Struct, frozen=True):
    relay_manifest: int  # version of this format
    run_id: Id
    name: Id
    step: Count
    epoch: Epoch
    seq: Seq  # order of publishing within the run
    base: Id | None  # name of the one before it in the line
    mode: str
    trainer: str
    adapter: str
    world_size: int | None
    created_at: float  # seconds since 1970; shown, never compared
    files: list[FileEntry]  # sorted by path
    saved_by: Epoch | None = None  # the attempt that saved it, where a later one (`epoch`) published it
    healthy: bool = True  # False: saved while the loss was nan, inf, diverging, or not known to the end
    marks: bool | None = None  # whether its trainer marks with COMPLETE what is whole; None: nobody knew
    metrics: dict[str, float] = {}  # as they were told last when it was saved; of what pruning goes by
    heard: bool = False  # it tells no step: this is the last that was heard of when it changed last
    saved_at: Annotated[int, Meta(ge=0, le=MAX_TIME)] = 0  # when, in nanoseconds on its trainer's clock; 0: not known
    forked_from: Origin | None = None  # of the first one of a fork, which is a copy of that

    @property
    def maker(self) -> int:
        """The epoch whose trainer saved it."""
        return self.saved_by or self.epoch

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Its file; ValueError where no agent would read it back."""
        data = msgspec.json.encode(self)
        try:
            decode(data)
        except Torn as torn:
            raise ValueError(f"this would be no checkpoint: {torn.reason}") from None
        return msgspec.json.format(data, indent=1) + b"\n"


@dataclass(frozen=True)
class Sealed:
    """A manifest as it lies in its folder."""

    manifest: Manifest
    sha256: str  # of the manifest file itself
    path: Path

    @property
    def name(self) -> str:
        return self.manifest.name


def decode(data: bytes) -> Manifest:
    """A manifest and nothing loose in it, or Torn."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
        once.check(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Torn(f"its manifest does not read: {error}") from None
    if manifest.relay_manifest != VERSION:
        raise Torn(f"its manifest has version {manifest.relay_manifest}, this agent reads {VERSION}")
    if not (NAME.match(manifest.name) and manifest.name.split(".")[0] == step_name(manifest.step)):
        raise Torn(f"its manifest names {manifest.name!a} for step {manifest.step}")
    if manifest.total_bytes == 0:
        raise Torn("it holds no data")
    before = ""
    for file in manifest.files:
        if not _is_inside(file.path):
            raise Torn(f"its manifest lists {file.path[:200]!a}, which is no path inside it")
        if file.path <= before:
            raise Torn(f"its manifest lists {file.path[:200]!a} out of order or twice")
        before = file.path
    return manifest


def _is_inside(path: str) -> bool:
    return "\0" not in path and path != MANIFEST and all(part not in ("", ".", "..") for part in path.split("/"))


def read(path: Path, run_id: str | None = None) -> Sealed:
    """The manifest in the folder `path`; Torn where there is none that could be this folder's. Hashes nothing."""
    try:
        with folder(path) as root:
            return _read(root, path, run_id)
    except OSError as error:
        raise torn_by(error) from None


def sizes_match(sealed: Sealed) -> bool:
    """Whether every listed file is there with its size, and no other: the cheap half of `verify`."""
    try:
        compare_sizes(sealed)
    except (Torn, OSError):
        return False
    return True


def compare_sizes(sealed: Sealed) -> None:
    """Torn where one is not; OSError, or Unreadable, where the volume does not tell."""
    with folder(sealed.path) as root:
        _compare(sealed.manifest, walk(root, ignore=OURS))


def verify(path: Path, run_id: str | None = None, check: Check = never) -> Manifest:
    """The manifest of a whole checkpoint, every byte of which was read; Torn with the reason otherwise.

    Unreadable, a kind of Torn, where the volume failed. `run_id`: the run it must belong to, if given. Nothing is
    unpickled, no link is followed.
    """
    try:
        with folder(path) as root:
            manifest = _read(root, path, run_id).manifest
            tree = walk(root, ignore=OURS)
            _compare(manifest, tree)
            hashes = hash_files(root, tree.files, check=check)
    except OSError as error:
        raise torn_by(error) from None
    for file in manifest.files:
        if hashes[file.path] != file.sha256:
            raise Torn(f"{file.path!a} is not what was saved: its hash differs")
    return manifest


def _read(root: int, path: Path, run_id: str | None) -> Sealed:
    try:
        data = read_file(root, MANIFEST, MAX_BYTES)
    except FileNotFoundError:
        raise Torn("it has no manifest") from None
    manifest = decode(data)
    if manifest.name != path.name:
        raise Torn(f"its manifest belongs to {manifest.name!a}")
    if run_id is not None and manifest.run_id != run_id:
        raise Torn(f"its manifest belongs to the run {manifest.run_id}")
    return Sealed(manifest, hashlib.sha256(data).hexdigest(), path)


def _compare(manifest: Manifest, tree: Tree) -> None:
    listed = {file.path: file.size for file in manifest.files}
    for found in tree.files:
        size = listed.pop(found.path, None)
        if size is None:
            raise Torn(f"{found.path!a} is not in its manifest")
        if size != found.size:
            raise Torn(f"{found.path!a} has {counted(found.size, 'byte')}, not {size:,}")
    if listed:
        raise Torn(f"{min(listed)!a} is missing")


def free_name(ckpt: Path, step: int, epoch: int, taken: Collection[str] = ()) -> str:
    """A name nothing in `ckpt` has, nor is `taken`: `step_N`, else `step_N.eE`, else `step_N.eE.2`, …"""
    name = step_name(step)
    suffix = 1
    while name in taken or os.path.lexists(ckpt / name):
        name = step_name(step, epoch) + (f".{suffix}" if suffix > 1 else "")
        suffix += 1
    return name
