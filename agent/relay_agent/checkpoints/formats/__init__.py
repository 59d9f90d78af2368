"""Whether the files of a checkpoint are whole, told by their own bytes: nothing is unpickled, loaded or changed.

What kind a file is says its name, and its first bytes where the name leaves it open. Each kind has a module with one
`check`. A cheap check reads both ends, headers and directories; a deep one also every sum that the file itself holds.
Memory is bounded by the limits named in each module, and time by them too, or by the size of the file for a deep one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from relay_agent.checkpoints.disk import folder, open_file
from relay_agent.checkpoints.formats import dcp, hdf5, json_text, pickled, safetensors, torch_zip
from relay_agent.checkpoints.formats.span import Span
from relay_agent.checkpoints.tree import Check, Found, Torn, never, torn_by

__all__ = ["Files", "check_file", "check_files"]

_ARCHIVES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".keras", ".npz")
_INDEX = (".safetensors.index.json", ".bin.index.json")
_HDF5 = (".h5", ".hdf5")
_NEVER_EMPTY = (".safetensors", dcp.METADATA, dcp.SUFFIX, *_HDF5)
_NEVER_ZEROS = (*_NEVER_EMPTY, ".pt", ".pth", ".json")
"""Ends of names that say what form a file has. Many call a file of their own form `.bin`."""
_SAMPLE = 4096
"""Bytes at each end that tell a file that was never written: all NUL after power loss, or on some mounts."""


def check_file(file: int | str | os.PathLike[str], deep: bool = False, *, name: str = "", poll: Check = never) -> None:
    """Torn, with the reason, where a file is not whole. `file`: a path, or a descriptor and the `name` it has.

    By its path the files that an index or `.metadata` names are looked at too, beside it. Links, FIFOs and devices are
    refused. Unreadable where the volume failed. `poll` is asked before every chunk, and may raise Cancelled.
    """
    if isinstance(file, int):
        _check(Span.of(file), name, deep, poll, None)
        return
    path = Path(file)
    with ExitStack() as stack:
        try:
            root = stack.enter_context(folder(path.parent))
        except OSError as error:
            raise torn_by(error) from error
        Files(root, deep, poll).check(path.name)


def check_files(
    root: int, files: Iterable[Found], deep: bool = False, poll: Check = never, *, any_form: bool = False
) -> None:
    """Torn unless each of them, all below the folder open as `root`, is whole and has what it refers to. `any_form`:
    nobody knows whose they are. Their pickles may go on behind their ends, their indices be copies of another model's,
    and those whose names promise nothing may be empty, or all zeros."""
    checked = Files(root, deep, poll, any_form=any_form)
    for found in files:
        checked.check(found.path)


class Files:
    """Checks files below a folder open as `root`, each once, however many others refer to it."""

    def __init__(self, root: int, deep: bool = False, poll: Check = never, *, any_form: bool = False) -> None:
        self.any_form = any_form
        self._root = root
        self._deep = deep
        self._poll = poll
        self._sizes: dict[str, int] = {}  # of those that passed

    def check(self, path: str) -> int:
        """The size in bytes of the file at `path` (relative, `/` between parts). Torn where it is not whole."""
        if path not in self._sizes:
            self._sizes[path] = self._with(path, self._one)
        return self._sizes[path]

    def pieces(self, path: str, pieces: Iterable[tuple[int, int]]) -> None:
        """Torn unless each stretch (offset, length) of the file is a whole archive, where it is one at all."""

        def each(span: Span, _: str) -> int:
            for offset, length in pieces:
                part = span.part(offset, length)
                if part.head(4) == torch_zip.MAGIC:
                    torch_zip.check(part, True, self._poll)
            return span.size

        self._with(path, each)

    def _one(self, span: Span, path: str) -> int:
        _check(span, path, self._deep, self._poll, self)
        return span.size

    def _with(self, path: str, look: Callable[[Span, str], int]) -> int:
        try:
            self._poll()
            fd = open_file(self._root, path)
            try:
                return look(Span.of(fd), path)
            finally:
                os.close(fd)
        except OSError as error:
            torn = torn_by(error)
            raise type(torn)(f"{path!a}: {torn.reason}") from error
        except Torn as torn:
            if torn.reason.startswith(("'", '"')):  # of a file that this one refers to
                raise
            raise type(torn)(f"{path!a}: {torn.reason}") from None


def _check(span: Span, path: str, deep: bool, poll: Check, files: Files | None) -> None:
    where, _, name = path.rpartition("/")
    if not any(span.head(_SAMPLE)) and not any(span.tail(_SAMPLE)):
        if files and files.any_form and not name.endswith(_NEVER_ZEROS if span.size else _NEVER_EMPTY):
            return
        raise Torn("it holds nothing but zeros" if span.size else "it is empty")
    head = span.head(len(pickled.LEGACY))
    if name.endswith(".safetensors"):
        safetensors.check(span, poll)
    elif name.endswith(_INDEX) and not (files and files.any_form):
        for shard in safetensors.index_names(span, poll):
            _beside(files, where, shard)
    elif name == dcp.METADATA:
        _check_dcp(dcp.needed(span, deep, poll), where, files)
    elif name.endswith(dcp.SUFFIX):
        if torch_zip.MAGIC.startswith(head[:4]):
            torch_zip.check(span, False, poll, last_of_many=True)
    elif head[:8] == hdf5.MAGIC or name.endswith(_HDF5):
        if head[:8] != hdf5.MAGIC[: len(head)]:
            raise Torn("it does not begin as HDF5")
        hdf5.check(span)
    elif head[:4] == torch_zip.MAGIC:
        torch_zip.check(span, deep, poll, last_of_many=not name.endswith(_ARCHIVES))
    elif files and files.any_form and not name.endswith(".json"):
        return
    elif name.endswith(_ARCHIVES) and (torch_zip.MAGIC.startswith(head) or _is_pickle(head)):
        pickled.check(span, poll)  # or the first bytes of an archive, which are no pickle either
    elif name.endswith(".json"):
        json_text.check(span, deep, poll)


def _is_pickle(head: bytes) -> bool:
    """Protocol 2 and above say what they are; or there is no more of it than its first byte."""
    return head[:1] == b"\x80" and (len(head) == 1 or 2 <= head[1] <= 5)


def _check_dcp(needed: dict[str, dcp.Needed], where: str, files: Files | None) -> None:
    for name, need in needed.items():
        size = _beside(files, where, name)
        if need.size is not None and size is not None and size != need.size:
            raise Torn(f"{name!a} has {size} bytes, and not {need.size}")
        if need.pieces and files is not None:
            files.pieces(f"{where}/{name}".lstrip("/"), need.pieces)


def _beside(files: Files | None, where: str, name: str) -> int | None:
    """The size of a file that another one, in the folder `where`, needs; None where only a descriptor is known."""
    parts = name.split("/")
    index = parts[-1] == dcp.METADATA or name.endswith(_INDEX)  # one that refers to itself, or a long chain of them
    if index or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise Torn(f"it refers to {name!a}, which is no file beside it")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Torn(f"it refers to {name!a}, which is not UTF-8") from None
    return files.check(f"{where}/{name}".lstrip("/")) if files is not None else None
