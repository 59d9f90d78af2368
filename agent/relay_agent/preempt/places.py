"""How long a pod has after SIGTERM, by where it runs. None of these says so to the pod itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from relay_agent.preempt.clues import Clues


class Place(NamedTuple):
    name: str
    here: Callable[[Clues], bool]
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    why: str


PLACES = (
    Place("slurm", lambda clues: clues.slurm, 30.0, "KillWait, unless its administrator set another"),
    Place("runpod", lambda clues: clues.has("RUNPOD_POD_ID"), 5.0, "what a spot pod gets"),
    Place("vast", lambda clues: clues.has("VAST_CONTAINERLABEL"), 10.0, "docker's own; an outbid pod gets no signal"),
    Place("lium", lambda clues: clues.has("LIUM_POD_ID", "LIUM_POD_NAME"), 30.0, "its graceful stop"),
    Place(
        "gke",
        lambda clues: clues.gcp and clues.has("KUBERNETES_SERVICE_HOST"),
        15.0,
        "what pods of a reclaimed node get",
    ),
    Place("kubernetes", lambda clues: clues.has("KUBERNETES_SERVICE_HOST"), 30.0, "terminationGracePeriodSeconds"),
    Place("docker", lambda clues: clues.container and clues.first, 10.0, "docker stop without --time"),
)
"""The first that is here counts: RunPod and Vast are containers, too."""


def place_of(clues: Clues) -> Place | None:
    """None: a machine of its own, which nobody takes away after a signal."""
    return next((place for place in PLACES if place.here(clues)), None)
