"""Kinds of events that only the commander writes: what a pod calls by such a name is filed under `agent.`."""

from __future__ import annotations

FAMILIES = frozenset({"lease", "run", "worker", "order", "commander", "key", "state"})
"""First words of kinds that are the commander's, whatever follows them."""
DERIVED = frozenset({
    "checkpoint.published", "checkpoint.pruned", "checkpoint.listed", "artifact.stored", "artifact.deleted",
    "artifact.damaged", "artifact.mended",
})  # fmt: skip
"""Single kinds that follow from a report of another type; others of their family are for agents to say."""
SHARED = frozenset({"checkpoint.orphan", "hub.synced"})
"""Said by both, and meaning the same: a checkpoint that is not part of the run's line; one that is on the Hub."""

TOLD = frozenset({"run.forked"})
"""Kinds of those families that only the agent can know of."""


def is_commanders(kind: str) -> bool:
    if kind in TOLD:
        return False
    kind = kind.lower()
    return kind.partition(".")[0] in FAMILIES or kind in DERIVED


def filed(kind: str) -> str:
    """The kind under which an agent's event goes into the history."""
    return f"agent.{kind}"[:128] if is_commanders(kind) else kind
