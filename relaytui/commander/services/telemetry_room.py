"""Keeps telemetry.db bounded: the oldest log lines give way, their curves are thinned, and the history says so.

Of each attempt the oldest frames become one: a gap that counts the lines that are gone, and as many of its steps as a
curve needs. In small transactions, when the writer has nothing else to do: no acknowledgement waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from relaytui.commander.services import endings
from relaytui.commander.services.pages import decode_reports
from relaytui.commander.settings import CommanderSettings
from relaytui.commander.store import history
from relaytui.commander.store.reader import Reader
from relaytui.commander.store.room import PastFrame, Weight, draw_together
from relaytui.commander.store.writer import UNIT, Writer
from relaytui.wire.clock import Clock
from relaytui.wire.codec import encode
from relaytui.wire.reports import Gap, Log, Step, TelemetryReport
from relaytui.wire.text import counted

FRAMES_AT_ONCE = 64
BYTES_AT_ONCE = 4 << 20
POINTS = 512
"""Steps that are kept of what is drawn together: as many as a curve shows."""
MAX_DRAWN = 256 << 10
"""Bytes of a frame that others were drawn together into: a step may have hundreds of metrics."""
DOWN_TO = 0.9
"""Of a limit: so that a run at its limit makes room once in a while, and not all the time."""
DAY = 86_400.0
PATIENCE = 5.0
"""Seconds that one batch waits for a writer with other work."""


@dataclass(slots=True)
class Gone:
    """What gave way of one attempt."""

    lines: int = 0
    steps: int = 0
    last_line: int = 0


class TelemetryRoom:
    def __init__(
        self, settings: CommanderSettings, relay: Writer, frames: Writer, reader: Reader, clock: Clock
    ) -> None:
        self._relay = relay
        self._frames = frames
        self._reader = reader
        self._clock = clock
        self.seconds = settings.telemetry_days * DAY
        self.run_bytes = settings.telemetry_run_bytes
        self.bytes = settings.telemetry_bytes

    async def make(self) -> None:
        """First by age, then each run to its limit, then all of them together: whoever was heard of first, first."""
        if self.seconds:
            before = self._clock.wall() - self.seconds
            for weight in await self._reader.aged(before):
                await self._draw(weight, f"older than {self.seconds / DAY:g} days", before=before)
        weights = await self._reader.weights()
        runs: dict[str, list[Weight]] = {}
        for weight in weights:
            runs.setdefault(weight.run_id, []).append(weight)
        for of_run in runs.values():
            await self._down(of_run, self.run_bytes, "over what is kept of a run (RELAY_TELEMETRY_RUN_BYTES)")
        weights = sorted(await self._reader.weights(), key=lambda weight: weight.reported_at)
        await self._down(weights, self.bytes, "over what is kept of all runs (RELAY_TELEMETRY_BYTES)")

    async def _down(self, weights: Iterable[Weight], limit: int, why: str) -> None:
        """In this order, until they are within the limit."""
        weights = list(weights)
        over = sum(weight.bytes for weight in weights) - limit
        if over <= 0:
            return
        over += int(limit * (1 - DOWN_TO))
        for weight in weights:
            if over <= 0:
                return
            over -= await self._draw(weight, why, enough=over)

    async def _draw(self, weight: Weight, why: str, *, before: float | None = None, enough: int | None = None) -> int:
        """Bytes that were freed of one attempt, from its oldest on: what is older than `before`, or until `enough`."""
        gone, freed = Gone(), 0
        while enough is None or freed < enough:
            oldest = await self._reader.oldest_frames(weight.stream, FRAMES_AT_ONCE)
            left = BYTES_AT_ONCE if enough is None else min(BYTES_AT_ONCE, enough - freed)
            frames = _batch(oldest, weight.drawn_seq, before, left)
            if not frames or frames[-1].last_seq <= weight.drawn_seq:
                break
            data, lines, steps = await asyncio.to_thread(drawn, frames)
            await self._idle()
            if not await self._together(weight.stream, frames, data):
                break
            freed += sum(frame.weight for frame in frames) - len(data)
            gone.lines += lines
            gone.steps += steps
            gone.last_line = max(gone.last_line, *(frame.last_line for frame in frames))
            weight = replace(weight, drawn_seq=frames[-1].last_seq)
        if gone.lines or gone.steps:
            await self._say(weight, gone, why)
        return freed

    async def _together(self, stream: int, frames: list[PastFrame], data: bytes) -> bool:
        return await self._frames.run(lambda tx: draw_together(tx, stream, frames, data))

    async def _idle(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while self._frames.waiting > 4 * UNIT and loop.time() < until:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)

    async def _say(self, weight: Weight, gone: Gone, why: str) -> None:
        what = []
        if gone.lines:
            what.append(f"{counted(gone.lines, 'log line')} up to number {gone.last_line:,}")
        if gone.steps:
            what.append(f"{counted(gone.steps, 'step')} of its curves")
        message = f"{' and '.join(what)} gave way: {why}"
        data = {"lines": str(gone.lines), "last_line": str(gone.last_line), "steps": str(gone.steps)}
        at = self._clock.wall()
        await self._relay.run(
            lambda tx: history.add_event(
                tx, at, "run.log_thinned", endings.COMMANDER, message, weight.run_id, weight.epoch, data
            )
        )


def _batch(frames: Sequence[PastFrame], drawn_seq: int, before: float | None, enough: int) -> list[PastFrame]:
    """The oldest, `enough` bytes or a little more; what was drawn together before is the first of them."""
    batch, size = list[PastFrame](), 0
    for frame in frames:
        new = frame.last_seq > drawn_seq
        if new and (size >= enough or (before is not None and frame.at >= before)):
            break
        batch.append(frame)
        size += frame.weight if new else 0
    return batch


def drawn(frames: Sequence[PastFrame]) -> tuple[bytes, int, int]:
    """One frame's reports for all of these; how many lines and steps that leaves out."""
    reports = [report for frame in frames for report in decode_reports(frame.data)]
    lines = sum(len(report.lines) for report in reports if isinstance(report, Log))
    steps = [report for report in reports if isinstance(report, Step)]
    first = min((frame.first_line for frame in frames if frame.first_line), default=0)
    last = max((frame.last_line for frame in frames), default=0)
    gap: list[TelemetryReport] = []
    if first:
        gap.append(Gap(reports[-1].t if reports else 0.0, first, last - first + 1))
    points = POINTS
    while True:
        kept = thinned(steps, points)
        data = encode([*gap, *kept])
        if len(data) <= MAX_DRAWN or points <= 2:
            return data, lines, len(steps) - len(kept)
        points //= 2


def thinned(steps: Sequence[Step], points: int) -> list[Step]:
    """About so many at most, evenly by their steps; the first and the last are among them."""
    if len(steps) <= points:
        return list(steps)
    apart = (max(step.step for step in steps) - min(step.step for step in steps)) / max(1, points - 1)
    kept = [steps[0]]
    for step in steps[1:-1]:
        if abs(step.step - kept[-1].step) >= apart and len(kept) < points - 1:
            kept.append(step)
    return [*kept, steps[-1]]
