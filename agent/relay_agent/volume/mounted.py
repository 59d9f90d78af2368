"""Whether the run's folder is still where it was: volumes get unmounted under a trainer that saves."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.disk import names
from relay_agent.checkpoints.staging import STEP
from relay_agent.volume.volume import RunFolder

_UNMOUNTED = " is on another device than at the start: the volume is not mounted any more"
_PAST = (
    (_UNMOUNTED, " was on another device: the volume was not mounted"),
    (" cannot be reached: ", " could not be reached: "),
    (" is no folder any more", " was no folder"),
    (" is gone", " was gone"),
)


class Mounted:
    """Of one attempt. Blocking."""

    def __init__(self, folder: RunFolder, epoch: int) -> None:
        self._staging = folder.staging(epoch)
        self._places = (folder.root, folder.claims, folder.ckpt, self._staging)
        self._devices: dict[Path, int] = {}

    def begin(self) -> None:
        """What lies there now is on the volume."""
        for path in self._places:
            with suppress(OSError):
                self._devices[path] = os.lstat(path).st_dev

    def missing(self) -> str:
        """What of the run's folder is not where it was, or nothing. A volume that was unmounted leaves an empty folder,
        or one of another device in which a trainer may have made its folders anew."""
        for path in self._places:
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                return f"{path} is gone"
            except OSError as error:
                return f"{path} cannot be reached: {error.strerror or error}"
            if not stat.S_ISDIR(found.st_mode):
                return f"{path} is no folder any more"
            if found.st_dev != self._devices.get(path, found.st_dev):
                return f"{path}{_UNMOUNTED}"
        return ""

    def saved_elsewhere(self) -> list[str]:
        """What lies where the trainer saves, wherever that leads by now."""
        try:
            return [name for name in names(self._staging) if STEP.match(name)]
        except OSError:
            return []


def past(missing: str) -> str:
    """What was `missing`, once it is there again. A path in it may hold the same words: it comes first."""
    for now, then in _PAST:
        path, found, rest = missing.rpartition(now)
        if found:
            return f"{path}{then}{rest}"
    return missing
