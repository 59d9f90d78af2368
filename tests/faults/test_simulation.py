"""500 worlds in the deterministic simulation, and the bugs planted in it: the same as `python -m tests.faults`.

In a process of its own: what it replaces (pids, randomness, threads) is replaced for nobody else, and a seed is a seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("seeds", ["1-250", "251-500"])
def test_in_500_worlds_nothing_acked_is_lost_and_no_run_has_two_histories(seeds: str) -> None:
    assert "failed: none" in faults("--seeds", seeds)


def test_a_seed_tells_the_same_story_again() -> None:
    first, second = (faults("--seed", "11", "-v") for _ in range(2))
    assert story(first) == story(second)


def story(told: str) -> list[str]:
    """Without the name of its scratch folder, and how long it took."""
    return [line.partition("relay-sim-")[0] for line in told.splitlines() if "worlds in" not in line]


def test_every_planted_bug_is_caught() -> None:
    print(faults("--bugs"))
