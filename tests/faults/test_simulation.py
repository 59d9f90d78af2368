"""Worlds of the deterministic simulation, and the bugs planted in it: the same as `python -m tests.faults`.

In a process of its own: what it replaces (pids, randomness, threads) is replaced for nobody else, and a seed is a seed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def faults(*args: str) -> str:
    environ = {"PATH": os.defpath, "PYTHONHASHSEED": "0", "SSL_CERT_FILE": os.environ.get("SSL_CERT_FILE", "")}
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
    3 4 11 16 22 25 37 42 43 45 47 49 58 77 111 114 152 193 214 227 295 312 323 349 373 375 394 400 420 445 491 513 876
    913 992 1043 1094 1392 1435 1497 1561 4260 5207 7517 10083 17669 18106
"""
"""Worlds in which any two kinds of faults meet, and seven in eight of any three; which go through every line of judge
and faults that is ever gone through, and through as many lines of what is judged as twice as many others did."""


@pytest.fixture(scope="module")
def told() -> str:
    """What is told of these worlds."""
    return faults("--seeds", ",".join(MET.split()), "-v")


def test_nothing_acked_is_lost_and_no_run_has_two_histories_whichever_faults_meet(told: str) -> None:
    assert f"{len(MET.split())} worlds" in told
    assert "failed: none" in told
    # They count only where everything goes wrong in them.
    (injected,) = (line for line in told.splitlines() if line.startswith("faults injected"))
    times = [int(number) for number in re.findall(r" (\d+)(?=, |$)", injected.partition(": ")[2])]
    assert len(times) == 25, injected
    assert min(times) >= 10, injected


def test_a_seed_tells_the_same_story_again(told: str) -> None:
    """Alone, and after other worlds."""
    before, alone = told.partition("-- world 11\n")[2], faults("--seed", "11", "-v").partition("-- world 11\n")[2]
    assert story(before) == story(alone)
    assert len(story(alone)) > 20


def test_every_planted_bug_is_caught() -> None:
    print(faults("--bugs"))


def story(told: str) -> list[str]:
    """Of the first world, without the name of its scratch folder."""
    return [line.partition("relay-sim-")[0] for line in told.partition("\n-- world")[0].splitlines() if is_told(line)]


def is_told(line: str) -> bool:
    return re.match(r" *\d+\.\d\d\d ", line) is not None
