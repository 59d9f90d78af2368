"""What an agent does with what a trainer prints, and nothing else: bytes, taken as its guardian
takes them → lines → steps and reports, and the log.

    … | python -m tests.bench.bare.listener LOG

Says that it is ready, reads its stdin to the end, writes every byte to LOG, and says how much that was, how many
steps it saw and when it was through (seconds since 1970): to take an interpreter apart is no part of reading.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

from relay_agent.guardian.output import Output
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
    output = Output(0, pty=False)
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    print(json.dumps({"ready": True}), flush=True)
    with Path(log).open("wb", buffering=0) as file:
        while output.fd >= 0:
            waiting.poll()
            if data := output.take():
                file.write(data)
                counts["bytes"] += len(data)
                follower.feed(data)
    follower.finish()
    print(json.dumps({**counts, "ended": time.time()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
