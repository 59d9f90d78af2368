"""Taking over the trainer of an agent that is gone: read what it knew, go on from there, do what the rules say."""

from __future__ import annotations

import asyncio
from pathlib import Path

from relay_agent import guardian
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.outcome.stop import Stop, Why
from relay_agent.output import printed
from relay_agent.output.follow import Follower
from relay_agent.pod.takeover import RULES, Act, Found, Standing, Trainer
from relay_agent.process import say
from relay_agent.spool.lane import Mark
from relay_agent.trainer.supervise import Supervised
from relaytui.wire.text import counted

REPLAY = 16 << 20
"""Bytes of the log that are read again for what the earlier agent knew from them."""
STORIES = {
    Trainer.RUNNING: "its trainer still runs",
    Trainer.EXITED: "its trainer has exited meanwhile",
    Trainer.STOPPED: "its trainer was stopped meanwhile",
    Trainer.CRASHED: "its trainer is gone, and nobody knows how",
}


class Rejoining:
    """`same`: whether command, mode and volume are configured as they were."""

    def __init__(self, found: Found, same: bool, tenure: Tenure, tell: Teller, stop: Stop) -> None:
        self.found = found
        self.note = found.note
        self._same = same
        self._tell = tell
        self._stop = stop
        self.act = RULES[found.trainer, Standing.SAME, self._same]
        """What is done, as far as the commander has told how the lease stands."""
        self._became = found.trainer  # of it, by now
        tenure.on_standing = self._stands

    @property
    def again(self) -> bool:
        return self.act in (Act.AGAIN, Act.DRAIN) and self._stop.why in (None, Why.CHANGED)

    @property
    def story(self) -> str:
        ending = self.found.ending
        why = {"orphan": " for want of an agent", "deadline": " at the end of its lease"}
        return "the agent was gone, and " + STORIES[self._became] + (why.get(ending.why, "") if ending else "")

    async def join(self, trainer: Supervised) -> None:
        """Be its agent from now on."""
        found, note = self.found, self.note
        words = f"epoch {note.epoch} goes on with a new agent: {STORIES[found.trainer]}"
        self._tell.event("agent.took_over", words, {"trainer": str(found.trainer)})
        say(f"run {note.run_id}: {words}")
        if found.ending is not None and found.ending.why == "killed" and found.ending.leftovers:
            say(f"stopped {counted(found.ending.leftovers, 'process', 'processes')} that an earlier agent left here")
        if found.line is not None:
            await trainer.adopt(found.line, found.guardian, note.guard, note.grace)
        else:
            assert found.ending is not None
            trainer.recall(found.ending, note.guard)
        if self.act is Act.DRAIN:
            self._drain()

    def stopped_before(self) -> None:
        """It was asked to stop before we came, by whom we do not know, and ran still: go on from what it saved."""
        if self.act in (Act.KEEP, Act.REGISTER):
            self.act, self._became = Act.AGAIN, Trainer.STOPPED

    def _stands(self, standing: Standing) -> None:
        """The commander has told how the lease stands."""
        self.act = RULES[self._became, standing, self._same]

    def _drain(self) -> None:
        say("command, mode or volume was changed: stopping the old trainer; a new one goes on from what it saves")
        self._stop.ask(Why.CHANGED, "its command, mode or volume was changed")


def known_to(mark: Mark | None, line: int) -> Mark:
    """How far an earlier agent is known to have read a log whose first line is number `line`. What it noted last may be
    lost with the end of its spool, and be about the log of the trainer before then."""
    if mark is None or (mark.line <= line and line > 1):
        return Mark(0, line)
    return mark


async def replay(log: Path, mark: Mark, follower: Follower) -> None:
    """Let `follower` know what an earlier agent knew from the log up to `mark`, and go on from there."""
    at = max(0, mark.offset - REPLAY)
    while at < mark.offset:
        data = await asyncio.to_thread(printed.read, log, at, min(guardian.CHUNK, mark.offset - at))
        if not data:
            break
        at += len(data)
        follower.replay(data)
        await asyncio.sleep(0)
    follower.go_on(mark)
