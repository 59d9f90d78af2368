"""Programs to be traced, each a copy of a process that has loaded what they all need.

Loading it takes ten times as long as what most of them do. `Template` is that process as a test sees it; this file, run
as a program, is the process itself.
"""

from __future__ import annotations

import atexit
import functools
import gc
import marshal
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import programs

MAX_COMMON = 100_000
"""Bytes of what a template loads."""
TRACE_ME = (
    "import ctypes, os, signal\nctypes.CDLL(None).ptrace(0, 0, None, None)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
)


class Template:
    """It has run `common`, and its copies run scripts that go on from there."""

    def __init__(self, common: str) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._line.send(common.encode())
        self._helper = programs.Helper(self._line)

    def start(self, script: str, folder: Path) -> tuple[int, int]:
        """A child of ours, and what it writes to its output. It stops where the script has a line `TRACED`."""
        before, found, after = script.partition("TRACED\n")
        assert found
        words = (before + TRACE_ME + after, str(folder))
        asked = marshal.dumps((words, str(Path.cwd()), list(os.environ.items()), False))
        reading, writing = os.pipe()
        try:
            return self._helper.copy(asked, [writing, writing, 2]), reading
        finally:
            os.close(writing)

    def close(self) -> None:
        self._line.close()
        self._process.wait()


@functools.cache
def template(common: str) -> Template:
    made = Template(common)
    atexit.register(made.close)
    return made


def main(line: socket.socket) -> int:
    space = {"__name__": "common"}
    exec(line.recv(MAX_COMMON), space)
    gc.collect()
    gc.freeze()
    script, folder = programs.serve(line)
    sys.argv = ["", folder]
    try:
        exec(script, space)
    except BaseException:  # noqa: BLE001 - it is over, and says why
        traceback.print_exc()
        return 1
    space.clear()  # as at the end of any program, what is open is closed
    gc.collect()
    return 0


if __name__ == "__main__":
    os._exit(main(socket.socket(fileno=int(sys.argv[1]))))
