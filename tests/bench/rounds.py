"""Rounds: everything that is compared is measured once in each, so that a noisy minute hits both sides."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.rows import Row


class Skipped(Exception):  # noqa: N818 - it says what happened
    """A bench that cannot be run on this machine, which is no fault; one line says what it lacks."""


Figures = Mapping[str, float]
"""What one variant measured in one round."""


@dataclass(frozen=True)
class Setting:
    """What a bench is given: how often, a folder of its own on a real disk, where to say how it goes, and which rows
    are wanted (none named: all)."""

    rounds: int
    folder: Path
    say: Callable[[str], None]
    wanted: frozenset[str] = frozenset()

    def wants(self, *rows: str) -> bool:
        return not self.wanted or not self.wanted.isdisjoint(rows)


@dataclass(frozen=True)
class Bench:
    """One topic. `rows` are the names of the rows it makes."""

    name: str
    about: str
    rows: tuple[str, ...]
    run: Callable[[Setting], list[Row]]


@dataclass
class Samples:
    """Figures by variant, one per round."""

    by_variant: dict[str, list[Figures]] = field(default_factory=dict)

    def of(self, variant: str, figure: str) -> list[float]:
        return [figures[figure] for figures in self.by_variant[variant]]


def interleave(variants: Mapping[str, Callable[[], Figures]], setting: Setting) -> Samples:
    """Runs every variant once a round, forwards and backwards in turn so that a drift favours none."""
    samples = Samples({name: [] for name in variants})
    for number in range(1, setting.rounds + 1):
        order = list(variants)[:: 1 if number % 2 else -1]
        for name in order:
            figures = variants[name]()
            samples.by_variant[name].append(figures)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            setting.say(f"round {number}/{setting.rounds}, {name}: {shown}")
    return samples


def machine_state() -> str:
    """How busy the machine is; a wall-clock figure without it says little."""
    words = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}"
    try:
        pressure = Path("/proc/pressure/cpu").read_text(encoding="ascii")
    except OSError:
        return words
    return f"{words}, CPU pressure {pressure.split('avg10=')[1].split()[0]} %"
