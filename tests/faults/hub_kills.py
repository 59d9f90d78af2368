"""Holders of one run are killed, or frozen and superseded, at random moments of their syncs; each next one goes on.

Afterwards the hub has no tag whose content does not verify, nothing was sent that was stored, no commit of an older
holder came after one of a later, and the last step is there. `python -m tests.faults.hub_kills --rounds 200 --seed 1`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay_agent.checkpoints.line import survey
from relay_agent.volume.volume import Claim, RunFolder, claim, open_run
from tests.faults.hub_holder import LEASE
from tests.faults.kills import BrokenPromiseError, Holder, Killing, campaign, children, programs, told
from tests.hub import RemoteHub, hub_process

REPO = "relay/run-1"
EACH = 6
"""Checkpoints that a holder would save, if it were let."""


PHASES = ("waiting", "uploading", "commit", "tag", "done")
"""Of a sync, as a holder tells them. At a random one, and a little later, it comes to its end."""


class Rounds(Killing):
    def __init__(self, root: Path, hub: RemoteHub, seed: int) -> None:
        super().__init__(root, seed)
        (root / "volume").mkdir()
        self.run: RunFolder = open_run(root / "volume", "run-1")
        self.hub = hub
        self.epoch = 0
        self.frozen: list[tuple[Holder, list[int]]] = []

    def begin(self) -> Holder:
        self.epoch += 1
        line = survey(self.run).line
        base = line[0] if line else None
        claim(self.run, Claim(self.epoch, "pod", f"i{self.epoch}", base.name if base else None, "c", 0.0))
        first = base.manifest.step + 1 if base else 1
        return self.start("hub_holder", self.run.root, self.epoch, first, first + EACH - 1, self.hub.url, REPO)

    def disturbed(self) -> None:
        """One holder, and its end."""
        since = self.said
        holder = self.begin()
        phase = self.rng.choice(PHASES)
        self.wait_for(f"phase {phase}\n", since, holder)
        self.moment(0.3)
        if self.rng.random() < 0.25 and holder.poll() is None:
            pids = [holder.pid, *children(holder.pid)]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            self.frozen.append((holder, pids))
            self.count("frozen", phase)
            time.sleep(LEASE + 0.2)
            return
        self.count("killed", phase)
        self.kill(holder)
        if self.frozen and self.rng.random() < 0.7:
            self.thaw()

    def thaw(self) -> None:
        """One that lost its lease while it was frozen goes on."""
        holder, pids = self.frozen.pop()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        self.kill(holder)

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


def play(root: Path, rounds: int, seed: int, share: float = 0.03) -> Rounds:
    """`share` of the requests meet a transient fault. BrokenPromiseError where a promise is."""
    with hub_process(root / "hub", by=programs.Popen) as hub:
        hub.set(large_above=100_000)
        hub.plan(seed, share)
        game = Rounds(root, hub, seed)
        try:
            for number in range(rounds):
                game.disturbed()
                told(number, lambda: f"{len(hub.tags(REPO))} tags")
            hub.plan(None)
            game.finish()
            game.judge()
        finally:
            game.close()
        return game


def summed(root: Path, rounds: int, seed: int) -> str:
    game = play(root, rounds, seed)
    return f"{rounds} rounds ({game.sums()}), {game.epoch} holders: every tag verifies, nothing was sent twice"


if __name__ == "__main__":
    sys.exit(campaign(__doc__, "hub-kills", summed))
