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
MAX_LINE_BYTES = 4 << 20
"""Text in one page of lines, at most: lines are long where somebody wants them to be."""
FRAMES_AT_ONCE = 64
LARGE_FRAMES_AT_ONCE = 4
SMALL_FRAME = 16 << 10
"""How many are read at once while they are large: one may have a megabyte."""
KEPT_SERIES = 64
_FRAME = msgspec.json.Decoder(list[TelemetryReport])


def decode_frame(frame: StoredFrame) -> list[TelemetryReport]:
    return decode_reports(frame.data)


def decode_reports(data: bytes) -> list[TelemetryReport]:
    """A frame's reports; none where the blob cannot be read any more, so that one bad page hides no other."""
    try:
        return _FRAME.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def attempt_row(attempt: Attempt, last: Last | None) -> AttemptRow:
    heard = last.step if last is not None and last.step is not None else 0
    reached = attempt.last_step
    if attempt.began_step is not None and reached == attempt.started_step:  # it was handed that step, and not there
        reached = attempt.began_step
    return AttemptRow(
        run_id=attempt.run_id,
        epoch=attempt.epoch,
        worker=attempt.worker,
        granted_at=attempt.granted_at,
        started_step=attempt.started_step,
        last_step=max(reached, heard),
        started_from=attempt.started_from,
        ended_at=attempt.ended_at,
        outcome=attempt.outcome,
        exit_code=attempt.exit_code,
        message=attempt.message,
        lines=last.lines if last is not None else 0,
        ending=attempt.ending,
        began_step=attempt.began_step,
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
        """The newest `limit` lines, oldest first: of one attempt (below number `before`), or over all attempts.

        Fewer where they have more than `MAX_LINE_BYTES`.
        """
        page = _Page(limit)
        for stream_epoch, stream in await self._reader.epochs(run_id):
            if epoch is not None and stream_epoch != epoch:
                continue
            await self._attempt_lines(stream, before if epoch is not None else None, page)
            if page.full:
                break
        return page.lines[::-1]

    async def _attempt_lines(self, stream: int, before: int | None, page: _Page) -> None:
        edge, at_once = before, LARGE_FRAMES_AT_ONCE
        while not page.full:
            frames = await self._reader.line_frames(stream, edge, at_once)
            # Decoding takes a while: not in the loop.
            await asyncio.to_thread(page.add, frames, before)
            if len(frames) < at_once:
                break
            edge = min(frame.first_line for frame in frames)
            at_once = _at_once(frames)

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
            at_once = LARGE_FRAMES_AT_ONCE
            while True:
                frames = await self._reader.frames_after(run_id, series.frame, at_once)
                if frames:
                    # Decoding a long history takes a while: not in the loop.
                    await asyncio.to_thread(series.add, frames)
                if len(frames) < at_once:
                    break
                at_once = _at_once(frames)
            return series.thinned(points)


def _at_once(before: list[StoredFrame]) -> int:
    """How many frames to read after these: many while they are small."""
    small = sum(len(frame.data) for frame in before) <= len(before) * SMALL_FRAME
    return FRAMES_AT_ONCE if small else LARGE_FRAMES_AT_ONCE


class _Page:
    """Lines collected from the newest on, until there are enough."""

    def __init__(self, limit: int) -> None:
        self.lines: list[LogLine] = []
        self.full = limit <= 0
        self._limit = limit
        self._left = MAX_LINE_BYTES

    def add(self, frames: list[StoredFrame], before: int | None) -> None:
        """`frames` newest first."""
        for frame in frames:
            for line in reversed(_lines_of(frame, before)):
                self._left -= len(line.text.encode("utf-8", "surrogatepass"))
                if self.full or (self._left < 0 and self.lines):
                    self.full = True
                    return
                self.lines.append(line)
                self.full = len(self.lines) >= self._limit


def _lines_of(frame: StoredFrame, before: int | None) -> list[LogLine]:
    return [
        LogLine(epoch=frame.epoch, n=n, t=report.t, text=text)
        for report in decode_frame(frame)
        if isinstance(report, Log)
        for n, text in enumerate(report.lines, start=report.n)
        if before is None or n < before
    ]


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
