"""Claims that say nothing any more: said, and set aside. Their epochs stay claimed (`volume.claimed_epochs`)."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.disk import SYSTEM, Disk, names, sync_folder
from relay_agent.volume.claims import Spoilt
from relay_agent.volume.volume import CLAIM_NAME, RunFolder, check_claim


def set_aside(run: RunFolder, below: int, disk: Disk = SYSTEM) -> list[str]:
    """What there is to say of claims of epochs under `below` that say nothing: each in words, with where it lies now.

    For the holder of epoch `below` only: the claim of a later one may be half written. Blocking.
    """
    said: list[str] = []
    with suppress(FileNotFoundError):
        for name in sorted(names(run.claims)):
            match = CLAIM_NAME.match(name)
            if match is None or match[2] or not 0 < int(match[1]) < below:
                continue
            epoch = int(match[1])
            why, gone = _wrong(run, name, epoch)
            if gone:
                why += f"; it is kept in {_moved(run, name, disk)}"
            if why:
                said.append(f"the claim of epoch {epoch} is not heeded: {why}")
    return said


def _wrong(run: RunFolder, name: str, epoch: int) -> tuple[str, bool]:
    """Why it says nothing, empty where it does say something; and whether that is for ever: a volume in trouble may
    read again."""
    try:
        check_claim(run, epoch)
    except FileNotFoundError:
        return "", False
    except Spoilt as spoilt:
        return str(spoilt), True
    except OSError as error:
        with suppress(OSError):
            if not stat.S_ISREG(os.lstat(run.claims / name).st_mode):
                return "it is no plain file", True
        if error.strerror:
            return f"it cannot be read: {error.strerror}", False
        return f"it does not read: {error}", True
    return "", False


def _moved(run: RunFolder, name: str, disk: Disk) -> Path:
    """Where it lies now."""
    target, number = run.claims / f"{name}.damaged", 2
    while os.path.lexists(target):
        target, number = run.claims / f"{name}.damaged.{number}", number + 1
    try:
        disk.rename(run.claims / name, target)
        sync_folder(disk, run.claims)
    except OSError:  # it is still not heeded
        return target if os.path.lexists(target) else run.claims / name
    return target
