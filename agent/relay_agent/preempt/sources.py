"""The one table of who gives notice before a pod is taken away. A new one is a module and a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from relay_agent.preempt.aws import Aws
from relay_agent.preempt.azure import Azure
from relay_agent.preempt.clues import Clues
from relay_agent.preempt.gcp import Gcp
from relay_agent.preempt.notice import Poller, Surroundings
from relay_agent.preempt.slurm import Slurm


class Source(NamedTuple):
    name: str
    here: Callable[[Clues], bool]
    poller: Callable[[Surroundings], Poller]
    grace: float
    """Seconds from a notice that names no time until the end."""
    at_most: float
    """A time further away than so many seconds is not believed: this pod's clock, or theirs, is wrong."""
    watches: str
    """What it looks at, for people."""


SOURCES = {
    source.name: source
    for source in (
        Source("slurm", lambda clues: clues.slurm, Slurm, 30.0, 3600.0, "SIGUSR1, and the job's time limit"),
        Source("aws", lambda clues: clues.aws, Aws, 120.0, 180.0, "EC2's spot notices"),
        Source("gcp", lambda clues: clues.gcp, Gcp, 30.0, 120.0, "Compute Engine's `preempted`"),
        Source("azure", lambda clues: clues.azure, Azure, 30.0, 900.0, "Azure's Scheduled Events"),
    )
}
"""By PREEMPT's names."""


def sources_of(choice: str, clues: Clues) -> list[Source]:
    """What PREEMPT=`choice` means here: with `auto`, all that are here (Slurm runs on rented machines, too)."""
    if choice == "auto":
        return [source for source in SOURCES.values() if source.here(clues)]
    return [SOURCES[choice]] if choice in SOURCES else []
