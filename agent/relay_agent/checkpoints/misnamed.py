"""A kind that CHECKPOINTS names while the trainer writes another: nothing is taken then, and its operator should hear
of it before all is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from relay_agent.checkpoints import adapters
from relay_agent.checkpoints.adapters.base import Adapter, Memory
from relay_agent.checkpoints.adapters.view import View

_MOST = 3


def misnamed(view: View, kinds: tuple[Adapter, ...]) -> Iterator[tuple[str, str]]:
    """Whole checkpoints of other kinds than `kinds`, a few: where they lie, and why none is taken. Blocking."""
    others = tuple(kind for kind in adapters.KINDS if kind not in kinds)
    named, memory = ", ".join(kind.name for kind in kinds), Memory()
    found = {
        seen.candidate.path: f"it is one of {seen.adapter.name}, and CHECKPOINTS names {named}"
        for seen in reversed(list(adapters.find(view, others, memory)))
        if not seen.adapter.missing(view, seen.candidate, memory)
    }
    yield from itertools.islice(sorted(found.items()), _MOST)
