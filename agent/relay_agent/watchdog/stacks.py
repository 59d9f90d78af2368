"""What the processes of a trainer are doing: their stacks by py-spy, where the pod has it, and what the kernel says.

Nothing here is needed: without py-spy, or where it is not let at a process, that is one line of the answer.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from relay_agent import guardian
from relay_agent.process import own_children
from relaytui.wire.text import clean

PROCESSES = 16
"""Of a trainer, at most; the largest first."""
SECONDS, ALL_SECONDS = 10.0, 40.0
"""For one process, and for all of them."""
MAX_DUMP, MAX_ALL = 64 << 10, 512 << 10
"""Bytes."""
FRAMES = 5
"""Of one thread in the short form, innermost first."""
FILES = 10
"""Of one attempt."""
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")


def spy(environ: Mapping[str, str]) -> str | None:
    """Path of py-spy as the pod has it, if it does."""
    return shutil.which("py-spy", path=environ.get("PATH", os.defpath))


def kept(environ: Mapping[str, str]) -> dict[str, str]:
    """What py-spy gets of the environment: nothing that is a secret."""
    return {name: environ[name] for name in KEPT_VARIABLES if name in environ}


def look(pids: set[int], environ: Mapping[str, str]) -> str:
    """What they do, for people: clean text, bounded, a paragraph each. Blocking, for at most ALL_SECONDS or so."""
    program = spy(environ)
    env = kept(environ)
    until = time.monotonic() + ALL_SECONDS
    parts: list[str] = []
    if program is None:
        parts.append("no py-spy on this pod's PATH: `pip install py-spy` there shows Python's stacks here")
    shown = sorted(pids, key=_memory, reverse=True)[:PROCESSES]
    if len(pids) > len(shown):
        parts.append(f"{len(pids) - len(shown)} more processes are not shown")
    size = 0
    for pid in shown:
        part = state(pid)
        left = until - time.monotonic()
        if program is not None and _runs_python(pid):
            part += "\n" + (dump(program, pid, env, min(SECONDS, left)) if left > 0 else "  no time left for it")
        size += len(part)
        if size > MAX_ALL:
            parts.append("the rest is cut off")
            break
        parts.append(part)
    return "\n\n".join(parts) + "\n"


def dump(program: str, pid: int, env: Mapping[str, str], seconds: float) -> str:
    """What py-spy says of one process, or why it says nothing. Its process is not stopped for it."""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        child = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return f"  py-spy cannot be run: {error}"
    own_children.add(child.pid)
    try:
        data, late = _read(child, seconds)
    finally:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        own_children.discard(child.pid)
    lines = [clean(line, 400) for line in data.decode("utf-8", "replace").split("\n")]
    if late:
        lines.append(f"py-spy was ended after {seconds:.0f} s")
    # The first line repeats the command, which may hold a secret.
    return "\n".join(f"  {line}" for line in lines if line.strip() and not line.startswith("Process "))


def _read(child: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bool]:
    """What it prints, bounded in bytes and in time."""
    assert child.stdout is not None
    fd = child.stdout.fileno()
    os.set_blocking(fd, False)
    data = bytearray()
    until = time.monotonic() + seconds
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    with child.stdout:
        while len(data) < MAX_DUMP:
            left = until - time.monotonic()
            if left <= 0:
                return bytes(data), True
            if not waiting.poll(left * 1000):
                continue
            try:
                more = os.read(fd, MAX_DUMP - len(data))
            except BlockingIOError:
                continue
            if not more:
                break
            data += more
    return bytes(data), False


def state(pid: int) -> str:
    """One line of what the kernel says of a process."""
    name, status, waits = "?", "gone", ""
    with suppress(OSError, IndexError):
        data = Path(f"/proc/{pid}/stat").read_bytes()
        name = data.partition(b"(")[2].rpartition(b")")[0].decode("utf-8", "replace")
        code = data.rpartition(b")")[2].split()[0].decode("ascii", "replace")
        status = STATES.get(code, code)
    with suppress(OSError):
        waits = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace").strip("0 \n")
    return clean(f"process {pid} ({name}): {status}" + (f" in {waits}" if waits else ""), 300)


STATES = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for a device or a file system",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended",
}


def short(text: str) -> str:
    """The innermost frames of each main thread that py-spy showed, or what the kernel said: for one event."""
    said: list[str] = []
    process, main = "", False
    frames: list[str] = []
    for line in [*text.split("\n"), "process"]:
        if line.startswith("process"):
            if process:
                said.append(f"{process}: {' < '.join(frames)}" if frames else process)
            process, frames, main = line.removeprefix("process ").split(" in ")[0], [], False
        elif line.startswith("  Thread"):
            main = "MainThread" in line
        elif main and line.startswith("      ") and len(frames) < FRAMES:
            frames.append(line.strip())
    return clean("; ".join(said), 300)


def _runs_python(pid: int) -> bool:
    try:
        return b"python" in os.fsencode(Path(f"/proc/{pid}/exe").readlink().name)
    except OSError:
        return False


def _memory(pid: int) -> int:
    """Pages that it has in memory."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def keep(logs: Path, epoch: int, number: int, text: str) -> Path:
    """Beside the log of its epoch. OSError where the volume refuses. Blocking."""
    path = logs / f"e{epoch:08d}.stall-{number}.txt"
    fd = guardian.open_own(str(path), os.O_WRONLY | os.O_TRUNC)
    try:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    return path
