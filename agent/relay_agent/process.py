"""What the agent arranges for its own process: its name, its memory, its threads."""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import os
import select
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from relay_agent.guardian import give_way
from relay_agent.secret_words import scrub

if TYPE_CHECKING:
    from relaytui.wire.clock import Clock

NAME = "relay-agent"
MAX_SAID = 4000
"""Bytes of one line, less than PIPE_BUF."""
THREADS = 4
"""For work that blocks (hashing, the volume). Few, because every thread's heap is memory taken from the trainer."""
_M_ARENA_MAX = -8
READ = 64 << 10
"""Bytes that are asked for at one read from a socket. Room for asyncio's 256 KiB is mapped into memory and taken away
again for each, which costs more than the few hundred that there are as a rule."""
SECRETS = ("RELAY_SHARED_SECRET", "RELAY_TOKEN")
"""Variables that let somebody in at the commander."""
_ENV_START = 47
"""In /proc/self/stat, after the name of the program: where the environment begins in memory, and then where it ends."""
_PR_SET_DUMPABLE = 4


def settle_in() -> None:
    """Set the process name, so that `pkill python` in a trainer's script does not hit us; keep the heap small, and out
    of the trainer's way."""
    give_way()
    if (transport := getattr(asyncio.selector_events, "_SelectorTransport", None)) is not None:
        transport.max_size = READ
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    if sys.platform.startswith("linux"):
        try:
            import ctypes

            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
        except (ImportError, OSError, AttributeError):
            pass  # another libc has other ways


def hide_secrets() -> None:
    """Out of what /proc shows of this process, once they were read: a trainer can look there, and as root too. Their
    bytes are overwritten where they lie; and only root may look into this process from now on, which keeps its memory
    from a trainer that is not root. What started this process (a shell, tini) has an environment of its own."""
    for name in SECRETS:
        os.environ.pop(name, None)
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
        held = ctypes.string_at(start, end - start)
        at = start
        for entry in held.split(b"\0"):
            variable, _, value = entry.partition(b"=")
            if variable.decode(errors="replace") in SECRETS:
                ctypes.memset(at + len(variable) + 1, 0, len(value))
            at += len(entry) + 1
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError, ValueError, IndexError) as error:
        say(f"the secret stays visible in /proc to what runs as this user: {error}")


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


_clock: ContextVar[Clock | None] = ContextVar("clock", default=None)


def tell_time(clock: Clock) -> None:
    """From now on what is said in this task, and in those that it begins, begins with when: a pod's log is read days
    later."""
    _clock.set(clock)


def _now() -> str:
    clock = _clock.get()
    if clock is None:
        return ""
    try:
        return datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ ")
    except (ValueError, OverflowError, OSError):
        return ""  # a clock that is far off


def say(text: str) -> None:
    """One line for people, on stderr. A reader that went away, or that reads nothing any more, ends no training and
    holds nobody up: what it does not take is not said."""
    line = f"{_now()}relay-agent: {scrub(text)}\n"
    if len(line.encode("utf-8", "replace")) > MAX_SAID:
        line = line[: MAX_SAID // 4] + "…\n"
    with suppress(OSError, ValueError, AttributeError):  # AttributeError: started without a stderr
        if _takes_a_line(sys.stderr):
            sys.stderr.write(line)
            sys.stderr.flush()


def _takes_a_line(stream: TextIO) -> bool:
    """A pipe counts as ready where PIPE_BUF bytes go in at once."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return True  # no file behind it, nothing that could wait
    ready = select.poll()
    ready.register(fd, select.POLLOUT)
    return bool(ready.poll(0))
