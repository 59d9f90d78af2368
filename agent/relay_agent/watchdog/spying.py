"""Whether py-spy would be let at a trainer here: tried, on a small Python of our own that is no child of py-spy's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from relay_agent.watchdog import stacks
from relaytui.wire.text import clean

SECONDS = 10.0
"""For the trial."""
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SLEEPER = "import sys; print(flush=True); sys.stdin.read()"


def trouble(environ: Mapping[str, str]) -> tuple[str, str]:
    """What is in the way of Python's stacks on a stall, and what to do about it; empty: nothing. Blocking."""
    program = stacks.spy(environ)
    if program is None:
        return "no py-spy on the trainer's PATH: of one that hangs only the kernel's word is kept", "pip install py-spy"
    said = _tried(program, stacks.kept(environ))
    if "Thread" in said:
        return "", ""
    last = next((line.strip() for line in reversed(said.split("\n")) if line.strip()), "it says nothing")
    return f"{program} is not let at another process: {clean(last, 200)}", _todo()


def _tried(program: str, env: Mapping[str, str]) -> str:
    try:
        sleeper = subprocess.Popen(
            [sys.executable, "-I", "-c", _SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env)
        )
    except OSError as error:
        return f"there is no {sys.executable} to try it on: {error.strerror}"
    with sleeper:
        try:
            assert sleeper.stdout is not None
            sleeper.stdout.readline()  # it is up
            return stacks.dump(program, sleeper.pid, env, SECONDS)
        finally:
            sleeper.kill()


def _todo() -> str:
    words = "give the container CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
    with suppress(OSError, ValueError):
        if int(_SCOPE.read_text(encoding="ascii")):
            words += f", or set kernel.yama.ptrace_scope to 0 (it is {int(_SCOPE.read_text(encoding='ascii'))})"
    return words
