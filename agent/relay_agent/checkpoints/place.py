"""Whether CHECKPOINT_DIR can be where a trainer saves: a folder of its own, neither the whole machine nor what Relay
keeps on the volume, where the checkpoints of other runs lie."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from relay_agent.config import Settings
from relaytui.wire.errors import Exit, RelayError

_NOBODYS = tuple(map(Path, ("/proc", "/sys")))
_LONGEST = 255
_ALL = tuple(map(Path, ("/", "/dev")))


def refuse_place(settings: Settings) -> None:
    """RelayError (exit 2) where nothing that lies there could be told for this run's. Blocking."""
    if settings.checkpoint_dir == Path() or settings.checkpoints == "none":
        return
    try:
        what = _trouble(settings)
    except (OSError, ValueError, RuntimeError) as error:
        what = f"cannot be reached: {getattr(error, 'strerror', None) or error}"
    if what:
        text = str(settings.checkpoint_dir)
        raise RelayError(
            "bad_checkpoint_dir",
            f"CHECKPOINT_DIR {text if len(text) <= 200 else text[:200] + '…'} {what}",
            "name the folder that the trainer saves its checkpoints in; unset, it is RELAY_OUTPUT_DIR",
            exit_code=Exit.USAGE,
        )


def _trouble(settings: Settings) -> str:
    """What is wrong with it, as words that follow its name; "": nothing."""
    path, run = settings.checkpoint_dir, settings.l1_root / "runs" / settings.run_id
    if any(part.startswith("$") for part in path.parts):
        return "holds a variable, and nobody puts its value there"
    if not path.is_absolute():  # in a folder that is not there yet
        if any(len(os.fsencode(part)) > _LONGEST for part in path.parts):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return ""
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return "is not a folder"
    except NotADirectoryError:
        return "is not a folder"
    except FileNotFoundError:
        if path.is_symlink():
            return "is a link that leads nowhere"
    real = Path(os.path.realpath(path))
    if real in _ALL or any(real.is_relative_to(each) for each in _NOBODYS):
        return "is the system's, and no trainer's own folder"
    ours = Path(os.path.realpath(run))
    if real == ours.parent:
        return "is where the checkpoints of all runs lie"
    if real.is_relative_to(ours.parent) and not real.is_relative_to(ours):
        return "is where another run's checkpoints lie"
    if real == ours or any(real.is_relative_to(ours / name) for name in ("ckpt", "claims", "logs", "hf")):
        return "is Relay's own, where it keeps what it publishes and knows of the run"
    return ""
