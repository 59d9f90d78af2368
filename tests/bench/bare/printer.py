"""A trainer that only prints, a write for each line, as Python does unbuffered; it tells what its writes took.

    python -I tests/bench/bare/printer.py COUNT RATE RESULT [work]

Lines of 100 bytes, one in ten a step; RATE lines a second, 0: as fast as they are taken. Between two lines it sleeps,
or it works, as a trainer does. RESULT gets one JSON object: when the first write began (seconds since 1970), and the
median and the mean of microseconds for a write.
"""

from __future__ import annotations

import json
import os
import sys
import time

STEP = "step %d loss %.4f lr 0.000300 grad_norm 1.2345 tok/s=18234 and what else there is to say"
LINE = "2026-03-01 10:00:00,123 INFO worker %d handled a batch in %.3f s and waits for the next one to come"


def main(count: int, rate: float, result: str, works: bool = False) -> None:
    lines = [
        ((LINE if n % 10 else STEP) % (n, 1.0 + n / 7_000)).ljust(99, ".")[:99].encode() + b"\n" for n in range(1, 1001)
    ]
    numbers = list(range(10_000))  # some hundred KB to go through, as one does who computes
    took = []
    began, start = time.time(), time.monotonic()
    for n in range(count):
        until = start + n / rate if rate else start
        while works and time.monotonic() < until:
            sum(numbers)
        if rate and not works:
            time.sleep(max(0.0, until - time.monotonic()))
        before = time.perf_counter()
        os.write(1, lines[n % 1000])
        took.append(time.perf_counter() - before)
    with open(result, "w") as file:  # noqa: PTH123 - nothing is imported that a trainer would not pay for
        json.dump({"began": began, "us": sorted(took)[count // 2] * 1e6, "mean_us": sum(took) / count * 1e6}, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], "work" in sys.argv[4:])
