"""What is said of an artifact: the same in the dashboard and in the shell."""

from __future__ import annotations

from collections.abc import Iterable

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


def lost_with(row: ArtifactRow, others: Iterable[ArtifactRow]) -> list[str]:
    """What is lost beside an artifact that is deleted, a sentence each. `others`: of its run; itself may be among them.

    An agent that restores asks for the manifest first. A checkpoint that is deleted takes its own along.
    """
    if row.kind is not ArtifactKind.FILE:
        return []
    here = [each for each in others if each.run_id == row.run_id and each.id != row.id and not each.damaged]
    if any(each.kind is row.kind and (each.name, each.sha256) == (row.name, row.sha256) for each in here):
        return []
    return [
        f"No agent can restore checkpoint {clean(each.name, 128)} (artifact {each.id}) without it; what is left is"
        f" `relay-tui artifacts fetch {each.id} --extract FOLDER`."
        for each in here
        if each.kind is ArtifactKind.CHECKPOINT and each.manifest_sha256 == row.sha256
    ]
