"""What goes beside a checkpoint: texts and the ends of journals without what is secret, other files as they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from relay_agent.hub.far.remote import File
from relay_agent.hub.protocol import Beside
from relay_agent.secret_words import scrub, scrub_lines


def content(each: Beside, there: Mapping[str, File]) -> bytes | Path | None:
    """None where there is none, or the repository (`there`) has it already."""
    if not each.file:
        return scrub(each.text).encode()
    with suppress(OSError, ValueError):
        fd = os.open(each.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return None
            if each.tail:
                return scrub_lines(last_lines(file, found.st_size, each.tail))
            if each.path not in there or there[each.path].size != found.st_size:
                return Path(each.file)
    return None


def last_lines(file: BinaryIO, size: int, most: int) -> bytes:
    """The last whole lines of a file, as many as go into `most` bytes."""
    file.seek(max(0, size - most))
    data = file.read(most)
    if size > most:
        data = data.partition(b"\n")[2]
    return data[: data.rfind(b"\n") + 1]
