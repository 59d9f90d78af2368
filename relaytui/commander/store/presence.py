"""Whether what is written is still what others find: SQLite writes on happily into a file that was deleted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from relaytui.wire.errors import RelayError
from relaytui.wire.files import state_error


class Presence:
    """Files that are open, by path; made right after they were opened. Those that are not there yet are not watched."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._marks = {path: mark for path in paths if (mark := _mark(path)) is not None}

    def trouble(self) -> RelayError | None:
        """What is wrong where one is gone, or another one is in its place."""
        for path, mark in self._marks.items():
            try:
                found = _mark(path)
            except OSError:
                continue  # a file system that does not answer is no word on what is there
            if found != mark:
                return state_error(
                    f"{path} was {'deleted' if found is None else 'replaced'} under the running commander: what agents "
                    "report would be lost, so it stops; runs train on",
                    "give the state folder back (`relay-tui restore FILE`) or start anew; agents then report again",
                )
        return None


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
