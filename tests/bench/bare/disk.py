"""The floor under every durable answer: 4 KiB overwritten and fdatasync'ed, one by one, on the same disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

BLOCK = b"\0" * 4096


def syncs_per_second(folder: Path, seconds: float = 0.3) -> float:
    path = folder / "fdatasync.probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, BLOCK, 0)
        os.fsync(descriptor)  # the first one also allocates
        count, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            os.pwrite(descriptor, BLOCK, 0)
            os.fdatasync(descriptor)
            count += 1
        return count / elapsed
    finally:
        os.close(descriptor)
        path.unlink()
