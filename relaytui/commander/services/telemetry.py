"""The telemetry stream: frames checked, shown at once, stored as blobs, acknowledged after the commit.

Per report nothing is done but what typed decoding and cleaning need; everything else is per frame.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from time import perf_counter

from msgspec.structs import replace

from relaytui.commander.model.lease import Refuse
from relaytui.commander.services.board import Board
from relaytui.commander.services.feed import Feed
from relaytui.commander.services.overlap import unknown
from relaytui.commander.services.reports import Missing, wrong_stream
from relaytui.commander.store import attempts
from relaytui.commander.store import telemetry as store
from relaytui.commander.store.writer import UNIT, Writer
from relaytui.wire.clock import Clock
from relaytui.wire.codec import encode
from relaytui.wire.feed import Point
from relaytui.wire.numbers import Number
from relaytui.wire.proof import token_hash
from relaytui.wire.reports import AnyReport, Gap, Log, Step, Transfer
from relaytui.wire.rows import TransferRow
from relaytui.wire.text import are_clean, are_long, clean

SHOWN = ("loss", "lr", "reward")
"""Metrics whose last values are kept; points of all of them are in the frames."""
SLICE = 0.005
"""Seconds of the loop that cleaning one connection's text may take at a stretch."""
FASTEST = 1e15
"""Bytes per second that are shown; beyond, a pod's clock is off and no time left can be told from it."""
MAX_ERROR = 300
"""Characters of a transfer's error that are kept and shown."""
_KINDS = frozenset({Step, Log, Gap, Transfer})

Acked = Callable[[int, BaseException | None], None]


class Stream:
    """One attempt's telemetry: up to `received` is queued, `committed` stored, `published` shown."""

    __slots__ = ("broken", "committed", "id", "last", "published", "received", "stale", "users")

    def __init__(self, stream_id: int, last: store.Last) -> None:
        self.id = stream_id
        self.last = last
        self.received = self.committed = self.published = last.last_seq
        self.broken = False
        self.stale = False
        """Whether what was told last was known."""
        self.users = 0


class Telemetry:
    """All attempts' telemetry. Streams are cached while a connection uses them."""

    def __init__(self, relay: Writer, telemetry: Writer, board: Board, feed: Feed, clock: Clock) -> None:
        self._relay = relay
        self._telemetry = telemetry
        self._board = board
        self._feed = feed
        self._clock = clock
        self._streams: dict[tuple[str, int], Stream] = {}

    async def open(self, run_id: str, epoch: int, token: str) -> Stream | Refuse:
        """The stream of an attempt whose token this is. Give it back with `close`."""
        hashed = token_hash(token)
        attempt = await self._relay.run(lambda tx: attempts.get(tx, run_id, epoch))
        if attempt is None:
            return Refuse("unknown", "no such lease here")
        if not hmac.compare_digest(attempt.token_hash, hashed):
            return Refuse("not_holder", "this token does not hold the lease")
        key = (run_id, epoch)
        stream = self._streams.get(key)
        if stream is None or stream.broken:
            now = self._clock.wall()
            stream_id, last = await self._telemetry.run(lambda tx: store.open_stream(tx, run_id, epoch, now))
            # Another connection of the attempt may have opened it meanwhile: one cursor for all.
            before = self._streams.get(key)
            if before is None or before.broken:
                stream = self._streams[key] = Stream(stream_id, last)
                if before is not None:
                    stream.published = max(before.published, stream.published)
            else:
                stream = before
        stream.users += 1
        return stream

    def close(self, stream: Stream) -> None:
        stream.users -= 1
        # A stream with frames on their way keeps its cursor: a second one beside it would count from behind.
        if stream.users <= 0 and (stream.broken or stream.committed == stream.received):
            key = (stream.last.run_id, stream.last.epoch)
            if self._streams.get(key) is stream:
                del self._streams[key]

    def ingest(
        self, stream: Stream, first_seq: int, reports: Sequence[AnyReport], raw: bytes, acked: Acked
    ) -> Missing | None:
        """`reports` are clean; `raw` is the JSON array of them.

        `acked(seq, error)` is called after the commit with how far the stream is stored.
        """
        if not _KINDS.issuperset(map(type, reports)):
            raise wrong_stream(next(r for r in reports if type(r) not in _KINDS), "telemetry")
        last_seq = first_seq + len(reports) - 1
        if first_seq > stream.received + 1:
            return Missing(stream.received + 1)
        if last_seq <= stream.received:
            # Seen before; what is still on its way to the disk is acknowledged when it is there.
            self._telemetry.submit(lambda tx: None, lambda _, error: acked(stream.committed, error))
            return None
        known = stream.received + 1 - first_seq
        if known:
            reports, first_seq = reports[known:], first_seq + known
            raw = encode(list(reports))
        at = self._clock.wall()
        first_line, last_line = _line_span(reports)
        if stream.stale or 0 < first_line <= stream.last.lines:
            reports, stream.stale = unknown(reports, stream.last.lines, stream.last.step, stream.stale)
            raw = encode(list(reports))
            first_line, last_line = _line_span(reports)
        stream.last = last = _after(stream.last, reports, at, last_seq, last_line)
        stream.received = last_seq
        if last_seq > stream.published:
            stream.published = last_seq
            self._show(last, reports)
        self._add(stream, store.Frame(first_seq, last_seq, first_line, last_line, at, raw), acked)
        return None

    def skip(self, stream: Stream, first_seq: int, last_seq: int, acked: Acked) -> Missing | int:
        """Reports up to `last_seq` will not come. How many that are; none may only ask how far the stream is."""
        if first_seq > stream.received + 1:
            return Missing(stream.received + 1)
        count = max(0, last_seq - stream.received)
        if count:
            at = self._clock.wall()
            first_seq = stream.received + 1
            stream.last = replace(stream.last, last_seq=last_seq, reported_at=at)
            stream.received = stream.published = last_seq
            self._show(stream.last, [])
            self._add(stream, store.Frame(first_seq, last_seq, 0, 0, at, b"[]"), acked)
        else:
            self._telemetry.submit(lambda tx: None, lambda _, error: acked(stream.committed, error))
        return count

    def _add(self, stream: Stream, frame: store.Frame, acked: Acked) -> None:
        def done(_: None, error: BaseException | None) -> None:
            if error is None:
                stream.committed = frame.last_seq
            else:
                stream.broken = True
            acked(stream.committed, error)

        self._telemetry.submit_to(store.add_frames, (stream.id, frame, stream.last), done, UNIT + len(frame.data))

    def _show(self, last: store.Last, reports: Sequence[AnyReport]) -> None:
        run_id, epoch = last.run_id, last.epoch
        view = self._board.runs.get(run_id)
        if view is not None:
            view.hear(last)
            self._feed.run(run_id)
        if not self._feed.watched(run_id):
            return
        points: list[Point] = []
        for report in reports:
            if isinstance(report, Log):
                self._feed.lines(run_id, epoch, report.n, report.t, report.lines)
            elif isinstance(report, Step):
                loss = report.metrics.get("loss")
                if loss is not None:
                    points.append((epoch, report.step, loss))
            elif isinstance(report, Gap):
                self._feed.lines_gap(run_id, epoch, report.n, report.count)
        if points:
            self._feed.points(run_id, "loss", points)


def _after(before: store.Last, reports: Sequence[AnyReport], at: float, last_seq: int, last_line: int) -> store.Last:
    """The last values once these reports were taken in. Read from the newest on: most is known after one look."""
    steps = [report for report in reports if type(report) is Step]
    step, total, rate, metrics, first_loss = before.step, before.total, before.rate, before.metrics, before.first_loss
    if steps:
        newest = steps[-1]
        step, rate = newest.step, newest.rate
        total = next((report.total for report in reversed(steps) if report.total is not None), total)
        told = {name: value for name in SHOWN if (value := _newest(steps, name)) is not None}
        metrics = {**metrics, **told}
        if first_loss is None and "loss" in told:
            first_loss = next(report.metrics["loss"] for report in steps if "loss" in report.metrics)
    transfers = before.transfers
    if told_of := {report.kind: report for report in reports if type(report) is Transfer}:
        transfers = {**transfers, **{kind: _row(report, before.epoch, at) for kind, report in told_of.items()}}
    return store.Last(
        before.run_id, before.epoch, last_seq, max(before.lines, last_line), at, step, total, rate, metrics, first_loss,
        transfers,
    )  # fmt: skip


def _row(report: Transfer, epoch: int, at: float) -> TransferRow:
    rate = report.rate if report.rate is not None and 0 <= report.rate <= FASTEST else None
    return TransferRow(
        report.kind, epoch, at, report.step, report.checkpoint, report.phase, report.done, report.total, rate,
        report.attempt, report.error, report.synced,
    )  # fmt: skip


def _newest(steps: Sequence[Step], name: str) -> Number | None:
    return next((report.metrics[name] for report in reversed(steps) if name in report.metrics), None)


def _line_span(reports: Sequence[AnyReport]) -> tuple[int, int]:
    """Numbers of the first and last line, gaps included, 0 where there is none."""
    first = next((span for report in reports if (span := _span(report))), (0, 0))
    last = next((span for report in reversed(reports) if (span := _span(report))), (0, 0))
    return first[0], last[1]


def _span(report: AnyReport) -> tuple[int, int] | None:
    if isinstance(report, Log) and report.lines:
        return report.n, report.n + len(report.lines) - 1
    if isinstance(report, Gap):
        return report.n, report.n + max(report.count, 1) - 1
    return None


async def cleaned(reports: Sequence[AnyReport], raw: bytes, tidy: bool) -> tuple[Sequence[AnyReport], bytes]:
    """The reports with clean text and their JSON array; the very same where all were clean already.

    `tidy` says that the text is clean but for long lines. What takes long gives way to others every `SLICE` seconds:
    a frame of nothing but control characters holds up no renewal.
    """
    if _are_clean(reports, tidy):
        return reports, raw
    changed: list[AnyReport] = []
    until = perf_counter() + SLICE
    for report in reports:
        if type(report) is Log and not are_clean(report.lines):
            lines: list[str] = []
            for line in report.lines:
                lines.append(clean(line))
                if perf_counter() > until:
                    await asyncio.sleep(0)
                    until = perf_counter() + SLICE
            changed.append(report if lines == report.lines else replace(report, lines=lines))
        elif type(report) is Step and not are_clean(list(report.metrics)):
            names = {clean(name, 128) or "?": value for name, value in report.metrics.items()}
            changed.append(replace(report, metrics=names))
        elif type(report) is Transfer and report.error is not None:
            error = clean(report.error, MAX_ERROR)
            changed.append(report if error == report.error else replace(report, error=error))
        else:
            changed.append(report)
    if all(new is old for new, old in zip(changed, reports, strict=True)):
        return reports, raw
    return changed, encode(changed)


def _are_clean(reports: Sequence[AnyReport], tidy: bool) -> bool:
    """Whether there is nothing to clean, in one look at the whole frame: most have nothing."""
    texts = [line for report in reports if type(report) is Log for line in report.lines]
    errors = [report.error for report in reports if type(report) is Transfer and report.error is not None]
    if any(len(error) > MAX_ERROR for error in errors):
        return False
    if tidy:
        return not are_long(texts)
    texts += errors
    texts += set[str]().union(*(report.metrics for report in reports if type(report) is Step))
    return are_clean(texts)
