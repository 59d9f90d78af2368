"""A thread that gives way: what it copies and hashes must not slow the training down."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

NICE = 5
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "arm64": 30}
_LOWEST = 2 << 13 | 7
"""Best effort, the last of its eight levels."""
_THREAD = 1


T = TypeVar("T")


class GentleThread:
    """For one thing at a time, once there is any. Threads that it starts give way as it does."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    async def __call__(self, work: Callable[..., T], *args: object, **named: object) -> T:
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="take", initializer=give_way)
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **named))


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
