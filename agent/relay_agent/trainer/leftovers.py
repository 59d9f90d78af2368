"""Stopping what is left of a trainer, without its guardian or after it. Blocking."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent import guardian
from relay_agent.guardian import cgroup


def stop_leftovers(guard: str, timeout: float = 10.0) -> int:
    """Kill what carries this guard's marker or is in its control group until two looks in a row find nothing. Blocking;
    how many there were."""
    if not Path("/proc/self").exists():
        return 0
    found: set[int] = set()
    groups = cgroup.find(guard, everywhere=True)
    empty = 0
    until = time.monotonic() + timeout
    while empty < 2 and time.monotonic() < until:
        left = guardian.tree(guard, 0, *groups)
        empty = 0 if left or any(map(cgroup.populated, groups)) else empty + 1
        found |= left
        for group in groups:
            cgroup.kill(group)
        guardian.signal_all(left, signal.SIGKILL)
        if not empty:
            time.sleep(0.02)
    for group in groups:
        cgroup.remove(group)
    return len(found)


SWEEPS = 10.0
"""Seconds that a guardian has for what its trainer left behind, and for its last word."""


def let_save(guardian_pid: int, grace: float, ended: Callable[[], bool], asks: Callable[[], None]) -> bool:
    """SIGTERM to the trainer of a guardian that does not listen to us, the grace to save, and time for the guardian to
    note how it ended. `asks` is told right before that. False: there was nobody to ask any more."""
    trainers = []
    for pid, (parent, _) in guardian.processes().items():
        with suppress(OSError):
            if parent == guardian_pid and os.getpgid(pid) == pid:
                trainers.append(pid)
    if trainers:
        asks()
    for pid in trainers:
        with suppress(OSError):
            os.killpg(pid, signal.SIGTERM)
            os.killpg(pid, signal.SIGCONT)
    _wait(grace, lambda: ended() or not any(pid in guardian.processes() for pid in trainers))
    if not is_frozen(guardian_pid):
        _wait(SWEEPS, lambda: ended() or guardian_pid not in guardian.processes())
    return bool(trainers)


def _wait(seconds: float, done: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.05)


def thaw(pid: int) -> None:
    """A trainer can freeze its guardian, and so can whoever freezes a pod: it has an order to read."""
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def is_frozen(pid: int) -> bool:
    """Whether a signal stopped it, or whoever traces it."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def kill_tree(guard: str, root: int, trainer: int, timeout: float = 5.0) -> None:
    """The trainer's tree first, for as long as its processes are the guardian's descendants; then the guardian."""
    if Path("/proc/self").exists():
        until = time.monotonic() + timeout
        groups = cgroup.find(guard)
        while (left := guardian.tree(guard, root, *groups) - {root}) and time.monotonic() < until:
            for group in groups:
                cgroup.kill(group)
            guardian.signal_all(left, signal.SIGKILL)
            time.sleep(0.02)
        for group in groups:
            cgroup.kill(group)
    elif trainer:
        with suppress(OSError):
            os.killpg(trainer, signal.SIGKILL)
    with suppress(OSError):
        os.kill(root, signal.SIGKILL)
