"""A trainer's folder that is a link to another disk: nothing is taken through a link, and its operator should hear of
that before all is lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints import adapters
from relay_agent.checkpoints.adapters.base import Adapter, Memory
from relay_agent.checkpoints.adapters.view import MAX_NAMES, view_of

LINKS_EVERY = 60.0
"""Seconds from one look for them to the next."""
_MAX_LINKS = 16


def linked(root: Path, kinds: tuple[Adapter, ...]) -> Iterator[tuple[str, str]]:
    """Links in `root` that lead out of it to where checkpoints of `kinds` lie: their names, and why nothing is taken
    there. Blocking; OSError where there is no such folder."""
    own = Path(os.path.realpath(root))
    with os.scandir(root) as entries:
        links = (entry.name for entry in itertools.islice(entries, MAX_NAMES) if entry.is_symlink())
        for name in sorted(itertools.islice(links, _MAX_LINKS)):
            with suppress(OSError, ValueError):
                real = Path(os.path.realpath(root / name))
                if real.is_relative_to(own) or own.is_relative_to(real) or not real.is_dir():
                    continue
                with view_of(real, adapters.is_checkpoint) as there:
                    holds = next(adapters.find(there, kinds, Memory()), None) is not None
                if holds or any(kind.is_mine(name) for kind in kinds):
                    yield name, f"it is a link to {real}, and none is followed; CHECKPOINT_DIR can name that folder"
