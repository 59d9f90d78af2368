"""What is said of an artifact: the same in the dashboard and in the shell."""

from __future__ import annotations

from relaytui.client.words import ago
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.text import clean


def state(row: ArtifactRow, now: float) -> str:
    """What is wrong with it, or what is known of it; `whole` where that is only that nothing is wrong."""
    if row.damaged:
        return f"damaged: {clean(row.damaged, 200)}"
    verified = "" if row.verified_at is None else f"verified {ago(now - row.verified_at)}"
    return ", ".join(word for word in ("final" if row.final else "", verified) if word) or "whole"


def titled(row: ArtifactRow) -> str:
    """Its name, of a file with the step that it is of: a checkpoint's manifest is called like all others."""
    name = clean(row.name, 128)
    return f"{name} of step {row.step}" if row.kind is ArtifactKind.FILE and row.step is not None else name
