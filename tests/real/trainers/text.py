"""English that every Python brings along, as bytes, to learn from; what a step takes, and what it came to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from pydoc_data.topics import topics

from moments import happens

PAUSE = float(os.environ.get("STEP_SECONDS", "0"))
"""What a step takes at least: these models are so small that nothing could be seen between two steps."""

TEXT = "\n".join(topics[name] for name in sorted(topics)).encode("utf-8", "replace")


def piece(number: int, length: int) -> list[int]:
    """`length` byte values; the same for the same number."""
    start = (number * 7919) % (len(TEXT) - length)
    return list(TEXT[start : start + length])


def pause() -> None:
    happens("step")
    time.sleep(PAUSE)


def tells(step: int, metric: float) -> None:
    """To the file TRUTH, for the test: where what is shown of a step may be another's."""
    with Path(os.environ["TRUTH"]).open("a") as file:
        file.write(f"{step} {metric:.3f}\n")
