"""Ids and names as they may appear on the wire and on the volume. Checked once, at the edge."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z"
"""One strict pattern for run ids, worker names and incarnations: a path component on any file system."""

Id = Annotated[str, Meta(pattern=ID_PATTERN, max_length=128)]
IdOrAll = Annotated[str, Meta(pattern=rf"^\*\Z|{ID_PATTERN}", max_length=128)]
"""`*` is all of them."""
Epoch = Annotated[int, Meta(ge=0, le=2**53)]
Seq = Annotated[int, Meta(ge=1, le=2**53)]
Count = Annotated[int, Meta(ge=0, le=2**53)]

_ID = re.compile(ID_PATTERN)


def is_id(text: str) -> bool:
    """Whether `text` may name a run, a worker or an incarnation."""
    return _ID.match(text) is not None


def step_name(step: int, epoch: int | None = None) -> str:
    """Name of a published checkpoint, `step_00000500`, or `step_00000500.e00000003` beside an earlier one."""
    return f"step_{step:08d}" if epoch is None else f"step_{step:08d}.e{epoch:08d}"


def shown(incarnation: str) -> str:
    """What others may see of an incarnation, and what names it on the volume and in the API. The value itself is its
    agent's and its commander's alone: who can say it is the holder of what it holds."""
    import hashlib  # the first frame of the dashboard needs ids, and not this

    return hashlib.sha256(b"relay incarnation " + incarnation.encode()).hexdigest()[:16]
