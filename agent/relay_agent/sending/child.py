"""A child process: `python -I -m relay_agent.sending.child PACKAGE`, one job on stdin, lines of JSON on stdout.

It ends with the agent. `PACKAGE` says what jobs there are (`JOBS`) and which of its functions does each (`WORK`, as
`module.function`, called with the job and a `Tell`); its module `failures` tells what they raise.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from relay_agent.secret_words import scrub
from relay_agent.sending.protocol import Failed, Go, May, Phase, Progress, Result, Untold, encoded, line
from relaytui.wire.text import clean, sayable

STARTING, NICE = 10, 15
"""How much it gives way, to the trainer most of all: while what it needs is imported, and at its work. On processors
that are all busy it would else not start in time, or take a tenth of what its threads run beside."""
EVERY = 0.5
"""Seconds between two words of progress, at least."""
MOST_WORDS = 2000
"""Characters of a failure's words: others may have written them."""
_PR_SET_PDEATHSIG = 1
FAULT = "RELAY_SENDING_FAULT"
"""For tests: the place in a job at which the child kills itself."""


class Refused(Exception):  # noqa: N818 - it says what happened
    """The agent says that it must not be done: it may not have the lease any more."""


class Tell:
    """What a job says while it works. Usable in any thread."""

    def __init__(self, out: int, answers: queue.Queue[bytes], fault: str = "") -> None:
        self._out = out
        self._answers = answers
        self._lock = threading.Lock()
        self._said = 0.0
        self._until = 0.0
        self._fault = fault

    def phase(self, name: str) -> None:
        self._say(Phase(name))
        self.at(name)

    def progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said >= EVERY or done == total:
            self._said = now
            self._say(Progress(done, total))

    def may(self, what: str) -> None:
        """Refused where the agent says no. What is done must have begun within the seconds that it said (`still`)."""
        asked = _now()
        self._say(May(what))
        go = msgspec.json.decode(self._answers.get(), type=Go)
        if go.seconds <= 0:
            raise Refused(what)
        self._until = asked + go.seconds

    def still(self, what: str) -> None:
        """Refused where the last permission is over: this process, or the whole pod, may have been frozen since."""
        if _now() >= self._until:
            raise Refused(what)

    def at(self, place: str) -> None:
        """A place between two calls, at which tests end the world."""
        if self._fault == place:
            os.kill(os.getpid(), signal.SIGKILL)

    def _say(self, message: Struct) -> None:
        data = memoryview(line(message))
        with self._lock:
            while data:
                data = data[os.write(self._out, data) :]


def _now() -> float:
    """Counts on while the machine is asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _listen(answers: queue.Queue[bytes]) -> None:
    """Hand on what the agent says; with the agent's end, end."""
    for data in sys.stdin.buffer:
        answers.put(data)
    os._exit(1)


def _settle_in() -> int:
    """Out of the trainer's way, and gone with the agent. What was stdout: libraries print to stderr."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _give_way(STARTING)
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def _give_way(niceness: int) -> None:
    """Of the threads that are begun from here on, and of this one; never less than already."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
        # Where Linux groups processes by session it weighs those, and a niceness counts within its session alone.
        Path("/proc/self/autogroup").write_text(str(niceness))


def work_for(package: str, job: Any) -> Callable[[Any, Tell], Any]:
    """What does the job, imported."""
    module, _, name = importlib.import_module(package).WORK[type(job)].partition(".")
    work: Callable[[Any, Tell], Any] = getattr(importlib.import_module(f"{package}.{module}"), name)
    return work


def told(package: str, job: Any, error: Exception) -> Failed:
    if isinstance(error, Refused):
        return Failed("refused", f"the lease is not safely ours: no {error}", "transient")
    if isinstance(error, Untold):
        return Failed("untold", str(error), "permanent")
    failed: Failed = importlib.import_module(f"{package}.failures").told(error, job)
    code, words = (clean(sayable(scrub(said)), MOST_WORDS) for said in (failed.code, failed.words))
    return replace(failed, code=code, words=words)


def main(package: str) -> NoReturn:
    out = _settle_in()
    answers: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(answers,), daemon=True, name="agent").start()
    job: Any = msgspec.json.decode(answers.get(), type=importlib.import_module(package).JOBS)
    tell = Tell(out, answers, os.environ.get(FAULT, ""))
    try:
        work = work_for(package, job)
        _give_way(NICE)
        result = work(job, tell)
        tell._say(Result(msgspec.Raw(encoded(result))))
    except Exception as error:  # noqa: BLE001 - whatever it was, the agent is told
        tell._say(told(package, job, error))
    os._exit(0)  # threads that wait for a peer that never answers are left behind


if __name__ == "__main__":
    main(sys.argv[1])
