"""Signals that reach an agent before it listens to them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli_kit import clean_environment

AGENT = Path(sys.executable).with_name("relay-agent")
DEADLINE = 30.0
SLOW = """
import os, time
open(os.environ["REACHED"], "w").close()
while not os.path.exists(os.environ["REACHED"] + ".go"):
    time.sleep(0.01)
raise ImportError("enough")
"""
Loading = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    """An agent that is in the middle of loading that module."""

    def begin(module: str) -> subprocess.Popen[str]:
        (tmp_path / f"{module}.py").write_text(SLOW)
        reached = tmp_path / "reached"
        env = clean_environment(PYTHONPATH=str(tmp_path), REACHED=str(reached), COMMANDER_URL="http://127.0.0.1:9")
        process = subprocess.Popen([AGENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        until = time.monotonic() + DEADLINE
        while not reached.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until, "it never came so far"
            time.sleep(0.01)
        return process

    return begin


@pytest.mark.parametrize("module", ["click", "msgspec"])
def test_sigterm_while_it_loads_is_143_and_quiet(loading: Loading, module: str) -> None:
    process = loading(module)
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=DEADLINE)
    assert (process.returncode, words) == (143, "")


def test_what_a_scheduler_or_a_terminal_sends_while_it_loads_ends_nothing(loading: Loading, tmp_path: Path) -> None:
    process = loading("click")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        process.send_signal(number)
    (tmp_path / "reached.go").touch()
    _, words = process.communicate(timeout=DEADLINE)
    assert (process.returncode, "enough" in words) == (1, True), "it went on to what stands for the end of this test"


def probe(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import signal; from relay_agent.early import *; {code}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    return f"{done.returncode} {done.stdout}{done.stderr}".strip()


def test_a_signal_that_is_ignored_stays_so_and_one_that_came_is_remembered() -> None:
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN); stop_at_once(); signal.raise_signal(signal.SIGTERM)"
    assert probe(f"{ignoring}; print('on')") == "0 on"
    heard = "stop_at_once(); signal.raise_signal(signal.SIGUSR1); print(signal.SIGUSR1 in HEARD)"
    assert probe(heard) == "0 True"


def test_once_it_is_over_sigterm_leaves_its_exit_code() -> None:
    assert probe("stop_at_once(3); signal.raise_signal(signal.SIGTERM)") == "3"
