"""Did the resume take? A trainer that cannot read its checkpoint starts from zero, and most say nothing of it.

Told by the first step that it prints, or the first checkpoint that it saves: below the one it was handed, it did not.
Where that checkpoint told no step itself, what counts is the one before it: its own may be a few off.
From then on nothing is pruned in this attempt: what it saves now may be worth less than what is there. A fork may have
another trainer, which takes the weights and counts its own steps: of it that is only said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from relay_agent.checkpoints.publish import Published
from relay_agent.process import say


class Prunes(Protocol):
    may_prune: bool


class Tell(Protocol):
    def published(self, checkpoint: Published) -> None: ...
    def pruned(self, name: str) -> None: ...
    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None: ...


class Resumed:
    """Records what a publisher does, and looks at it first. `step`, `name`: of the checkpoint that was handed over.
    `forked`: it is another run's. `floor`: who begins at or below that did not go on from it; None: below `step`."""

    def __init__(
        self, step: int, name: str | None, tell: Tell, *, forked: bool = False, floor: int | None = None
    ) -> None:
        self._step = step
        self._floor = step - 1 if floor is None else floor
        self._name = name
        self._tell = tell
        self._forked = forked
        self.ignored = False
        """The trainer did not go on from it, for all that it showed."""
        self.publisher: Prunes | None = None

    def stepped(self, first: int, told: bool) -> None:
        """The first step that was printed. `told`: an agent before this one has said what there is to say of it."""
        self._see(first, "began at step", told)

    def found(self, step: int) -> None:
        """A checkpoint that an agent before this one published in this attempt."""
        self._see(step, "saved at step", told=True)

    def published(self, checkpoint: Published) -> None:
        self._see(checkpoint.step, "saved at step", told=False)
        self._tell.published(checkpoint)

    def pruned(self, name: str) -> None:
        self._tell.pruned(name)

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None:
        self._tell.event(kind, message, data)

    def _see(self, step: int, did: str, told: bool) -> None:
        if self._name is None or step > self._floor or self.ignored:
            return
        self.ignored = True
        if self._forked:
            if not told:
                words = f"the trainer {did} {step}, below the {self._step} that the fork began with: it counts its own"
                self._tell.event("fork.counts_anew", words, {"step": str(step), "checkpoint": self._name})
            return
        if self.publisher is not None:
            self.publisher.may_prune = False
        if told:
            return
        words = f"the trainer {did} {step}, below the checkpoint's {self._step}: nothing is pruned any more"
        self._tell.event("resume.ignored", words, {"step": str(step), "checkpoint": self._name})
        say(f"the resume did not take: the trainer {did} {step}, not after {self._step}")
