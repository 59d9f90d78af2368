"""Worlds of the deterministic simulation, and the bugs planted in it: the same as `python -m tests.faults`.

In a process of its own: what it replaces (pids, randomness, threads) is replaced for nobody else, and a seed is a seed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def faults(*args: str) -> str:
    environ = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *args],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


def test_a_world_without_faults_trains_to_its_end() -> None:
    assert "failed: none" in faults("--seeds", "1-5", "--clean")


MET = """
    1 11 16 45 54 58 72 77 85 94 99 109 111 112 114 120 138 152 155 159 173 178 188 193 212 214 215 226 227 232 241
    250 277 278 295 299 307 310 312 323 325 333 349 356 363 373 374 375 377 391 394 395 400 412 420 425 445 448 455
    456 474 491 498
"""
"""Of the first 500 worlds those in which any two faults that meet in one of them do, and all but 88 of the 1,917 threes
that meet: in a seventh of the time."""
NAMED = "898 1104 1706 4260 4465 5207 7517 8347 8571 9516 10083 11962 16411 17669 18106 18604 19415"
"""Worlds that once failed."""


def test_nothing_acked_is_lost_and_no_run_has_two_histories_whichever_faults_meet() -> None:
    told = faults("--seeds", ",".join((MET + NAMED).split()))
    assert "80 worlds" in told
    assert "failed: none" in told
    # They count only where everything goes wrong in them.
    (injected,) = (line for line in told.splitlines() if line.startswith("faults injected"))
    times = [int(number) for number in re.findall(r" (\d+)(?=, |$)", injected.partition(": ")[2])]
    assert len(times) == 25, injected
    assert min(times) >= 10, injected


def test_a_seed_tells_the_same_story_again() -> None:
    first, second = (faults("--seed", "11", "-v") for _ in range(2))
    assert story(first) == story(second)


def story(told: str) -> list[str]:
    """Without the name of its scratch folder, and how long it took."""
    return [line.partition("relay-sim-")[0] for line in told.splitlines() if "worlds in" not in line]


def test_every_planted_bug_is_caught() -> None:
    print(faults("--bugs"))
