"""What an agent does with what a trainer prints, and nothing else: bytes → lines → steps and reports, and the log.

    … | python -m tests.bench.bare.listener LOG

Says that it is ready, reads its stdin to the end, writes every byte to LOG, and says how much that was and how many
steps it saw.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path

from relay_agent.guardian import CHUNK
from relay_agent.guardian.output import PIPE, RUSH, RUSH_GAP, RUSH_PAUSE
from relay_agent.output.follow import Follower
from relay_agent.output.progress import Progress
from relaytui.wire.clock import SystemClock
from relaytui.wire.reports import Log, Step, TelemetryReport


def main(log: str) -> None:
    counts = {"bytes": 0, "lines": 0, "steps": 0}

    def told(report: TelemetryReport) -> None:
        if isinstance(report, Log):
            counts["lines"] += len(report.lines)
        elif isinstance(report, Step):
            counts["steps"] += 1

    follower = Follower(Progress(), SystemClock(), told, lambda mark: None, lambda: None)
    with contextlib.suppress(OSError):
        fcntl.fcntl(0, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE)
    print(json.dumps({"ready": True}), flush=True)
    with Path(log).open("wb", buffering=0) as file:
        rush, at = 0, 0.0
        while data := os.read(0, CHUNK):
            file.write(data)
            counts["bytes"] += len(data)
            follower.feed(data)
            rush = rush + 1 if time.monotonic() - at < RUSH_GAP else 0
            if rush > RUSH:  # as a guardian does: output is let gather
                time.sleep(RUSH_PAUSE)
            at = time.monotonic()
    follower.finish()
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
