"""The command line of the simulation."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.faults.sim.planted import BUGS
from tests.faults.sim.world import Result, World

BROKEN = ("internal: ", "TypeError", "AttributeError")
"""In what is found of a bug that is none: code that fails at once, as what it was planted in has changed."""
TRIES = 150
"""Worlds that a planted bug has to escape."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    made.add_argument("--seed", type=int, help="replay one world")
    made.add_argument(
        "--seeds", metavar="A-B", default="1-500", help="worlds A to B, and others after a comma (default %(default)s)"
    )
    made.add_argument("--bugs", nargs="*", metavar="NAME", help="plant each bug, and say which judge catches it")
    made.add_argument("--clean", action="store_true", help="without faults")
    made.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default %(default)s)")
    made.add_argument("-v", "--verbose", action="store_true", help="tell the story of each")
    return made


def main(argv: Sequence[str]) -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a replay
        environ = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.faults", *argv], environ)
    args = parser().parse_args(argv)
    if args.bugs is not None:
        return catch(args.bugs or list(BUGS), args.seed)
    seeds = [args.seed] if args.seed is not None else numbers(args.seeds)
    began = time.perf_counter()
    results: list[Result] = []
    for result in each(seeds, args):
        results.append(result)
        if not result.ok:
            print(f"seed {result.seed}: {result.violations[0]}", flush=True)
            print(f"  replay it: python -m tests.faults --seed {result.seed} -v", flush=True)
    print(summary(results, time.perf_counter() - began))
    return 0 if all(result.ok for result in results) else 1


def numbers(words: str) -> list[int]:
    """`1-3,8` as 1, 2, 3, 8."""
    parts = [part.partition("-") for part in words.split(",")]
    return [seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1)]


def each(seeds: Sequence[int], args: argparse.Namespace) -> Iterator[Result]:
    """The results in the order of their seeds."""
    live = functools.partial(one, faulty=not args.clean, verbose=args.verbose)
    if args.jobs == 1 or len(seeds) == 1:
        yield from map(live, seeds)
        return
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        yield from pool.imap(live, seeds, chunksize=5)


def one(seed: int, *, faulty: bool, verbose: bool) -> Result:
    if verbose:
        print(f"-- world {seed}")
    return World(seed, faulty=faulty, verbose=verbose).run()


def catch(names: Sequence[str], seed: int | None) -> int:
    """Every planted bug meets worlds until a judge catches it; 1 where one escapes them all."""
    escaped = 0
    for name in names:
        for tried in [seed] if seed is not None else [BUGS[name].seen, *range(1, TRIES + 1)]:
            result = World(tried, bug=BUGS[name], verbose=seed is not None).run()
            if not result.ok and any(word in result.violations[0] for word in BROKEN):
                escaped += 1
                print(f"{name:32} is planted in code that has changed: {result.violations[0].splitlines()[-1][:120]}")
                break
            if not result.ok:
                print(f"{name:32} caught in world {tried:3}: {result.violations[0].splitlines()[0][:120]}", flush=True)
                control = World(tried, bug=replace(BUGS[name], replaced=())).run()
                if not control.ok:
                    escaped += 1
                    print(f"{'':32} and so is the same world without it: {control.violations[0][:120]}")
                break
        else:
            escaped += 1
            print(f"{name:32} ESCAPED", flush=True)
    print(f"{len(names) - escaped} of {len(names)} planted bugs caught")
    return 1 if escaped else 0


def summary(results: Sequence[Result], took: float) -> str:
    faults: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    for result in results:
        faults += result.faults
        checks += result.checks
    failed = [result.seed for result in results if not result.ok]
    hours = sum(result.seconds for result in results) / 3600
    steps, callbacks = (sum(getattr(result, name) for result in results) for name in ("steps", "callbacks"))
    lines = [
        f"{len(results)} worlds in {took:.1f} s: {hours:.1f} hours of theirs, {steps} steps, {callbacks} callbacks",
        f"faults injected ({sum(faults.values())}): " + ", ".join(f"{name} {n}" for name, n in sorted(faults.items())),
        f"invariants checked ({sum(checks.values())}): "
        + ", ".join(f"{name} {n}" for name, n in sorted(checks.items())),
        f"failed: {failed if failed else 'none'}",
    ]
    return "\n".join(lines)
