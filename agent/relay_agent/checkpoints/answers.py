"""Which of an attempt's saves answer an order to save: those that were begun after it.

One that was begun before may become whole only then. Taken for the answer it would have the trainer stopped in the
middle of the real one.
"""

from __future__ import annotations

from collections.abc import Iterable


class Answers:
    """`count`: how many were published."""

    def __init__(self) -> None:
        self.count = 0
        self._own: set[str] | None = None  # in the trainer's own folder, by path
        self._staged: set[str] | None = None  # in the staging folder, by name; None: it is not known which had begun

    def asked(self) -> None:
        """Nothing counts until it is known what had begun."""
        self._own = self._staged = None

    def begun(self, own: Iterable[str], staged: Iterable[str]) -> None:
        """What had by then, and is not published. The other names of a save that goes on count as its last one."""
        self._own = set(own)
        self._staged = {name.lstrip(".").removesuffix(".tmp") for name in staged}

    def is_new(self, name: str) -> bool:
        """Whether that save, in either folder, was begun after the order."""
        return self._own is not None and self._staged is not None and name not in self._own | self._staged

    def taken(self, path: str, name: str) -> None:
        """From the trainer's own folder into the staging folder, as `name`."""
        if self._own is not None and self._staged is not None and path in self._own:
            self._own.discard(path)
            self._staged.add(name)

    def published(self, name: str) -> None:
        """From the staging folder, where another of that name may come now."""
        if self._staged is None:
            return
        if name in self._staged:
            self._staged.discard(name)
        else:
            self.count += 1
