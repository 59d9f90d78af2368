"""Renewals at their normal pace while log lines pour in: what a flood of the second database costs the first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from tests.bench.children import BenchError, Child, child, module
from tests.bench.commander_process import commander
from tests.bench.rounds import Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

NAME = "renew.lines"
RENEWING = 64
EVERY = 1.0
"""Seconds between renewals: the quickest pace that an agent has."""
PRINTING, LINES = 50, 100
"""Agents, and lines a second of each."""
ENOUGH = 0.9
"""Of these lines have to come in, or the round says nothing; the time until the last is acknowledged counts."""
SECONDS = 3.0
READY = 60.0
ROUNDS = 3


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder))

        def load(name: str, *arguments: object) -> Child:
            argv = module(f"load.{name}", *map(str, arguments))
            return stack.enter_context(child(f"{name} load", argv, setting.folder, serving.load_environment()))

        renewing = load("renew", "relay", serving.port, RENEWING)
        printing = load("lines", serving.port, PRINTING, LINES)
        for each in (renewing, printing):
            each.answer(READY)
        renewing.ask({"clients": RENEWING, "seconds": 0.3}, READY)  # warm: code paths, file growth
        printing.ask({"seconds": 0.3}, READY)
        samples = interleave(
            {"without lines": lambda: renewals(renewing), "relay": lambda: with_lines(renewing, printing)}, setting
        )
    alone = Yardstick("the same without lines", samples.of("without lines", "p99_ms"))
    return [measured(NAME, "ms", samples.of("relay", "p99_ms"), alone, Goal(at_most=50))]


def renewals(renewing: Child) -> Figures:
    answer = renewing.ask({"clients": RENEWING, "seconds": SECONDS, "every": EVERY}, SECONDS + READY)
    return {"p99_ms": answer["p99_ms"], "renewals": answer["renewals"]}


def with_lines(renewing: Child, printing: Child) -> Figures:
    with asked(printing, {"seconds": SECONDS + 0.5}) as told:
        figures = renewals(renewing)
    rate = told["lines"] / told["seconds"]
    if rate < ENOUGH * PRINTING * LINES:
        raise BenchError(f"{rate:,.0f} of {PRINTING * LINES:,} lines a second came in")
    return {**figures, "lines_per_s": rate, "frames": told["frames"]}


@contextlib.contextmanager
def asked(load: Child, question: dict[str, float]) -> Iterator[dict[str, float]]:
    """Asks now; the answer is in the mapping after the block."""
    answer: dict[str, float] = {}
    load.tell(question)
    yield answer
    answer.update(load.answer(question["seconds"] + READY))
