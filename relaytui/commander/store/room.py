"""Room in telemetry.db: what attempts weigh there, and old frames drawn together into one.

The pages that this frees are used for what comes next; the file keeps its size.
"""

from __future__ import annotations

from msgspec import Struct

from relaytui.commander.store.writer import Tx

FRAME_COST = 64
"""Bytes that a frame counts beside its data; also in the migration that made the column."""
WEIGHTS = "SELECT id, run_id, epoch, bytes, drawn_seq, last_seq, reported_at FROM streams"
AGED = f"""
  {WEIGHTS} AS s WHERE drawn_seq < last_seq AND
    (SELECT at FROM frames WHERE stream = s.id AND first_seq > s.drawn_seq ORDER BY first_seq LIMIT 1) < ?
"""  # noqa: S608 - ours
OLDEST = """
  SELECT id, first_seq, last_seq, first_line, last_line, at, data FROM frames WHERE stream = ?
    ORDER BY first_seq LIMIT ?
"""


class Weight(Struct, frozen=True):
    """One attempt's. Its frames up to `drawn_seq` are one."""

    stream: int
    run_id: str
    epoch: int
    bytes: int
    drawn_seq: int
    last_seq: int
    reported_at: float


class PastFrame(Struct, frozen=True):
    id: int
    first_seq: int
    last_seq: int
    first_line: int
    last_line: int
    at: float
    data: bytes

    @property
    def weight(self) -> int:
        return len(self.data) + FRAME_COST


def draw_together(tx: Tx, stream: int, frames: list[PastFrame], data: bytes) -> bool:
    """These, the oldest ones of a stream, become one with this data. False where they are not there any more."""
    first, last = frames[0], frames[-1]
    kept = tx.execute(
        "SELECT count(*) FROM frames WHERE stream = ? AND first_seq BETWEEN ? AND ?",
        (stream, first.first_seq, last.first_seq),
    ).fetchone()[0]
    if kept != len(frames):
        return False
    tx.execute(
        "DELETE FROM frames WHERE stream = ? AND first_seq > ? AND first_seq <= ?",
        (stream, first.first_seq, last.first_seq),
    )
    lines = [number for frame in frames for number in (frame.first_line, frame.last_line) if number]
    tx.execute(
        "UPDATE frames SET last_seq = ?, first_line = ?, last_line = ?, at = ?, data = ? WHERE id = ?",
        (last.last_seq, min(lines, default=0), max(lines, default=0), last.at, data, first.id),
    )
    freed = sum(frame.weight for frame in frames) - len(data) - FRAME_COST
    weigh = "UPDATE streams SET bytes = bytes - ?, drawn_seq = max(drawn_seq, ?) WHERE id = ?"
    tx.execute(weigh, (freed, last.last_seq, stream))
    return True
