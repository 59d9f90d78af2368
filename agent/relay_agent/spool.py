"""Reports that the commander has not acknowledged yet, in order, per stream (design §6).

In memory: state reports are never dropped; of telemetry, log lines give way with a counted gap and steps are thinned
once it holds more than `BOUND`. A report gets its number when it is first sent, so that what gives way leaves no hole;
what was sent stays as it was sent until it is acknowledged, so that the same number never means two things.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from relaytui.wire.codec import encode
from relaytui.wire.messages import MAX_FRAME, MAX_REPORTS, Reports
from relaytui.wire.reports import AnyReport, Event, Gap, Log, Step
from relaytui.wire.status import Stream

BOUND = 2 << 20
"""Size of telemetry that may wait, as `size` counts it: about characters."""
FRAME = 128 << 10
"""Size of one frame at most. Text takes up to four bytes a character, so this stays below MAX_FRAME."""
MERGE_LINES = 1_000
MERGE_SIZE = 64 << 10
"""Log reports are merged up to this while they wait."""


def size(report: AnyReport) -> int:
    """About how much a report takes, in characters."""
    if isinstance(report, Log):
        return 64 + sum(map(len, report.lines)) + 4 * len(report.lines)
    if isinstance(report, Step):
        return 96 + 32 * len(report.metrics)
    if isinstance(report, Event):
        return 128 + len(report.message) + sum(len(key) + len(value) + 8 for key, value in report.data.items())
    return 256


@dataclass(frozen=True, slots=True)
class Frame:
    """Reports `first` to `last`, encoded once: a message of its own on the wire."""

    stream: Stream
    first: int
    last: int
    data: bytes


@dataclass
class Lane:
    """One stream of one attempt. `waiting` has no numbers yet; `sent` waits for its acknowledgement."""

    stream: Stream
    run_id: str
    epoch: int
    token: str = field(repr=False)
    waiting: deque[AnyReport] = field(default_factory=deque)
    size: int = 0  # of what waits
    sent: deque[Frame] = field(default_factory=deque)
    out: int = 0  # how many of `sent` went out in this session
    next_seq: int = 1
    thinned: int = 0
    """Steps left out for want of room."""

    @property
    def in_flight(self) -> int:
        """Bytes that went out in this session and are not acknowledged."""
        return sum(frame.data.__len__() for frame in list(self.sent)[: self.out])

    @property
    def empty(self) -> bool:
        return not self.waiting and not self.sent

    @property
    def ready(self) -> bool:
        """Whether there is something to send."""
        return bool(self.waiting) or self.out < len(self.sent)

    def append(self, report: AnyReport) -> None:
        if isinstance(report, Log | Gap) and self.waiting and (merged := _merge(self.waiting[-1], report)):
            self.size += size(merged) - size(self.waiting[-1])
            self.waiting[-1] = merged
        else:
            self.waiting.append(report)
            self.size += size(report)
        if self.stream is Stream.TELEMETRY and self.size > BOUND:
            self._give_way()

    def take(self, limit: int = FRAME) -> Frame | None:
        """The next frame to send, at most about `limit` in size: what this session has not sent, oldest first."""
        if self.out < len(self.sent):
            self.out += 1
            return self.sent[self.out - 1]
        if not self.waiting:
            return None
        count, total = 0, 0
        for report in self.waiting:
            total += size(report)
            if count == MAX_REPORTS or (count and total > min(limit, FRAME)):
                break
            count += 1
        frame = self._encode(count)
        while len(frame.data) > MAX_FRAME and count > 1:
            count //= 2
            frame = self._encode(count)
        for _ in range(count):
            self.size -= size(self.waiting.popleft())
        self.next_seq = frame.last + 1
        self.sent.append(frame)
        self.out += 1
        return frame

    def ack(self, seq: int) -> None:
        """Everything up to and with `seq` is committed."""
        while self.sent and self.sent[0].last <= seq:
            self.sent.popleft()
            self.out = max(0, self.out - 1)

    def rewind(self) -> None:
        """A new session: whatever was not acknowledged is sent again."""
        self.out = 0

    def resume(self, expected: int) -> bool:
        """The commander wants `expected` next. False where that is acknowledged and gone: it lost what it had."""
        self.ack(expected - 1)
        self.rewind()
        oldest = self.sent[0].first if self.sent else self.next_seq
        return oldest <= expected

    def _encode(self, count: int) -> Frame:
        reports = [self.waiting[index] for index in range(count)]
        first, last = self.next_seq, self.next_seq + count - 1
        message = Reports(self.run_id, self.epoch, self.token, self.stream, first, reports)
        return Frame(self.stream, first, last, encode(message))

    def _give_way(self) -> None:
        """Make room: the oldest lines become a gap; where there are none, every second step goes."""
        target = BOUND * 3 // 4
        kept: deque[AnyReport] = deque()
        gap: Gap | None = None
        while self.waiting and self.size > target:
            report = self.waiting.popleft()
            if not isinstance(report, Log | Gap):
                kept.append(report)
                continue
            self.size -= size(report)
            count = len(report.lines) if isinstance(report, Log) else report.count
            if gap is None:
                gap = Gap(report.t, report.n, count)
            elif gap.n + gap.count == report.n:
                gap = Gap(gap.t, gap.n, gap.count + count)
            else:  # lines are numbered without holes, so this does not happen; if it did, it must not be silent
                kept.append(gap)
                self.size += size(gap)
                gap = Gap(report.t, report.n, count)
        self.waiting.extendleft(reversed(kept))
        if gap is not None:
            self.waiting.appendleft(gap)
            self.size += size(gap)
        if self.size > target:
            self._thin()

    def _thin(self) -> None:
        """Every second waiting step goes, never the newest."""
        kept: deque[AnyReport] = deque()
        odd = False
        for report in reversed(self.waiting):
            if isinstance(report, Step):
                odd = not odd
                if not odd:
                    self.size -= size(report)
                    self.thinned += 1
                    continue
            kept.appendleft(report)
        self.waiting = kept


def _merge(last: AnyReport, report: Log | Gap) -> Log | Gap | None:
    """Two reports of lines as one, where they touch and are not too long."""
    if isinstance(last, Gap) and isinstance(report, Gap) and last.n + last.count == report.n:
        return Gap(last.t, last.n, last.count + report.count)
    if isinstance(last, Log) and isinstance(report, Log) and last.n + len(last.lines) == report.n:
        lines = len(last.lines) + len(report.lines)
        if lines <= MERGE_LINES and size(last) + size(report) <= MERGE_SIZE:
            return Log(last.t, last.n, last.lines + report.lines)
    return None


class Spool:
    """Both lanes of one attempt."""

    def __init__(self, run_id: str, epoch: int, token: str) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.state = Lane(Stream.STATE, run_id, epoch, token)
        self.telemetry = Lane(Stream.TELEMETRY, run_id, epoch, token)

    def lane(self, stream: Stream) -> Lane:
        return self.state if stream is Stream.STATE else self.telemetry

    def rewind(self) -> None:
        self.state.rewind()
        self.telemetry.rewind()

    @property
    def empty(self) -> bool:
        return self.state.empty and self.telemetry.empty
