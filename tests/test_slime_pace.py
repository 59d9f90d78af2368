"""slime counts rollouts between saves, Relay wishes seconds: from one attempt to the next the one becomes the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_rig import LAUNCHERS
from commander_kit import FakeClock

sys.path.insert(0, str(LAUNCHERS))
import slime_pace

LINE = (
    "(RolloutManager pid=4990) [2026-03-01 09:59:31] rollout_metrics.py:268 - perf {}: {{'perf/rollout_time': 33.1}}\n"
)


def made(file: Path, *seconds: float, first: int = 0) -> None:
    """Rollouts that take so long, told in writes that cut lines anywhere; each is told twice."""
    clock = FakeClock()
    pace = slime_pace.Pace(file, clock.boot)
    for number, each in enumerate((0.0, *seconds), first):
        clock.advance(each)
        told = (LINE.format(number) + LINE.format(number).replace("perf", "rollout")).encode()
        for at in range(0, len(told), 7):
            pace.hear(told[at : at + 7])
        pace.hear(b"INFO: 127.0.0.1 - GET /health HTTP/1.1 200 OK\n" * 3)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """RELAY_OUTPUT_DIR of the third attempt."""
    for epoch in (1, 2, 3):
        (tmp_path / f"e{epoch:08d}").mkdir()
    return tmp_path / "e00000003"


def test_what_rollouts_took_says_how_many_fit_between_two_saves(output: Path) -> None:
    made(output.parent / "e00000001" / slime_pace.NAME, 10.0, 10.0)
    made(output.parent / "e00000002" / slime_pace.NAME, 300.0, 100.0, 120.0, 110.0, first=7)
    assert slime_pace.known(output) == 115.0, "of the latest attempt, and one slow one says little"
    assert slime_pace.interval("auto", "600", output) == "5"
    assert slime_pace.interval("auto", "60", output) == "1", "never none"
    assert slime_pace.interval("3", "600", output) == "3", "whoever says a number means it"
    assert slime_pace.interval("", "600", output) == ""


def test_before_the_first_rollouts_nobody_knows(output: Path) -> None:
    made(output.parent / "e00000002" / slime_pace.NAME)
    assert slime_pace.interval("auto", "600", output) == ""
    assert slime_pace.interval("auto", "600", output / "nowhere") == ""


@pytest.mark.parametrize(
    "words", ["", "{", "[]", '{"seconds": -1}', '{"seconds": "x"}', '{"seconds": 1e999}', "9" * 5000]
)
def test_a_word_that_is_none_is_passed_over(output: Path, words: str) -> None:
    made(output.parent / "e00000001" / slime_pace.NAME, 20.0)
    (output.parent / "e00000002" / slime_pace.NAME).write_text(words)
    assert slime_pace.known(output) == 20.0
    assert slime_pace.interval("auto", "x", output) == ""


def test_a_launcher_leaves_word_and_the_next_goes_by_it(tmp_path: Path) -> None:
    """By the launcher's own modules, in a process of theirs."""
    out = tmp_path / "out" / "e00000001"
    out.mkdir(parents=True)
    program = (
        "import slime_follow, sys; o = slime_follow.Output();"
        " [o.write(line.encode()) for line in sys.argv[1:]]; sys.exit(not o.trained)"
    )
    env = {**os.environ, "RELAY_OUTPUT_DIR": str(out), "PYTHONPATH": str(LAUNCHERS)}
    told = [LINE.format(number) for number in range(3)]
    done = subprocess.run([sys.executable, "-c", program, *told], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(told)
    assert json.loads((out / slime_pace.NAME).read_text())["seconds"] > 0
