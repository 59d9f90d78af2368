"""How much telemetry may be in flight on a line that may be thin."""

from __future__ import annotations

from collections import deque

from relay_agent.spool.lane import FRAME, Frame

LEAST_FRAME = 8 << 10


class Pace:
    """How much telemetry may be in flight: halved when acknowledgements are slow, doubled when they are quick."""

    def __init__(self) -> None:
        self.frame = FRAME
        self._sent: deque[tuple[int, float]] = deque()  # (last seq, when)

    def sent(self, frame: Frame, now: float) -> None:
        self._sent.append((frame.last, now))

    def acked(self, seq: int, now: float) -> None:
        took = None
        while self._sent and self._sent[0][0] <= seq:
            took = now - self._sent.popleft()[1]
        if took is not None and took > 1.0:
            self.frame = max(LEAST_FRAME, self.frame // 2)
        elif took is not None and took < 0.25:
            self.frame = min(FRAME, self.frame * 2)

    def restart(self) -> None:
        self._sent.clear()
