"""Small files of the state folder, as commander and clients have them: plain files only, and never without end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from relaytui.wire.errors import Exit, RelayError

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


def state_error(message: str, hint: str) -> RelayError:
    """Of a state folder that cannot be used."""
    return RelayError("state", message, hint, exit_code=Exit.STATE, status=503)


def unreadable(path: Path, error: OSError) -> RelayError:
    return state_error(
        f"{path} cannot be read: {error.strerror}", "check whose folder it is, or name another with --state"
    )


def private_folder(path: Path) -> None:
    """Makes the folder, and what is missing of the way to it, for its owner alone. One that is there stays as it is.

    `mkdir(parents=True)` gives its mode to the last folder only, and whoever comes first makes the state folder.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def must_be_plain(path: Path, *, follow: bool = False) -> bool:
    """Whether there is such a file; RelayError where something else has its name. Opens nothing: a FIFO would hang.

    `follow`: a link to a plain file is one too; for what is the user's own.
    """
    try:
        mode = path.stat(follow_symlinks=follow).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from None
    _refuse_strange(path, mode)
    return True


def first_bytes(path: Path, limit: int, *, follow: bool = False) -> bytes | None:
    """At most `limit` + 1 bytes, None where there is no such file; RelayError where it is no plain or readable one."""
    if not must_be_plain(path, follow=follow):
        return None
    try:
        # What has the name may have changed meanwhile: not waited for, and followed only where that is meant.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
        handle = os.open(path, flags)
        with os.fdopen(handle, "rb") as file:
            _refuse_strange(path, os.fstat(handle).st_mode)
            return file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def read_plain(path: Path, limit: int) -> bytes | None:
    """As `first_bytes`, whole: a file of more than `limit` bytes is an error."""
    data = first_bytes(path, limit)
    if data is not None and len(data) > limit:
        raise state_error(f"{path} is too large (over {limit:,} bytes)", "move it away: Relay writes a small one")
    return data


def append_plain(path: Path) -> BinaryIO:
    """To write at its end; its owner's alone where it is new. RelayError where something else has its name."""
    must_be_plain(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    try:
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        raise state_error(f"{path} cannot be written: {error.strerror}", "see its permissions and its disk") from None
    try:
        _refuse_strange(path, os.fstat(handle).st_mode)
        os.set_blocking(handle, True)
        return os.fdopen(handle, "ab")
    except BaseException:
        os.close(handle)
        raise


def _refuse_strange(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        raise state_error(f"{path} is {kind}, not a plain file", "move it away, or name another folder (--state)")
