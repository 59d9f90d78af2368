"""Frames of reports as an agent sends them while a trainer is chatty: steps with metrics, and the lines they came from.

They are made by filling numbers into a template, as making them anew would cost the load more than the server.
"""

from __future__ import annotations

from relaytui.wire.codec import encode
from relaytui.wire.messages import Reports
from relaytui.wire.reports import Log, Step
from relaytui.wire.status import Stream
from tests.bench.load.agents import Holder

PER_FRAME = 50
STEPS = PER_FRAME // 2
TIME = 1_790_000_000.123456
HOLE = 8_888_888_888
"""Stands in the template for every number that is filled in."""
METRICS = {"loss": 1.234567, "lr": 0.0003, "grad_norm": 0.8712, "tokens_per_s": 12345.6, "mfu": 0.4131, "gpu_gib": 71.5}
LINE = f"step {HOLE}/1000000 loss 1.234567 lr 0.0003 grad_norm 0.8712 tokens/s 12345.6 mfu 0.4131 ".ljust(140, ".")
"""Of a length that makes a report 196 bytes on average, as in the measurements that the goals come from."""


class Frames:
    """The telemetry stream of one holder. Every number in it is right: `first_seq`, `step` and `n` go on."""

    def __init__(self, holder: Holder) -> None:
        step = Step(t=TIME, step=HOLE, total=1_000_000, metrics=dict(METRICS), rate=11.25)
        log = Log(t=TIME, n=HOLE, lines=[LINE])
        whole = Reports(
            run_id=holder.run_id,
            epoch=holder.epoch,
            token=holder.token,
            stream=Stream.TELEMETRY,
            first_seq=HOLE,
            reports=[step, log] * STEPS,
        )
        encoded = encode(whole)
        assert b"%" not in encoded
        self._template = encoded.replace(str(HOLE).encode(), b"%d")
        self._frames = 0

    @property
    def last_seq(self) -> int:
        """Of the last report made so far; 0 before the first."""
        return self._frames * PER_FRAME

    def next(self) -> bytes:
        first_step = self._frames * STEPS + 1
        # In the order of the encoding: first_seq; then a step's number, its line's number, and the step in that line.
        numbers = [self.last_seq + 1]
        for step in range(first_step, first_step + STEPS):
            numbers += (step, step, step)
        self._frames += 1
        return self._template % tuple(numbers)
