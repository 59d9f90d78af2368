"""Agents that bring a checkpoint back to an empty volume, their children and the commander are killed at every phase.

Whatever is in `ckpt` then is whole, and the next try has all of it: from the artifact store and from the Hub.
`python -m tests.faults.pull_kills --rounds 200 --seed 1`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from relay_agent.checkpoints.line import published, survey
from relay_agent.checkpoints.manifest import Sealed, Torn, verify
from relay_agent.volume.volume import Claim, RunFolder, claim, open_run
from tests.faults.kills import BrokenPromiseError, Holder, Killing, campaign, told
from tests.faults.store_kills import Uploading
from tests.faults.store_rig import RUN
from tests.hub import RemoteHub, hub_process

From = Literal["store", "hub"]
PHASES = ("looking", "downloading", "placing", "done")


class Pulling(Killing):
    """Whoever is killed leaves the volume to the next one; where one brought all of it, the next volume is empty."""

    def __init__(
        self, root: Path, seed: int, kind: From, url: str, lost: RunFolder, uploading: Uploading | None
    ) -> None:
        super().__init__(root, seed, "pulls.log")
        self.root, self.kind, self.url, self.uploading = root, kind, url, uploading
        self.newest: Sealed = survey(lost).line[0]
        self.worlds = 0
        self.run = self.lose()

    def lose(self) -> RunFolder:
        self.worlds += 1
        folder = self.root / f"pod-{self.worlds}"
        folder.mkdir()
        self.run = open_run(folder, RUN)
        return self.run

    def begin(self) -> Holder:
        return self.start("pull_holder", self.run.root, self.kind, self.url)

    def disturbed(self) -> None:
        since, holder = self.said, self.begin()
        victims = ("agent", "child", "commander") if self.uploading else ("agent", "child")
        victim, phase = self.rng.choice(victims), self.rng.choice(PHASES)
        if not self.wait_for(f"phase {phase}\n", since, holder):
            raise BrokenPromiseError(f"nothing came to {phase} (exit {holder.poll()})")
        self.moment(0.25)
        self.count(victim, phase)
        if victim == "agent":
            self.kill(holder)
        else:
            if victim == "child":
                self.kill_child(holder)
            elif self.uploading:
                self.uploading.rig.kill()
                self.uploading.rig.start()
            self.ends(holder)
        self.judge()

    def ends(self, holder: Holder) -> None:
        if holder.wait(60) != 0:
            raise BrokenPromiseError(f"it ended with {holder.returncode}")
        self.judge()
        self.has_all()

    def judge(self) -> None:
        """Whatever is offered to a trainer is whole, and the one that was lost."""
        offered, spoilt = published(self.run)
        if spoilt:
            raise BrokenPromiseError(f"torn ones lie in ckpt: {spoilt}")
        for sealed in offered:
            try:
                verify(sealed.path, RUN)
            except Torn as torn:
                raise BrokenPromiseError(f"{sealed.name} is offered and torn: {torn.reason}") from None
            if sealed.sha256 != self.newest.sha256:
                raise BrokenPromiseError(f"{sealed.name} is not the newest that was lost")

    def has_all(self) -> None:
        claim(self.run, Claim(self.newest.manifest.epoch + 1, "pod", "after", self.newest.name, "c", 0.0))
        line = survey(self.run).line
        if not line or line[0].sha256 != self.newest.sha256:
            raise BrokenPromiseError(f"{self.newest.name} is not what the next attempt goes on from")
        for entry in self.newest.manifest.files:
            if (line[0].path / entry.path).read_bytes() != (self.newest.path / entry.path).read_bytes():
                raise BrokenPromiseError(f"{entry.path} came back otherwise")
        self.lose()

    @property
    def words(self) -> str:
        return (
            f"{sum(self.killed.values())} kills ({self.sums()}) of restores from the {self.kind}, {self.worlds - 1} "
            "volumes: whatever was offered was whole, and the next try had all of it"
        )

    def play(self, rounds: int) -> None:
        for number in range(rounds):
            self.disturbed()
            told(number, lambda: f"{self.worlds} volumes from the {self.kind}")
        self.ends(self.begin())


def from_store(uploading: Uploading, root: Path, rounds: int, seed: int) -> Pulling:
    """What `uploading` has finished."""
    return _played(Pulling(root, seed, "store", uploading.rig.url, uploading.run, uploading), rounds)


def from_hub(url: str, lost: RunFolder, root: Path, rounds: int, seed: int) -> Pulling:
    """What `lost` has, and the Hub at `url` does."""
    return _played(Pulling(root, seed, "hub", url, lost, None), rounds)


def _played(game: Pulling, rounds: int) -> Pulling:
    try:
        game.play(rounds)
    finally:
        game.close()
    return game


def filled(root: Path, hub: RemoteHub) -> RunFolder:
    """A run whose checkpoint is on the Hub."""
    hub.set(large_above=100_000)
    (root / "volume").mkdir()
    run, filling = open_run(root / "volume", RUN), Killing(root, 0)
    claim(run, Claim(1, "pod", "i1", None, "c", 0.0))
    try:
        holder = filling.start("hub_holder", run.root, 1, 1, 1, hub.url, "relay/run-1")
        if holder.wait(90) != 0:
            raise BrokenPromiseError(f"what fills the Hub ended with {holder.returncode}")
    finally:
        filling.close()
    return run


def play(root: Path, rounds: int, seed: int) -> str:
    """Half of them each. BrokenPromiseError where a promise is."""
    for kind in ("store", "hub"):
        (root / kind).mkdir()
    uploading = Uploading(root / "store", seed)
    try:
        uploading.finish()
        store = from_store(uploading, root / "store", rounds // 2, seed)
    finally:
        uploading.close()
    with hub_process(root / "hub" / "state") as there:
        lost = filled(root / "hub", there)
        there.plan(seed, 0.03)  # of its requests, that share meets a transient fault
        hub = from_hub(there.url, lost, root / "hub", rounds // 2, seed)
    return f"{store.words}; {hub.words}"


if __name__ == "__main__":
    sys.exit(campaign(__doc__, "pull-kills", play))
