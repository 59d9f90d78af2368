"""The tables on a run's screen as data: its attempts, its checkpoints and where they are, and what is stored of it."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from relaytui.client import artifacts
from relaytui.client.words import steps_made
from relaytui.dashboard.format import ago, count, size
from relaytui.dashboard.glyphs import outcome
from relaytui.dashboard.ink import Piece
from relaytui.dashboard.widgets.pieces import Cell
from relaytui.dashboard.widgets.table import Column, Row
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow
from relaytui.wire.rows import AttemptRow, CheckpointRow
from relaytui.wire.text import clean

ATTEMPT_COLUMNS = (
    Column("epoch", "ep", 3, 1, grow=13, right=True),
    Column("outcome", "outcome", 12, 0, grow=9),
    Column("steps", "steps", 9, 2, grow=8, right=True),
    Column("worker", "worker", 8, 3, grow=12, name=True),
    Column("when", "when", 8, 4, right=True),
    Column("message", "why", 12, 5, grow=60),
)
CHECKPOINT_COLUMNS = (
    Column("name", "checkpoint", 13, 0, grow=12, name=True),
    Column("where", "where", 9, 1, grow=4, least=6),
    Column("size", "size", 7, 3, right=True),
    Column("files", "files", 5, 9, right=True),
    Column("epoch", "ep", 3, 8, grow=13, right=True),
    Column("when", "saved", 7, 2, right=True),
)
ARTIFACT_COLUMNS = (
    Column("name", "artifact", 13, 0, grow=24, name=True),
    Column("state", "state", 8, 1, grow=30),
    Column("size", "size", 7, 3, right=True),
    Column("when", "stored", 8, 2, right=True),
    Column("by", "by", 8, 4, grow=12, name=True),
    Column("content", "sha256", 8, 5),
)


def attempt_item(row: AttemptRow, last_step: int, now: float, silent: str = "") -> Row:
    """`silent`: what is said of its holder where that is not connected."""
    ended = row.ended_at
    plain = not row.ending or row.ending == row.outcome
    told = row.message if plain else f"{row.ending}: {row.message}"
    cells: tuple[Cell, ...] = (
        (Piece(str(row.epoch), "strong"),),
        (outcome(row.outcome, row.ending) if row.outcome or not silent else Piece(f"▲ {silent}", "warn"),),
        (Piece("→".join(steps_made(replace(row, last_step=last_step)))),),
        (Piece(clean(row.worker, 128)),),
        (Piece(ago(now - (ended if ended is not None else row.granted_at)), "muted"),),
        (Piece(clean(told, 300), "muted"),),
    )
    return Row(str(row.epoch), cells)


def checkpoints_shown(rows: Collection[CheckpointRow], stored: frozenset[str]) -> list[CheckpointRow]:
    """Those that can be had from somewhere, the newest first."""
    there = [row for row in rows if row.pruned_at is None or row.hub or row.name in stored]
    return sorted(there, key=lambda row: (-row.published_at, row.name))


def names_stored(rows: Collection[ArtifactRow]) -> frozenset[str]:
    """Of checkpoints that lie whole in the artifact store."""
    return frozenset(row.name for row in rows if row.kind is ArtifactKind.CHECKPOINT and not row.damaged)


def checkpoint_item(row: CheckpointRow, stored: frozenset[str], now: float) -> Row:
    gone = row.pruned_at is not None  # from the volume
    places = (("vol", not gone), ("hub", row.hub), ("store", row.name in stored))
    where = "+".join(word for word, there in places if there)
    where = "volume" if where == "vol" else where  # beside others there is no room for the whole word
    cells: tuple[Cell, ...] = (
        (Piece(clean(row.name, 128), "muted" if gone else "text"),),
        (Piece(where, "muted" if where == "volume" else "good"),),
        (Piece(size(row.bytes), "muted"),),
        (Piece(count(row.files), "muted"),),
        (Piece(str(row.epoch), "muted"),),
        (Piece(ago(now - row.published_at), "muted"),),
    )
    return Row(row.name, cells)


def artifact_item(row: ArtifactRow, now: float) -> Row:
    said, ink = artifacts.state(row, now), "text" if row.final else "muted"
    if row.damaged:
        said, ink = f"✗ {said}", "bad"
    elif row.verified_at is not None:
        ink = "good"
    cells: tuple[Cell, ...] = (
        (Piece(artifacts.titled(row)),),
        (Piece(said, ink),),
        (Piece(size(row.size), "muted"),),
        (Piece(ago(now - row.stored_at), "muted"),),
        (Piece(clean(row.by, 128), "muted"),),
        (Piece(clean(row.sha256, 64)[:8], "muted"),),
    )
    return Row(str(row.id), cells)
