"""Following a Ray job: what it prints is handed on, and its end is found out, whatever Ray's client makes of either.

On a cluster of this attempt's own the job's log is a file here, and its driver leaves word of how it ended: the client,
which may stop following early (ray-project/ray#51601) and knows no exit code but 0 and 1, is not needed. On somebody
else's there is only the client, asked again and again.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import slime_pace
from slime_tame import say

LOOK = 0.2
"""Seconds between two looks at a log."""
ASK = 15.0
"""Seconds between two questions to Ray about a job that says nothing."""
TRIES = 3
"""Questions without an answer, after which Ray is taken for gone, and its job with it."""
KILLED, STOPPED = 128 + signal.SIGKILL, 128 + signal.SIGTERM
CODES = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": STOPPED}
SEEN = re.compile(rb"(?:^|[\s\-])(?:rollout|step|perf) \d+: \{")
_STATUS = re.compile(r"\b(SUCCEEDED|FAILED|STOPPED|RUNNING|PENDING)\b")


class Output:
    """Hands on bytes as they are. `trained`: a rollout or a step was told."""

    def __init__(self) -> None:
        self.trained = False
        self._tail = b""
        output = os.environ.get("RELAY_OUTPUT_DIR", "")
        self._pace = slime_pace.Pace(Path(output) / slime_pace.NAME) if output else None

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        self.trained = self.trained or bool(SEEN.search(self._tail + data))
        self._tail = (self._tail + data)[-80:]
        if self._pace is not None:
            self._pace.hear(data)


def own_job(log: Path, noted: Path, pid: Path, status: Callable[[], str | None], output: Output) -> int:
    """Its exit code. `noted`: where its driver leaves that, `pid`: where it left its own."""
    at, asked, misses = 0, time.monotonic(), 0
    while True:
        code = _read(noted)  # before the log: what was printed until then is in it
        at = _hand_on(log, at, output)
        if code:
            return int(code) if code.isdigit() else 1
        driver = _read(pid)
        if driver and not Path(f"/proc/{driver}").exists() and not _read(noted):
            _hand_on(log, at, output)
            say("the job's driver was killed")
            return KILLED
        if not driver and time.monotonic() - asked > ASK:  # it may have failed before it began
            asked = time.monotonic()
            known = status()
            misses = misses + 1 if known is None else 0
            if known in CODES or misses >= TRIES:
                say(f"the job has not begun: {known or 'Ray does not answer'}")
                return CODES.get(known or "", 1) or 1
        time.sleep(LOOK)


def _hand_on(log: Path, at: int, output: Output) -> int:
    try:
        with log.open("rb") as file:
            file.seek(at)
            while data := file.read(1 << 16):
                output.write(data)
                at += len(data)
    except OSError:
        pass  # not there yet
    return at


def others_job(logs: list[str], status: Callable[[], str | None], output: Output) -> int:
    """The best that can be said of its exit code: 0, 1, or 143. `logs`: the client that follows. One that follows anew
    begins at the beginning, where what was handed on is skipped."""
    printed = misses = 0
    while True:
        at = 0
        with subprocess.Popen(logs, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            while data := os.read(child.stdout.fileno(), 1 << 16):
                at += len(data)
                if at > printed:
                    output.write(data[max(0, len(data) - (at - printed)) :])
        printed = max(at, printed)
        known = status()
        misses = misses + 1 if known is None else 0
        if known in CODES:
            return CODES[known]
        if misses >= TRIES:
            say("Ray does not answer any more: its job is taken for failed")
            return 1
        time.sleep(1.0)


def status_of(argv: list[str], job: str) -> str | None:
    """By `ray job status`; None: Ray gives no answer."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = (done.stdout + done.stderr).decode(errors="replace").replace(job, "").upper()
    found = _STATUS.search(said)
    return found[1] if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
