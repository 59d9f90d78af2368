"""The run's metrics, kept on the volume for the Hub: `hf/metrics.jsonl`, a line for each step that told any."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from relay_agent import guardian
from relay_agent.secret_words import scrub_lines
from relay_agent.volume.own_files import append, replace
from relaytui.wire.codec import encode
from relaytui.wire.reports import Step, TelemetryReport

MOST = 10_000
"""Lines that wait in memory, at most: of more, every second goes."""
LARGE = 16 << 20
"""Bytes of the file from which on its older half is thinned."""


class Metrics:
    def __init__(self, path: Path, epoch: int) -> None:
        self.path = path
        self._epoch = epoch
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()  # it is flushed in a thread while more is heard
        self._file = threading.Lock()  # and in two, where an attempt ends while a look goes on
        self._every = 1
        self._seen = 0

    def hear(self, report: TelemetryReport) -> None:
        if not isinstance(report, Step) or not report.metrics:
            return
        self._seen += 1
        if self._seen % self._every:
            return
        row = {"step": report.step, "t": report.t, "epoch": self._epoch, **report.metrics}
        with self._lock:
            self._waiting.append(encode(row) + b"\n")
            if len(self._waiting) > MOST:
                self._waiting = self._waiting[1::2]
                self._every *= 2

    def flush(self) -> None:
        """Onto the volume; what it does not take is tried again. Blocking."""
        with self._file:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            append(self.path, scrub_lines(b"".join(waiting)))
        except OSError:
            with self._lock:
                self._waiting = waiting + self._waiting
            raise
        if self.path.stat().st_size > LARGE:
            _thin(self.path)


def _thin(path: Path) -> None:
    """Every second line of the older half goes."""
    with os.fdopen(os.open(path, os.O_RDONLY | guardian.OURS), "rb") as file:
        lines = file.read(4 * LARGE).splitlines(keepends=True)
    half = len(lines) // 2
    replace(path, b"".join(lines[:half:2] + lines[half:]))
