"""A program stopped at each of its system calls, with what its files hold then: exactly what is left of it where it is
killed there. Needs ptrace, as strace does."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

TRACE_ME = (
    "import ctypes, os, signal\nctypes.CDLL(None).ptrace(0, 0, None, None)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
)
_SYSCALL, _KILL, _SET_OPTIONS = 24, 8, 0x4200
_SYS_GOOD, _EXIT_KILL = 1, 1 << 20
_AT_CALL = signal.SIGTRAP | 0x80
_WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, ctypes.c_void_p(data)) == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


@dataclass(frozen=True)
class Moment:
    """Before the program's system call number `call`, or after its end. `said`: what it had written to its output."""

    call: int
    files: Mapping[str, bytes]
    said: bytes

    def write(self, folder: Path) -> Path:
        folder.mkdir(mode=0o700)
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder


def moments(script: str, folder: Path, *arguments: str) -> list[Moment]:
    """Of `script` (Python; `TRACED` stands where it begins to count), one for each that differs from the one before.

    The script runs to its end and must succeed; `folder` is where it works, and is read at every call.
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("ptrace as Linux has it")
    before, found, after = script.partition("TRACED\n")
    assert found
    process = subprocess.Popen(
        [sys.executable, "-c", before + TRACE_ME + after, str(folder), *arguments], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        taken = list(_watch(process, folder))
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
        process.stdout.close()
    return taken


def _watch(process: subprocess.Popen[bytes], folder: Path) -> Iterator[Moment]:
    pid, said, calls, entering = process.pid, b"", 0, True
    last: Mapping[str, bytes] | None = None
    assert process.stdout is not None
    _, status = os.waitpid(pid, _WALL)
    assert os.WIFSTOPPED(status), "it did not get as far as to be traced"
    try:
        _ptrace(_SET_OPTIONS, pid, _SYS_GOOD | _EXIT_KILL)
    except OSError as error:
        pytest.skip(f"ptrace is not allowed here: {error}")
    deliver = 0
    while True:
        _ptrace(_SYSCALL, pid, deliver)
        _, status = os.waitpid(pid, _WALL)
        over = os.WIFEXITED(status) or os.WIFSIGNALED(status)
        deliver = 0
        if not over and os.WSTOPSIG(status) != _AT_CALL:
            deliver = os.WSTOPSIG(status)
            continue
        calls += entering
        if entering or over:
            said += process.stdout.read() or b""
            files = _read(folder)
            if files != last or over:
                last = files
                yield Moment(calls, files, said)
        entering = not entering
        if over:
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, "the program itself failed"
            return


def _read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
