"""Reports of one stream on the pod's own disk until the commander has acknowledged them, in order (design §6).

State reports are never dropped. Of telemetry, what was not sent yet gives way once a stream holds more than its bound:
log lines with a counted gap, steps by every second one. A report gets its number when it is first sent, so that what
gives way leaves no hole; from then on the same number never means two things, whoever reads the spool. Where the disk
does not take reports they stay in memory, within a smaller bound.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from relay_agent.spool.header import foreign, header
from relay_agent.spool.segments import MARK, REPORT, SMALLEST, Damaged, Folder, Segment, pack
from relay_agent.spool.unsaid import scrubbed
from relay_agent.spool.yielding import make_room
from relaytui.wire.codec import encode
from relaytui.wire.messages import MAX_REPORTS, Skip
from relaytui.wire.reports import AnyReport
from relaytui.wire.status import Stream

BOUND = 256 << 20
"""Bytes of one stream's telemetry on disk at most."""
SEGMENT, MEMORY_SEGMENT = 512 << 10, 128 << 10
FRAME = 128 << 10
"""Bytes of one frame, about."""
BUFFER = 64 << 10
"""Bytes that may wait for the next `flush`."""
_MARK = struct.Struct("<QQ")


class Mark(NamedTuple):
    """How far a trainer's output is in the spool: bytes read, and the number of the next line."""

    offset: int
    line: int


class Frame(NamedTuple):
    """Reports `first` to `last`: a message of its own on the wire."""

    stream: Stream
    first: int
    last: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Place:
    """Where report number `seq` begins."""

    segment: Segment
    offset: int
    seq: int


@dataclass(frozen=True, slots=True)
class _Sent:
    place: _Place
    last: int
    reports: int
    size: int


class Lane:
    """One stream of one attempt."""

    def __init__(
        self,
        stream: Stream,
        run_id: str,
        epoch: int,
        token: str,
        folder: Folder,
        bound: int = BOUND,
        trouble: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.stream = stream
        self.run_id = run_id
        self.epoch = epoch
        self._token = token
        self._header = header(run_id, epoch, stream)
        self._folder = folder
        self._bound = bound
        self._trouble = trouble
        self._segments = [folder.new(1)]
        self._place = _Place(self._segments[0], 0, 1)  # of what is sent next
        self._sent: deque[_Sent] = deque()
        self._buffer = bytearray()
        self._buffered = 0  # reports in it
        self._unsent = 0  # reports, the buffered ones included
        self._ask = False  # how far the commander is, before anything else is sent
        self._missing: tuple[int, int] | None = None  # numbers that the commander wants and that are gone
        self._holes: dict[Segment, int] = {}  # damaged: the last number that may lie behind its last whole record
        self._fence: Segment | None = None
        """The first without numbers, while an earlier agent's are not acknowledged: the last of those may have been
        lost with the end of a file, and the commander knows them."""
        self._said_full = False
        self.mark: Mark | None = None
        self.thinned = 0
        """Steps left out for want of room."""

    def load(self) -> None:
        """Take up what an earlier agent left in the folder. Blocking; damage is told and set aside, never fatal."""
        found = []
        for segment in self._folder.load():
            if (why := foreign(segment, self.run_id, self.epoch, self.stream)) is None:
                found.append(segment)
            else:
                self._trouble(f"{segment.path} is set aside: {why}")
                self._folder.aside(segment)
        for path in self._folder.strange_aside():
            self._trouble(f"{path} is set aside: it is no plain file; what the spool had there is lost")
        for segment in found:
            self._unsent += self._count(segment)
        # A file that broke off may have held numbers that were used: new reports go into a new one.
        self._segments = [*found, self._folder.new(found[-1].last_id + 1 if found else 1)]
        begun = [index for index, each in enumerate(self._segments) if each.first is not None]
        if not begun:  # numbers may have been given to what never reached the disk
            self._segments.insert(0, self._folder.new(0, on_disk=False))
            begun = [0]
        first = self._segments[0]
        self._fence = self._segments[begun[-1] + 1]
        self._ask = first.first is not None
        self._place = _Place(first, 0, first.first or 1)

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, report: AnyReport) -> None:
        self._buffer += pack(REPORT, encode(report))
        self._buffered += 1
        self._unsent += 1
        if self.stream is Stream.STATE or len(self._buffer) >= BUFFER:
            self.flush()

    def note(self, mark: Mark) -> None:
        """All output up to `mark` is in here: a new agent goes on from there."""
        if mark != self.mark:
            self.mark = mark
            self._buffer += pack(MARK, _MARK.pack(*mark))
            self.flush()

    def flush(self) -> None:
        """Onto the disk, or into memory where it is full."""
        if not self._buffer:
            return
        data, count = scrubbed(bytes(self._buffer)), self._buffered
        self._buffer, self._buffered = bytearray(), 0
        segment = self._segments[-1]
        if segment.size >= (MEMORY_SEGMENT if segment.path is None else SEGMENT):
            segment = self._rotate()
        if not self._put(segment, data):
            if not self._said_full:
                self._said_full = True
                self._trouble(f"{self._folder.path} takes no reports: they wait in memory; training goes on")
            self._put(self._rotate(on_disk=False), data)
            segment = self._segments[-1]
        segment.reports += count

    def _put(self, segment: Segment, data: bytes) -> bool:
        if not segment.size:
            data = self._header + data
        return self._folder.append(segment, data)

    def _rotate(self, *, on_disk: bool = True) -> Segment:
        segment = self._folder.new(self._segments[-1].last_id + 1, on_disk=on_disk)
        self._segments.append(segment)
        if self.stream is Stream.TELEMETRY:
            self._give_way()
        return segment

    # -- out -----------------------------------------------------------------------------------------------------

    @property
    def out(self) -> int:
        """Frames in flight in this session."""
        return len(self._sent)

    @property
    def in_flight(self) -> int:
        """Bytes of them."""
        return sum(sent.size for sent in self._sent)

    @property
    def ready(self) -> bool:
        """Whether there is something to send."""
        gone = any(self._place.seq <= hole for hole in self._holes.values())
        return self._unsent > 0 or self._ask or self._missing is not None or gone

    @property
    def empty(self) -> bool:
        return not self._sent and not self.ready

    @property
    def size(self) -> int:
        """Bytes that wait to be sent, about."""
        behind = self._segments[self._segments.index(self._place.segment) :]
        return sum(segment.size for segment in behind) - self._place.offset + len(self._buffer)

    @property
    def on_disk(self) -> bool:
        """Whether what waits would outlive this agent."""
        behind = self._segments[self._segments.index((self._sent[0].place if self._sent else self._place).segment) :]
        return all(segment.path is not None and segment.path.exists() for segment in behind if segment.size)

    def take(self, limit: int = FRAME) -> Frame | None:
        """The next frame to send, at most about `limit` bytes: what this session has not sent, oldest first."""
        self.flush()
        if self._missing is not None:
            return self._skip(*self._missing, "acknowledged before, and asked for again")
        if self._ask:
            return self._skip(self._place.seq, self._place.seq - 1, "")
        while (frame := self._frame(min(limit, FRAME))) is None:
            place = self._place
            if (gone := self._gone_behind(place.segment)) >= place.seq:
                return self._skip(place.seq, gone, "damaged on the pod's disk")
            following = self._after(place.segment)
            if following is None:
                return None
            if following is self._fence:
                if self._sent:
                    return None
                self._fence = None
            self._place = _Place(following, 0, place.seq)
        return frame

    def _after(self, segment: Segment) -> Segment | None:
        index = self._segments.index(segment) + 1
        return self._segments[index] if index < len(self._segments) else None

    def _gone_behind(self, segment: Segment) -> int:
        """The last number that belongs behind the whole records of this segment and cannot be read; 0 for none."""
        between = 0
        for following in self._segments[self._segments.index(segment) + 1 :]:
            if following.first is not None:
                return following.first - 1 - between
            between += following.reports
        return self._holes.get(segment, 0)

    def _frame(self, limit: int) -> Frame | None:
        """Reports from where we are in this segment; None where it has no more."""
        place = self._place
        payloads: list[bytes] = []
        total, offset = 0, place.offset
        try:
            for record in place.segment.records(offset, 2 * limit):
                if record.kind == REPORT:
                    total += len(record.payload) + 1
                    if len(payloads) == MAX_REPORTS or (payloads and total > limit):
                        break
                    payloads.append(record.payload)
                offset = record.end
        except (Damaged, OSError) as error:
            if self._folder.rescue(place.segment):
                return self._frame(limit)
            self._broken(place.segment, offset, place.seq + len(payloads), error)
        self._place = _Place(place.segment, offset, place.seq + len(payloads))
        if not payloads:
            return None
        self._begin(place)
        last = place.seq + len(payloads) - 1
        head = {"type": "reports", "run_id": self.run_id, "epoch": self.epoch, "token": self._token}
        head |= {"stream": self.stream, "first_seq": place.seq}
        data = encode(head)[:-1] + b',"reports":[' + b",".join(payloads) + b"]}"
        self._unsent = max(0, self._unsent - len(payloads))
        self._sent.append(_Sent(place, last, len(payloads), len(data)))
        return Frame(self.stream, place.seq, last, data)

    def _begin(self, place: _Place) -> None:
        segment = place.segment
        if segment.first is None:
            try:
                self._folder.begin(segment, place.seq)
            except OSError as error:  # a later agent would count anew from the segment before
                path = segment.path
                if not self._folder.rescue(segment):
                    self._trouble(f"{path} cannot be renamed: {error.strerror}")
                segment.first = place.seq

    def _skip(self, first: int, last: int, why: str) -> Frame:
        """Numbers that have no reports any more; the commander counts them."""
        place = self._place
        self._missing, self._ask = None, False
        data = encode(Skip(self.run_id, self.epoch, self._token, self.stream, first, last, why))
        self._sent.append(_Sent(place, last, 0, len(data)))
        if last >= place.seq:
            self._place = _Place(place.segment, place.offset, last + 1)
        return Frame(self.stream, first, last, data)

    # -- what the commander says ---------------------------------------------------------------------------------

    def ack(self, seq: int) -> None:
        """Everything up to and with `seq` is committed."""
        while self._sent and self._sent[0].last <= seq:
            self._sent.popleft()
        if not self._sent and seq >= self._place.seq:
            self._seek(seq + 1)
        oldest = self._sent[0].place.segment if self._sent else self._place.segment
        # The newest that has numbers stays: without it nobody could tell the number of what comes next.
        begun = [index for index, each in enumerate(self._segments) if each.first is not None]
        before = [index for index in begun if index <= self._segments.index(oldest)]
        for segment in self._segments[: before[-1] if before else 0]:
            self._drop(segment)
        self._segments = self._segments[before[-1] if before else 0 :]

    def rewind(self) -> None:
        """A new session: whatever was not acknowledged is sent again, and whether the rest is still there is asked."""
        self._ask = self._fence is not None or self._segments[0].first is not None
        if self._sent:
            start = self._sent[0].place
            self._unsent += sum(sent.reports for sent in self._sent)
            self._sent.clear()
            self._place = start

    def resume(self, expected: int) -> int:
        """The commander wants `expected` next. How many it wants are acknowledged and gone: it lost what it had."""
        self.rewind()
        first = self._segments[0]
        oldest = first.first if first.first is not None else self._place.seq
        self._place, self._unsent = (
            _Place(first, 0, oldest),
            sum(each.reports for each in self._segments) + self._buffered,
        )
        self._missing = (expected, oldest - 1) if expected < oldest else None
        self._seek(expected)
        self._ask = False
        return max(0, oldest - expected)

    def _seek(self, seq: int) -> None:
        """Go on with report number `seq`: forward only. Beyond the end, what is appended next has that number."""
        self.flush()
        while self._place.seq < seq:
            place, following = self._place, self._after(self._place.segment)
            offset, at = self._pass(place, seq)
            gone = self._gone_behind(place.segment) if at < seq else 0
            at = min(seq, max(at, gone + 1))
            self._place = _Place(place.segment, offset, at)
            if at == seq:
                return
            if following is None or following is self._fence:
                break
            self._place = _Place(following, 0, at)
        if self._place.seq < seq:  # it has what was lost here with the end of a file
            if self._fence is None and self._segments[-1].first is not None:
                self._rotate()
            self._place = _Place(self._fence or self._segments[-1], 0, seq)
            self._fence = None

    def _pass(self, place: _Place, seq: int) -> tuple[int, int]:
        """Pass over reports below `seq` in one segment: where that ends, and the number of what comes next."""
        offset, at = place.offset, place.seq
        try:
            for record in place.segment.records(offset):
                if record.kind == REPORT:
                    if at == seq:
                        break
                    at += 1
                    self._unsent = max(0, self._unsent - 1)
                offset = record.end
        except (Damaged, OSError) as error:
            self._broken(place.segment, offset, at, error)
        return offset, at

    # -- damage and room -----------------------------------------------------------------------------------------

    def _count(self, segment: Segment) -> int:
        """Reports in it. The rest of one that is damaged is given up, and counted when its turn comes."""
        offset = 0
        try:
            for record in segment.records():
                segment.reports += record.kind == REPORT
                if record.kind == MARK and len(record.payload) == _MARK.size:
                    self.mark = Mark(*_MARK.unpack(record.payload))
                offset = record.end
        except (Damaged, OSError) as error:
            self._broken(segment, offset, (segment.first or 0) + segment.reports, error)
        return segment.reports

    def _broken(self, segment: Segment, offset: int, seq: int, error: Exception) -> None:
        """From `offset` on, where report `seq` would begin, nothing can be read."""
        self._trouble(f"{segment.path or 'a part of the spool'}: {error}; what follows in it is lost")
        if segment.first is not None:
            self._holes[segment] = seq + (segment.size - offset) // SMALLEST
        segment.size = offset
        segment.damaged = True
        if segment is self._segments[-1]:
            self._segments.append(self._folder.new(segment.last_id + 1))

    def _drop(self, segment: Segment) -> None:
        self._holes.pop(segment, None)
        if segment.damaged:
            self._folder.aside(segment)
        else:
            self._folder.delete(segment)

    def _give_way(self) -> None:
        """Make room where the bound is passed; never in what has numbers."""
        self._segments, gone, thinned = make_room(
            self._segments, self._place.segment, self._folder, self._header, self._bound
        )
        self._unsent -= gone
        self.thinned += thinned

    @property
    def dirty(self) -> bool:
        return self._folder.dirty

    def sync(self) -> None:
        """Blocking: what is written survives a power cut."""
        self._folder.sync()

    def close(self) -> None:
        self.flush()
        self._folder.close()

    def delete(self) -> None:
        """All of it."""
        for segment in self._segments:
            self._drop(segment)
        self._folder.close()
