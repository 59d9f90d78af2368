"""A trainer that only steps: one processor's work, and how much of it was done.

    python -I tests/bench/bare/spin.py STEP

STEP: additions in a step. Says that it is there, steps until its stdin ends, and then says how many steps a second.
"""

from __future__ import annotations

import json
import select
import sys
import time


def main(size: int) -> None:
    print(json.dumps({"ready": True}), flush=True)
    steps, began = 0, time.perf_counter()
    while not select.select([sys.stdin], [], [], 0)[0]:
        sum(range(size))
        steps += 1
    print(json.dumps({"per_second": steps / (time.perf_counter() - began)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
