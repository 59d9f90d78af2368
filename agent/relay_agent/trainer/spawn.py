"""Starting a guardian with its trainer, and why one was not started."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from relay_agent import guardian
from relaytui.wire.errors import Exit, RelayError

MAIN = Path(guardian.__file__).with_name("__main__.py")


def spawn(
    log: Path,
    guard: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    grace: float,
    orphan: float,
    folder: Path | None,
    *,
    pty: bool,
    orders: Sequence[bytes],
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The guardian, which obeys `orders` first, and our end of the line to it. OSError; ValueError for a zero byte in a
    command or a variable."""
    ours, theirs = socket.socketpair()
    try:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * guardian.CHUNK)
        command = [sys.executable, "-I", "-S", str(MAIN), str(theirs.fileno())]
        command += [str(log.absolute()), guard, str(grace), str(orphan)]
        command.append(str(folder.absolute()) if folder is not None else "-")
        command += ["pty"] if pty else []
        command += [order.decode() for order in orders]
        process = subprocess.Popen(
            [*command, "--", *argv],
            env={**env, guardian.MARKER: guard},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def deadline(at: float, notice: float | None) -> tuple[bytes, ...]:
    """Orders: dead by `at` on the boot clock, stopped `notice` seconds before; 0: never mind."""
    order = guardian.DEADLINE + str(at).encode()
    return (order,) if notice is None else (guardian.NOTICE + str(notice).encode(), order)


def refused(number: int, words: str, argv: Sequence[str] = ()) -> RelayError:
    """`number`: of the system's error, 0 for none. Of a command only that it is one is said: it may hold secrets."""
    hint = "a launcher needs a first line such as #!/usr/bin/env bash, and that program on PATH"
    if number == errno.E2BIG:
        hint = "command and environment together are too long: put the command into a script, or set fewer variables"
    if argv:
        words = f"{argv[0] if len(argv) == 1 else f'a command for {argv[0]}'}: {words}"
    return RelayError(
        "trainer_not_started",
        f"the trainer cannot be started: {words}" + (f" (errno {number})" if number else ""),
        hint,
        exit_code=Exit.USAGE,
    )
