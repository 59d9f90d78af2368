"""Processes that are killed at a phase of their work, again and again: what the campaigns of kills have in common.

A holder says `phase NAME` when it comes there. `Killing` starts one, waits until it does, and ends it, or its child.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import programs

Holder = subprocess.Popen[bytes]
PATIENCE = 45.0


class BrokenPromiseError(AssertionError):
    pass


class Killing:
    def __init__(self, root: Path, seed: int, log: str = "holders.log") -> None:
        self.rng = random.Random(seed)
        self.holders: list[Holder] = []
        self.log = root / log
        self.log.touch()
        self.killed: dict[str, int] = {}
        """How often what was killed where."""

    def start(self, module: str, *words: object) -> Holder:
        command = [sys.executable, "-m", f"tests.faults.{module}", *map(str, words)]
        with self.log.open("ab") as log:
            holder = programs.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.holders = [*(each for each in self.holders if each.poll() is None), holder]
        return holder

    @property
    def said(self) -> int:
        """Bytes of all that was said until now."""
        return self.log.stat().st_size

    def wait_for(self, word: str, since: int, holder: Holder) -> bool:
        """Until the holder said so, or for a while, or to its end."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            over = holder.poll() is not None
            with self.log.open("rb") as log:
                log.seek(since)
                if f"\n{word}".encode() in b"\n" + log.read():
                    return True
            if over:
                return False
            time.sleep(0.005)
        return False

    def moment(self, longest: float) -> None:
        """A little later."""
        time.sleep(self.rng.choice((0.0, self.rng.uniform(0.0, longest))))

    def kill(self, holder: Holder) -> None:
        holder.kill()
        holder.wait()

    def kill_child(self, holder: Holder) -> None:
        for pid in children(holder.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def count(self, what: str, where: str) -> None:
        self.killed[f"{what} {where}"] = self.killed.get(f"{what} {where}", 0) + 1

    def sums(self) -> str:
        """`agent 12, child 9`."""
        sums: dict[str, int] = {}
        for name, times in self.killed.items():
            what = name.partition(" ")[0]
            sums[what] = sums.get(what, 0) + times
        return ", ".join(f"{what} {times}" for what, times in sorted(sums.items()))

    def close(self) -> None:
        for holder in self.holders:
            self.kill(holder)


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def told(number: int, words: Callable[[], str]) -> None:
    if number % 10 == 9:
        print(f"{number + 1} rounds, {words()}", file=sys.stderr, flush=True)


def campaign(doc: str | None, name: str, play: Callable[[Path, int, int], str]) -> int:
    """A command that plays `--rounds` of `--seed` and prints what `play` says of them."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    try:
        print(play(root, given.rounds, given.seed))
    except BrokenPromiseError as broken:
        print(f"seed {given.seed}: {broken}\nwhat they said: *.log in {root}", file=sys.stderr)
        return 1
    return 0
