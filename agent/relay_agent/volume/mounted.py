"""Whether the run's folder is still where it was: volumes get unmounted under a trainer that saves.

One that is back may be another device by its number (NFS, FUSE, a loop device): it is known by the claim of the epoch
and the staging folder, where something is mounted as it was. What the disk below holds is never taken for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.disk import names
from relay_agent.checkpoints.staging import STEP
from relay_agent.volume.claims import Claim
from relay_agent.volume.volume import RunFolder, read_claim

_UNMOUNTED = " is on another device than at the start: the volume is not mounted any more"
_PAST = (
    (_UNMOUNTED, " was on another device: the volume was not mounted"),
    (" cannot be reached: ", " could not be reached: "),
    (" is no folder any more", " was no folder"),
    (" is gone", " was gone"),
)


class Mounted:
    """Of one attempt. Blocking. `lstat`: as that of `os`."""

    def __init__(self, folder: RunFolder, epoch: int, lstat: Callable[[Path], os.stat_result] = os.lstat) -> None:
        self._folder = folder
        self._epoch = epoch
        self._lstat = lstat
        self._staging = folder.staging(epoch)
        self._places = (folder.root, folder.claims, folder.ckpt, self._staging.parent, self._staging)
        self._devices: dict[Path, int] = {}  # as of the last look at which nothing was missing
        self._claim: Claim | None = None
        self._mount = Path()

    def begin(self) -> None:
        """What lies there now is on the volume."""
        self.missing()

    def missing(self) -> str:
        """What of the run's folder is not where it was, or nothing. A volume that was unmounted leaves an empty folder,
        or one of another device in which a trainer may have made its folders anew."""
        devices: dict[Path, int] = {}
        for path in self._places:
            try:
                found = self._lstat(path)
            except FileNotFoundError:
                if path == self._staging:  # a trainer that removed it makes it anew when it saves
                    continue
                return f"{path} is gone"
            except OSError as error:
                return f"{path} cannot be reached: {error.strerror or error}"
            if not stat.S_ISDIR(found.st_mode):
                return f"{path} is no folder any more"
            devices[path] = found.st_dev
        moved = next((path for path in devices if devices[path] != self._devices.get(path, devices[path])), None)
        if moved is not None and not self._is_back(devices):
            return f"{moved}{_UNMOUNTED}"
        if moved is not None or not self._devices:
            self._claim, self._mount = read_claim(self._folder, self._epoch), self._mount_point()
        self._devices = devices
        return ""

    def _is_back(self, devices: dict[Path, int]) -> bool:
        """Whether the volume is what is mounted there."""
        if not self._devices.keys() <= devices.keys():
            return False
        pairs = {(before, devices[path]) for path, before in self._devices.items()}
        alike = len(pairs) == len({before for before, _ in pairs}) == len({now for _, now in pairs})
        if not (alike and self._mount_point() == self._mount):
            return False
        return self._claim is not None and read_claim(self._folder, self._epoch) == self._claim

    def _mount_point(self) -> Path:
        """Of what the run's folder lies on."""
        path = self._folder.root.resolve()
        with suppress(OSError):
            while path != path.parent and self._lstat(path.parent).st_dev == self._lstat(path).st_dev:
                path = path.parent
        return path

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
