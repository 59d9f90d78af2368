"""A trainer that only prints: COUNT stamped step lines at RATE a second, in the form of the shipped trainers.

    python tests/bench/trainer.py COUNT RATE

Standard library alone and run by path, so that its start costs both sides of a comparison the same.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def main(count: int, rate: float) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    start = time.monotonic()
    for step in range(1, count + 1):
        if (wait := start + step / rate - time.monotonic()) > 0:
            time.sleep(wait)
        loss = 4.0 * 0.999**step
        os.write(1, f"step {step}/{count} loss {loss:.4f} lr 0.0100 t={time.time():.6f}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
