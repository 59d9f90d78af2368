"""Agents, their children and the commander are killed at every phase of an upload; each next one goes on.

Afterwards what is listed is whole, no byte came twice that was there, training never waited, and the last checkpoint
is there as what the run ended with. `python -m tests.faults.store_kills --rounds 200 --seed 1`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from relay_agent.checkpoints.line import survey
from relay_agent.volume.volume import Claim, RunFolder, claim, open_run
from tests.faults.kills import BrokenPromiseError, Holder, Killing, campaign, told
from tests.faults.store_rig import RUN, StoreRig

PHASES = ("uploading", "commit", "done")
"""Of an upload, as a holder tells them: its beginning and its chunks, its end."""
VICTIMS = ("agent", "child", "commander")


class Uploading(Killing):
    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        (root / "volume").mkdir()
        self.root = root
        self.run: RunFolder = open_run(root / "volume", RUN)
        self.rig = StoreRig(root / "state")

    def begin(self, steps: int = 0) -> Holder:
        """A holder that goes on where the last one was, in an epoch of its own."""
        rig = self.rig
        rig.next_lease()
        (self.root / "lease.json").write_text(
            json.dumps({"secret": rig.secret(), "epoch": rig.epoch, "token": rig.token})
        )
        line = survey(self.run).line
        base = line[0] if line else None
        claim(self.run, Claim(rig.epoch, "pod", f"i{rig.epoch}", base.name if base else None, "c", 0.0))
        first = base.manifest.step + 1 if base else 1
        return self.start("store_holder", self.run.root, rig.epoch, first, steps, rig.url)

    def disturbed(self, holder: Holder | None) -> Holder | None:
        """One kill; the holder, where it is still there."""
        since = self.said
        holder = holder or self.begin()
        victim, phase = self.rng.choice(VICTIMS), self.rng.choice(PHASES)
        if not self.wait_for(f"phase {phase}\n", since, holder):
            raise BrokenPromiseError(f"no upload came to {phase} (exit {holder.poll()})")
        self.moment(0.15)
        self.count(victim, phase)
        if victim == "agent":
            self.kill(holder)
            self.rig.judge()
            return None
        since = self.said
        self.kill_child(holder) if victim == "child" else self.rig.kill()
        trained = self.wait_for("step ", since, holder)  # a commander that is gone comes back after that only
        if victim == "commander":
            self.rig.start()
        if not trained:
            raise BrokenPromiseError(f"no step after the {victim} was killed at {phase}: training waits for it")
        self.rig.judge()
        return holder

    def finish(self) -> None:
        for holder in self.holders:
            self.kill(holder)
        holder = self.begin(steps=2)
        if holder.wait(120) != 0:
            raise BrokenPromiseError(f"the last holder ended with {holder.returncode}")
        last = survey(self.run).line[0]
        rows = [row for row in self.rig.rows() if row["kind"] == "checkpoint"]
        if not rows or (rows[-1]["name"], rows[-1].get("final")) != (last.name, True):
            raise BrokenPromiseError(f"{last.name} is not what the store has as the last: {rows[-1:]}")
        self.rig.judge()
        if b"failed permanent" in self.log.read_bytes():
            raise BrokenPromiseError("something was given up for good")

    def close(self) -> None:
        super().close()
        self.rig.kill()

    def play(self, rounds: int) -> None:
        holder: Holder | None = None
        for number in range(rounds):
            holder = self.disturbed(holder)
            told(number, lambda: f"{len(self.rig.rows())} rows")
        self.finish()


def play(root: Path, rounds: int, seed: int) -> str:
    """What was done, in a line. BrokenPromiseError where a promise is."""
    game = Uploading(root, seed)
    try:
        game.play(rounds)
        came, stored = game.rig.judge_bytes()
    finally:
        game.close()
    return (
        f"{rounds} kills ({game.sums()}) of uploads in {game.rig.epoch} epochs: what is listed is whole, the last is "
        f"there, {came:,} bytes came ({stored:,} are of what was finished), none twice"
    )


if __name__ == "__main__":
    sys.exit(campaign(__doc__, "store-kills", play))
