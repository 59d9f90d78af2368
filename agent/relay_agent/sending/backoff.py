"""How long to wait before something is tried again: any part of what doubles from failure to failure (full jitter)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


def full_jitter(rng: random.Random, failed: int, first: float, longest: float) -> float:
    """Seconds, after the first failure (`failed` 0) up to `first` of them."""
    return rng.uniform(0.0, min(longest, first * 2.0 ** min(failed, 60)))


@dataclass(frozen=True)
class Backoff:
    """In the child: requests that are made again at once, before it is the agent's to say when."""

    tries: int = 6
    """In a row that bring nothing; then it is given up."""
    first: float = 0.5
    longest: float = 8.0
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)

    def again(self, failed: int, error: Exception) -> None:
        """Returns when it is time for another try; raises `error` where `failed` in a row are enough."""
        if failed >= self.tries:
            raise error
        self.sleep(full_jitter(self.rng, failed - 1, self.first, self.longest))
