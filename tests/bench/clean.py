"""Cleaning a line of what a trainer prints: plain, coloured, and in a script that is drawn two cells wide."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from relaytui.wire.text import clean
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

LENGTH = 150
LINES = 2_000
TIMES = 5
TEXTS = {
    "clean.plain": "step 120/1000 loss 1.234567 lr 0.0003 ".ljust(LENGTH, "."),
    "clean.coloured": ("\x1b[32mINFO\x1b[0m " + "loss 2.5 " * LENGTH)[:LENGTH],
    "clean.cjk": "損失" * (LENGTH // 2),
}
GOALS = {"clean.plain": 1.5, "clean.coloured": 6.0, "clean.cjk": 4.0}


def run(setting: Setting) -> list[Row]:
    variants: dict[str, Callable[[], Figures]] = {}
    for name, text in TEXTS.items():
        clean(text)  # what is made once
        variants[f"{name}, bare"] = partial(cost, bare, text.replace("\x1b", "x"))
        variants[name] = partial(cost, clean, text)
    samples = interleave(variants, setting)
    rows = []
    for name in TEXTS:
        least = Yardstick("isprintable and as UTF-8", samples.of(f"{name}, bare", "us"))
        rows.append(measured(name, "us/line", samples.of(name, "us"), least, Goal(ratio_at_most=GOALS[name])))
    return rows


def bare(text: str) -> bool:
    """The least that looks at every character (which an escape would end), and what sending the line costs anyway."""
    return text.isprintable() and bool(text.encode())


def cost(work: Callable[[str], object], text: str) -> Figures:
    """CPU a line; of some repetitions the least, as each is too short for what disturbs it to even out."""
    took = []
    for _ in range(TIMES):
        began = time.thread_time()
        for _ in range(LINES):
            work(text)
        took.append(time.thread_time() - began)
    return {"us": min(took) / LINES * 1e6}


BENCH = Bench("clean", f"CPU of cleaning a line of {LENGTH} characters", tuple(TEXTS), run)
