"""A trainer that only steps: one processor's work.

    python -I tests/bench/bare/spin.py STEP

STEP: additions in a step. Says that it is there, and for each line on stdin how many steps it made by when, in seconds
of its own clock; ends when stdin does.
"""

from __future__ import annotations

import json
import select
import sys
import time


def main(size: int) -> None:
    print(json.dumps({"ready": True}), flush=True)
    steps = 0
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.buffer.raw.read(1):
                return
            print(json.dumps({"steps": steps, "at": time.perf_counter()}), flush=True)
        sum(range(size))
        steps += 1


if __name__ == "__main__":
    main(int(sys.argv[1]))
