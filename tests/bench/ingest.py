"""Durable reports a second: several agents, frames of 50, acknowledged after the commit."""

from __future__ import annotations

import contextlib

from tests.bench.children import Child, child, module
from tests.bench.commander_process import commander
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

CONNECTIONS = 64
"""Agents that flood at once, as when a network comes back. Each has four frames in flight, as a real one has."""
SECONDS = 1.5
READY = 60.0


def run(setting: Setting) -> list[Row]:
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder))
        sink = stack.enter_context(child("bare sink", module("bare.sink"), setting.folder))
        relay_load = stack.enter_context(
            child(
                "relay load",
                module("load.ingest", "relay", str(serving.port), str(CONNECTIONS)),
                setting.folder,
                serving.load_environment(),
            )
        )
        bare_load = stack.enter_context(
            child(
                "bare load",
                module("load.ingest", "bare", str(sink.answer(READY)["port"]), str(CONNECTIONS)),
                setting.folder,
            )
        )
        for load in (relay_load, bare_load):
            load.answer(READY)
            load.ask({"seconds": 0.3}, READY)  # warm: code paths, file growth
        samples = interleave(
            {"bare websocket": lambda: burst(bare_load), "relay": lambda: burst(relay_load)},
            setting,
        )
    bare = Yardstick("bare websocket that only decodes", samples.of("bare websocket", "reports_per_s"))
    return [
        measured(
            "ingest",
            "reports/s",
            samples.of("relay", "reports_per_s"),
            bare,
            Goal(at_least=100_000, ratio_at_least=0.2),
        )
    ]


def burst(load: Child) -> Figures:
    answer = load.ask({"seconds": SECONDS}, SECONDS + READY)
    return {"reports_per_s": answer["reports"] / answer["seconds"]}


BENCH = Bench("ingest", f"durable reports a second, {CONNECTIONS} agents, frames of 50", ("ingest",), run)
