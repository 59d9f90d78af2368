"""Processes of a trainer, whatever they were reparented to. Standard library, and little of it."""

from __future__ import annotations

import os
import sys
import time

from relay_agent.guardian import cgroup
from relay_agent.guardian.protocol import MARKER

FEW = 16
"""Threads that are asked for their variables: one that lives has those of all."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def boot_clock() -> float:
    """Seconds that count suspend, as the agent's deadlines do."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def prctl(option: int, value: int) -> bool:
    """Linux's prctl; False where there is none."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def give_way() -> None:
    """Woken by what a trainer does, we wait for our turn instead of taking its processor (SCHED_BATCH, sched(7)): else
    a line costs it all that is done with it. Another policy than the usual one was somebody's choice, and stays."""
    _change_policy("SCHED_OTHER", "SCHED_BATCH")


def give_way_no_more() -> None:
    """In a trainer that is about to begin: what we have given up is not its to give."""
    _change_policy("SCHED_BATCH", "SCHED_OTHER")


def _change_policy(usual: str, other: str) -> None:
    try:
        if os.sched_getscheduler(0) == getattr(os, usual):
            os.sched_setscheduler(0, getattr(os, other), os.sched_param(0))
    except (OSError, AttributeError):
        pass  # not Linux, or a sandbox that lets nobody choose


def processes() -> dict[int, tuple[int, int]]:
    """pid → (parent, start time in ticks) of everything alive that /proc shows. A zombie is not, unless only its main
    thread has ended."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not worth its memory here
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 19 and fields[0] != b"X" and (fields[0] != b"Z" or len(_threads(name)) > 1):
            found[int(name)] = (int(fields[1]), int(fields[19]))
    return found


def carries(pid: int, marker: bytes) -> bool:
    """Whether the process was started with `marker` (NAME=value, or how such a one begins) in its environment."""
    threads = (f"{pid}/task/{thread}" for thread in _threads(pid)[:FEW])
    for path in (str(pid), *threads):  # who has ended shows none, also where the others live on
        try:
            with open(f"/proc/{path}/environ", "rb") as file:  # noqa: PTH123
                if environment := file.read():
                    return any(variable.startswith(marker) for variable in environment.split(b"\0"))
        except OSError:
            continue
    return False


def _threads(pid: int | str) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for this signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            caught = file.read().partition(b"\nSigCgt:")[2].split(maxsplit=1)[0]
        return bool(int(caught, 16) >> (number - 1) & 1)
    except (OSError, IndexError, ValueError):
        return False


def tree(guard: str, root: int = 0, *groups: str) -> set[int]:
    """Living processes of a trainer: descendants of `root`, whoever carries the marker, who is in its control groups
    (found by the guard unless given), and what comes of any of these. Never the caller itself."""
    alive = processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in alive.items():
        children.setdefault(parent, []).append(pid)
    me = os.getpid()
    found = {root} - {0}
    _with_descendants(found, children)
    marker = f"{MARKER}={guard}".encode()
    found.update(pid for pid in alive if pid not in found and pid != me and carries(pid, marker))
    for group in groups or cgroup.find(guard):
        found.update(cgroup.members(group) & alive.keys())
    found.discard(me)
    _with_descendants(found, children)
    found -= {me, root}
    return found


def _with_descendants(found: set[int], children: dict[int, list[int]]) -> None:
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
