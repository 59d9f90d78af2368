"""Holders of one run are killed, or frozen and superseded, at random moments of their syncs; each next one goes on.

Afterwards the hub has no tag whose content does not verify, nothing was sent that was stored, no commit of an older
holder came after one of a later, and the last step is there. `python -m tests.faults.hub_kills --rounds 200 --seed 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay_agent.checkpoints.line import survey
from relay_agent.volume.volume import Claim, RunFolder, claim, open_run
from tests.faults.hub_holder import LEASE
from tests.hub import RemoteHub, hub_process

REPO = "relay/run-1"
EACH = 6
"""Checkpoints that a holder would save, if it were let."""


PHASES = ("waiting", "uploading", "commit", "tag", "done")
"""Of a sync, as a holder tells them. At a random one, and a little later, it comes to its end."""
PATIENCE = 45.0


class BrokenPromiseError(AssertionError):
    pass


class Rounds:
    def __init__(self, root: Path, hub: RemoteHub, seed: int) -> None:
        (root / "volume").mkdir()
        self.run: RunFolder = open_run(root / "volume", "run-1")
        self.hub = hub
        self.rng = random.Random(seed)
        self.epoch = 0
        self.holders: list[subprocess.Popen[bytes]] = []
        self.frozen: list[tuple[subprocess.Popen[bytes], list[int]]] = []
        self.log = root / "holders.log"
        self.log.touch()

    def begin(self) -> subprocess.Popen[bytes]:
        self.epoch += 1
        line = survey(self.run).line
        base = line[0] if line else None
        claim(self.run, Claim(self.epoch, "pod", f"i{self.epoch}", base.name if base else None, "c", 0.0))
        first = base.manifest.step + 1 if base else 1
        words = (self.run.root, self.epoch, first, first + EACH - 1, self.hub.url, REPO)
        command = [sys.executable, "-m", "tests.faults.hub_holder", *map(str, words)]
        with self.log.open("ab") as log:
            holder = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.holders = [*(each for each in self.holders if each.poll() is None), holder]
        return holder

    def wait_for(self, phase: str, since: int, holder: subprocess.Popen[bytes]) -> None:
        """Until the holder said that it is there, or for a while."""
        until = time.monotonic() + PATIENCE
        wanted = f"phase {phase}\n".encode()
        while time.monotonic() < until and holder.poll() is None:
            with self.log.open("rb") as log:
                log.seek(since)
                if wanted in log.read():
                    return
            time.sleep(0.005)

    def disturbed(self) -> None:
        """One holder, and its end."""
        since = self.log.stat().st_size
        holder = self.begin()
        self.wait_for(self.rng.choice(PHASES), since, holder)
        time.sleep(self.rng.choice((0.0, self.rng.uniform(0.0, 0.3))))
        if self.rng.random() < 0.25 and holder.poll() is None:
            pids = [holder.pid, *children(holder.pid)]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            self.frozen.append((holder, pids))
            time.sleep(LEASE + 0.2)
            return
        holder.kill()
        holder.wait()
        if self.frozen and self.rng.random() < 0.7:
            self.thaw()

    def thaw(self) -> None:
        """One that lost its lease while it was frozen goes on."""
        holder, pids = self.frozen.pop()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        holder.kill()
        holder.wait()

    def finish(self) -> None:
        while self.frozen:
            self.thaw()
        holder = self.begin()
        if holder.wait(180) != 0:
            raise BrokenPromiseError(f"the last holder ended with {holder.returncode}")

    def judge(self) -> None:
        if wrong := self.hub.verify(REPO):
            raise BrokenPromiseError(f"tags that do not verify: {', '.join(map(str, wrong))}")
        if twice := self.hub.resent():
            raise BrokenPromiseError(f"sent although it was stored: {dict(twice)}")
        last = survey(self.run).line[0]
        if f"step-{last.manifest.step}" not in self.hub.tags(REPO):
            raise BrokenPromiseError(f"{last.name} is not on the hub: {sorted(self.hub.tags(REPO))}")
        holders = [self._holder(commit["id"]) for commit in reversed(self._get(f"/api/models/{REPO}/commits/main"))]
        known = [holder for holder in holders if holder is not None]
        if known != sorted(known):
            raise BrokenPromiseError(f"an older holder committed after a later one: {known}")

    def _get(self, path: str) -> Any:
        asked = urllib.request.Request(self.hub.url + path, headers={"Authorization": f"Bearer {self.hub.token}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)

    def _holder(self, commit: str) -> int | None:
        try:
            return int(self._get(f"/{REPO}/resolve/{commit}/relay/run.json")["holder"])
        except urllib.error.HTTPError as error:
            error.close()
            return None


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def play(root: Path, rounds: int, seed: int, share: float = 0.03) -> Rounds:
    """`share` of the requests meet a transient fault. BrokenPromiseError where a promise is."""
    with hub_process(root / "hub") as hub:
        hub.set(large_above=100_000)
        hub.plan(seed, share)
        game = Rounds(root, hub, seed)
        try:
            for number in range(rounds):
                game.disturbed()
                if number % 10 == 9:
                    print(f"{number + 1} rounds, {len(hub.tags(REPO))} tags", file=sys.stderr, flush=True)
            hub.plan(None)
            game.finish()
            game.judge()
        finally:
            for holder in game.holders:
                holder.kill()
                holder.wait()
        return game


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hub-kills-"))
    try:
        game = play(root, given.rounds, given.seed)
    except BrokenPromiseError as broken:
        print(f"seed {given.seed}: {broken}\nwhat they said: {root / 'holders.log'}", file=sys.stderr)
        return 1
    print(f"{given.rounds} rounds, {game.epoch} holders: every tag verifies, nothing was sent twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
