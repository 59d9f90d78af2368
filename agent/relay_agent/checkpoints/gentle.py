"""A thread that gives way: what it copies and hashes must not slow the training down."""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

NICE = 5
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "arm64": 30}
_LOWEST = 2 << 13 | 7
"""Best effort, the last of its eight levels."""
_THREAD = 1


def gentle_pool() -> ThreadPoolExecutor:
    """For one thing at a time. Threads that it starts give way as it does."""
    return ThreadPoolExecutor(1, thread_name_prefix="take", initializer=give_way)


def give_way() -> None:
    """This thread gets the processor and the disk after others. Linux has priorities for each thread; elsewhere, and
    where it may not, nothing happens."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), NICE))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        with suppress(OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None, use_errno=True).syscall(number, _THREAD, 0, _LOWEST)
