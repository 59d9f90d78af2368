"""A program stopped at each of its system calls, with what its files hold then: exactly what is left of it where it is
killed there. Needs ptrace, as strace does."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import programs
import pytest
from traced import template

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


def moments(common: str, script: str, folder: Path) -> list[Moment]:
    """Of a program that begins with `common` and goes on with `script`: at each of its system calls from the line
    `TRACED` on, unless the one before left the same. It gets `folder` as its argument."""
    if programs.CLONE is None:
        pytest.skip("ptrace as Linux has it")
    pid, output = template(common).start(script, folder)
    os.set_blocking(output, False)
    watching = _watch(pid, output, folder)
    try:
        return list(watching)
    finally:
        watching.close()
        os.close(output)


def _watch(pid: int, output: int, folder: Path) -> Generator[Moment, None, None]:
    said, calls, entering, status = b"", 0, True, None
    last: tuple[Mapping[str, bytes], bytes] | None = None
    try:
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
                said += _read_what_is_there(output)
                files = _read(folder)
                if (files, said) != last or over:
                    last = files, said
                    yield Moment(calls, files, said)
            entering = not entering
            if over:
                assert os.waitstatus_to_exitcode(status) == 0, "the program itself failed"
                return
    finally:
        if status is None or os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, _WALL)


def _read_what_is_there(output: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(output, 1 << 16)
    return b""


def _read(folder: Path) -> dict[str, bytes]:
    """But for what SQLite shares in memory, of which the first who opens a database keeps nothing."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.endswith("-shm"):
                path = f"{place}/{name}"
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - read a thousand times
                    found[path[len(str(folder)) + 1 :]] = file.read()
    return found
