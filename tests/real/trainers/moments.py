"""Where a trainer stands still and waits to be killed: at a step, or in the midst of a save.

HOLD_AT is a pattern of what happens and which time of that: `end checkpoint-\\d+/optimizer.pt 2`. What happens:

- `step`: before the pause of one,
- `open PATH` for writing, and `rename PATH` to it: before either is done,
- `end PATH`: an archive (torch's, a zip) is written but for its directory; of what was written the disk has a part.

A path is that below RELAY_OUTPUT_DIR. The process that comes there says so in the file HOLD_MARK, and stops with all
its threads; at a step it waits: what was saved before has to keep still beside a trainer that is not stopped.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

OUTPUT = os.environ.get("RELAY_OUTPUT_DIR", "") + "/"
PATTERN, _, NUMBER = os.environ.get("HOLD_AT", "").rpartition(" ")
seen: Counter[str] = Counter()


def happens(what: str, path: object = None) -> None:
    if path is not None:
        where = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if not isinstance(where, str) or not where.startswith(OUTPUT):
            return
        what = f"{what} {where.removeprefix(OUTPUT)}"
    if not PATTERN or not re.fullmatch(PATTERN, what):
        return
    seen[PATTERN] += 1
    if seen[PATTERN] == int(NUMBER):
        Path(os.environ["HOLD_MARK"]).write_text(what)
        while what == "step":
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGSTOP)


def audit(event: str, given: tuple[object, ...]) -> None:
    if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR):
        happens("open", given[0])
    elif event == "os.rename":
        happens("rename", given[1])


def of_archives() -> None:
    """Those that Python's zipfile writes, and torch's, whose files no audit event tells of."""
    close = zipfile.ZipFile.close

    def closing(self: zipfile.ZipFile) -> None:
        if self.fp is not None and self.mode == "w":
            happens("end", self.filename)
        close(self)

    zipfile.ZipFile.close = closing
    if "torch" in sys.modules:
        from torch import serialization

        writer = serialization._open_zipfile_writer_file
        leave = writer.__exit__

        def leaving(self: writer, *why: object) -> None:
            happens("end", self.name)
            leave(self, *why)

        writer.__exit__ = leaving


if PATTERN:
    sys.addaudithook(audit)
    of_archives()
