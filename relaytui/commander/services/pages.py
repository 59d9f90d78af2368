"""Pages of what happened: a run's attempts, its log lines, its curves. Read-only, from what is committed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from relaytui.commander.model.records import Attempt
from relaytui.commander.store.reader import Reader, StoredFrame
from relaytui.commander.store.telemetry import Last
from relaytui.wire.feed import Point
from relaytui.wire.reports import Log, Step, TelemetryReport
from relaytui.wire.rows import AttemptRow, LogLine

MAX_LINES = 5_000
FRAMES_AT_ONCE = 64
KEPT_SERIES = 64
_FRAME = msgspec.json.Decoder(list[TelemetryReport])


def decode_frame(frame: StoredFrame) -> list[TelemetryReport]:
    """Its reports; none where the blob cannot be read any more, so that one bad page hides no other."""
    try:
        return _FRAME.decode(frame.data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def attempt_row(attempt: Attempt, last: Last | None) -> AttemptRow:
    heard = last.step if last is not None and last.step is not None else 0
    return AttemptRow(
        run_id=attempt.run_id,
        epoch=attempt.epoch,
        worker=attempt.worker,
        granted_at=attempt.granted_at,
        started_step=attempt.started_step,
        last_step=max(attempt.last_step, heard),
        started_from=attempt.started_from,
        ended_at=attempt.ended_at,
        outcome=attempt.outcome,
        exit_code=attempt.exit_code,
        message=attempt.message,
        lines=last.lines if last is not None else 0,
    )


class Pages:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._series: OrderedDict[tuple[str, str], Series] = OrderedDict()

    async def attempts(self, run_id: str) -> list[AttemptRow]:
        """Oldest first."""
        streams = await self._reader.streams(run_id)
        return [attempt_row(row, streams.get(row.epoch)) for row in await self._reader.attempts(run_id)][::-1]

    async def lines(self, run_id: str, *, epoch: int | None, before: int | None, limit: int) -> list[LogLine]:
        """The newest `limit` lines, oldest first: of one attempt (below number `before`), or over all attempts."""
        kept: list[LogLine] = []
        for stream_epoch, stream in await self._reader.epochs(run_id):
            if epoch is not None and stream_epoch != epoch:
                continue
            kept = await self._attempt_lines(stream, before if epoch is not None else None, limit - len(kept)) + kept
            if len(kept) >= limit:
                break
        return kept

    async def _attempt_lines(self, stream: int, before: int | None, limit: int) -> list[LogLine]:
        found: list[LogLine] = []
        edge = before
        while len(found) < limit:
            frames = await self._reader.line_frames(stream, edge, FRAMES_AT_ONCE)
            for frame in frames:
                found = _lines_of(frame, before) + found
                if len(found) >= limit:
                    break
            if len(frames) < FRAMES_AT_ONCE:
                break
            edge = min(frame.first_line for frame in frames)
        return found[-limit:] if limit > 0 else []

    async def series(self, run_id: str, metric: str, points: int) -> list[Point]:
        """At most `points` of a metric over all attempts, evenly thinned, the newest always among them."""
        key = (run_id, metric)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(metric)
            while len(self._series) > KEPT_SERIES:
                self._series.popitem(last=False)
        self._series.move_to_end(key)
        async with series.lock:
            while True:
                frames = await self._reader.frames_after(run_id, series.frame, FRAMES_AT_ONCE)
                if frames:
                    # Decoding a long history takes a while: not in the loop.
                    await asyncio.to_thread(series.add, frames)
                if len(frames) < FRAMES_AT_ONCE:
                    break
            return series.thinned(points)


def _lines_of(frame: StoredFrame, before: int | None) -> list[LogLine]:
    lines: list[LogLine] = []
    for report in decode_frame(frame):
        if isinstance(report, Log):
            for n, text in enumerate(report.lines, start=report.n):
                if before is None or n < before:
                    lines.append(LogLine(epoch=frame.epoch, n=n, t=report.t, text=text))
    return lines


class Series:
    """One metric of one run, kept to a bounded number of points: when full, every other one goes."""

    CAPACITY = 8_000

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.frame = 0  # id of the last frame taken in
        self.lock = asyncio.Lock()
        self._points: list[Point] = []
        self._stride = 1
        self._skipped = 0
        self._newest: Point | None = None

    def add(self, frames: list[StoredFrame]) -> None:
        for frame in frames:
            for report in decode_frame(frame):
                if isinstance(report, Step):
                    value = report.metrics.get(self.metric)
                    if value is not None:
                        self._add((frame.epoch, report.step, value))
            self.frame = frame.id

    def _add(self, point: Point) -> None:
        self._newest = point
        self._skipped += 1
        if self._skipped < self._stride and self._points:
            return
        self._skipped = 0
        self._points.append(point)
        if len(self._points) >= self.CAPACITY:
            del self._points[1::2]
            self._stride *= 2

    def thinned(self, count: int) -> list[Point]:
        points = self._points
        if self._newest is not None and points[-1] is not self._newest:
            points = [*points, self._newest]
        if len(points) <= count:
            return list(points)
        step = (len(points) - 1) / (count - 1)
        return [points[round(n * step)] for n in range(count)]
