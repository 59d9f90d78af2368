"""A control group (version 2) for one trainer, where one can be made: no session, parent or environment of its own
takes a process out of the group that it was born in. Where none can be made, nothing here does anything."""

from __future__ import annotations

# ruff: noqa: SIM105 - contextlib is not worth its memory here
import os
import time

_PREFIX = "relay."
_LEFT = 60.0
"""Seconds after which an empty group is one that nobody is about to enter: its guardian was killed."""
_FURTHEST = 4096
"""Groups looked through for one that somebody else made, on a machine that has more of them than a pod has."""


def make(guard: str) -> str:
    """The path of a new group below our own; empty where the system gives none."""
    own = _place()[1]
    if not own or not guard:
        return ""
    for name in _below(own):
        try:
            if name.startswith(_PREFIX) and time.time() - os.stat(f"{own}/{name}").st_ctime > _LEFT:  # noqa: PTH116
                os.rmdir(f"{own}/{name}")  # noqa: PTH106 - the system refuses where anybody is in it
        except OSError:
            continue
    path = f"{own}/{_PREFIX}{guard.replace('/', '_')}"
    try:
        os.mkdir(path, 0o755)  # noqa: PTH102
    except OSError:
        return ""
    if not os.access(f"{path}/cgroup.kill", os.W_OK):  # before Linux 5.14
        remove(path)
        return ""
    return path


def enter(path: str) -> None:
    """This process, and what it will start."""
    if path:
        try:
            _write(f"{path}/cgroup.procs", b"0")
        except OSError:
            pass  # then it is found by its other marks


def find(guard: str, everywhere: bool = False) -> list[str]:
    """Groups of trainers whose guard begins so: below our own group, and where an agent that ran in another one may
    have made them."""
    begins = _PREFIX + guard.replace("/", "_")
    mount, own = _place() if guard else ("", "")
    found = [f"{own}/{name}" for name in _below(own) if name.startswith(begins)] if own else []
    waiting = [mount] if everywhere and own and not found else []
    for _ in range(_FURTHEST):
        if not waiting:
            break
        path = waiting.pop()
        for name in _below(path):
            (found if name.startswith(begins) else waiting).append(f"{path}/{name}")
    return found


def members(path: str) -> set[int]:
    """Whoever is alive in it, and in groups that they made below it."""
    found: set[int] = set()
    for at in _all(path):
        try:
            with open(f"{at}/cgroup.procs", "rb") as file:  # noqa: PTH123
                found.update(int(pid) for pid in file.read().split())
        except OSError:
            continue
    return found - {0}  # of another pid namespace


def populated(path: str) -> bool:
    """Whether anybody is alive in it or below it. Exact, where a list of them is out of date once it is read."""
    try:
        with open(f"{path}/cgroup.events", "rb") as file:  # noqa: PTH123
            return b"populated 1" in file.read()
    except OSError:
        return False


def kill(path: str) -> None:
    """SIGKILL to all of it in one step: who is being born goes too, and who is frozen."""
    if path:
        try:
            _write(f"{path}/cgroup.kill", b"1")
        except OSError:
            pass


def remove(path: str) -> None:
    """Once nobody is in it."""
    for at in reversed(_all(path)):
        try:
            os.rmdir(at)  # noqa: PTH106
        except OSError:
            pass


def oom_kills() -> int:
    """How often the kernel has killed somebody in our own group or below it for want of memory; 0 where nobody tells.

    The trainer's group is below ours, and where it has none it is in ours. Version 1 counts where version 2 does not.
    """
    for at, file, row in ((_place()[1], "memory.events", b"oom_kill"), (_place1(), "memory.oom_control", b"oom_kill")):
        try:
            with open(f"{at}/{file}", "rb") as lines:  # noqa: PTH123
                return sum(int(line.split()[1]) for line in lines if line.split()[:1] == [row])
        except (OSError, ValueError, IndexError):
            continue
    return 0


def _place1() -> str:
    """The path of our own group of version 1 that limits memory."""
    return _find(b":memory:", b" - cgroup ", b",memory")[1]


def _all(path: str) -> list[str]:
    """The group and those below it, each after the one it lies in."""
    found = [path] if path else []
    for at in found:
        found += [f"{at}/{name}" for name in _below(at)]
    return found


def _place() -> tuple[str, str]:
    """Where groups are mounted, and the path of our own there; both empty where they are not."""
    return _find(b"0::", b" - cgroup2 ")


def _find(of: bytes, kind: bytes, option: bytes = b"") -> tuple[str, str]:
    """The mount of a kind, and our own group there by the line of /proc/self/cgroup that has `of`."""
    try:
        with open("/proc/self/cgroup", "rb") as file:  # noqa: PTH123
            lines = [line.partition(of)[2] for line in file.read().split(b"\n") if of + b"/" in line]
        with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123
            mounts = [line.split() for line in file if kind in line and line.rstrip().endswith(option)]
    except OSError:
        return "", ""
    for fields in mounts:
        root, at = fields[3].rstrip(b"/"), os.fsdecode(fields[4])
        if lines and (lines[0] + b"/").startswith(root + b"/") and b".." not in lines[0]:
            return at, (at + os.fsdecode(lines[0][len(root) :])).rstrip("/")
    return "", ""


def _below(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
