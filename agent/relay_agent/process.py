"""What the agent arranges for its own process: its name, its memory, its threads."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

NAME = "relay-agent"
THREADS = 4
"""For work that blocks (hashing, the volume). Few, because every thread's heap is memory taken from the trainer."""
_M_ARENA_MAX = -8


def settle_in() -> None:
    """Set the process name, so that `pkill python` in a trainer's script does not hit us; keep the heap small."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    if sys.platform.startswith("linux"):
        try:
            import ctypes

            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
        except (ImportError, OSError, AttributeError):
            pass  # another libc has other ways


def limit_threads(loop: asyncio.AbstractEventLoop) -> None:
    loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="relay"))


def reap_orphans(loop: asyncio.AbstractEventLoop) -> None:
    """As PID 1 of a container, collect what nobody else waits for. Children of our own are left to who started them."""
    if os.getpid() != 1:
        return

    def reap() -> None:
        with suppress(ChildProcessError):
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if dead.si_pid in own_children:
                    return
                os.waitpid(dead.si_pid, 0)

    loop.add_signal_handler(signal.SIGCHLD, reap)


own_children: set[int] = set()
"""Who waits for them collects them."""


def say(text: str) -> None:
    """One line for people, on stderr. A reader that went away must not end a training."""
    with suppress(OSError, ValueError, AttributeError):  # AttributeError: started without a stderr
        sys.stderr.write(f"relay-agent: {text}\n")
        sys.stderr.flush()
