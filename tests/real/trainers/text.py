"""English that every Python brings along, as bytes: what the real trainers learn from; and how long a step takes."""

from __future__ import annotations

import os
import time
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
