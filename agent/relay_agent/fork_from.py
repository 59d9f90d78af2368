"""FORK_FROM: which checkpoint of another run a new one begins with. Pure.

`run-7@500` is step 500 of a run on the same volume and `run-7` its newest; `hf:owner/name@step-500` is what has that
tag in a repository on the Hub, and `hf:owner/name` the newest there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from relaytui.wire.ids import is_id

_STEP = re.compile(r"[0-9]{1,15}\Z")


@dataclass(frozen=True)
class ForkFrom:
    text: str
    """As it was given."""
    run_id: str = ""
    step: int | None = None
    repo: str = ""
    tag: str = ""

    @classmethod
    def parse(cls, text: str) -> ForkFrom | None:
        """None where it is none of these."""
        name, at, which = text.removeprefix("hf:").partition("@")
        if at and not which:
            return None
        if text.startswith("hf:"):
            from relay_agent.hub.layout import repo_trouble, step_of

            good = not repo_trouble(name) and (not which or step_of(which) is not None)
            return cls(text, repo=name, tag=which) if good else None
        if not is_id(name) or (which and not _STEP.match(which)):
            return None
        return cls(text, run_id=name, step=int(which) if which else None)
