"""What a sync tells."""

from __future__ import annotations

from relay_agent.checkpoints.manifest import Sealed
from relay_agent.hub.protocol import Sent
from relay_agent.process import say
from relay_agent.sending.shown import Shown, Tells
from relaytui.wire.clock import Clock
from relaytui.wire.status import TransferKind, TransferPhase
from relaytui.wire.text import counted

TAGS_AT_ONCE = 10
"""In one event: they fit into what is kept of its data."""


class HubShown(Shown):
    kind = TransferKind.HUB
    until = "nothing more is synced until somebody sees to it", "it is tried again in its next turn"

    def __init__(self, repo: str, tell: Tells, clock: Clock) -> None:
        super().__init__(f"the sync to {repo}", f"the newest checkpoint is not on {repo}", tell, clock)
        self._repo = repo
        self._remarked = ""

    def synced(self, sealed: Sealed, sent: Sent, size: int, seconds: float) -> None:
        self.arrived(sealed, size, sent.sent, seconds)
        data = {
            "repo": self._repo, "revision": sent.revision, "step": str(sealed.manifest.step), "tag": sent.tag,
            "bytes": str(size), "checkpoint": sealed.name,
        }  # fmt: skip
        there = " (it was there already)" if sent.stored else ""
        remark = f"; {sent.remark}" if sent.remark and sent.remark != self._remarked else ""  # the same is said once
        self._remarked = sent.remark or self._remarked
        self.say("synced", f"{sealed.name} is on {self._repo} as {sent.tag}{there}{remark}", data)
        if sent.bared:
            words = f"{self._repo} has become public: everybody can read what is there; nothing more is pushed to it"
            self.say("bared", f"{words} unless HF_PRIVATE=false says that it may be", {"repo": self._repo})

    def pruned(self, tags: list[str], freed: int) -> None:
        for at in range(0, len(tags), TAGS_AT_ONCE):
            some = tags[at : at + TAGS_AT_ONCE]
            self.say("pruned", f"{', '.join(some)} went from {self._repo}", {"tags": " ".join(some)})
        if freed:
            say(f"{freed / 1e9:.2f} GB are free again on {self._repo}")

    def dry(self, sealed: Sealed, files: int, size: int, tag: str) -> None:
        self.of(sealed, size)
        self.ends(TransferPhase.DRY)
        what = f"{counted(files, 'file')} of {sealed.name}, {counted(size, 'byte')}"
        data = {"repo": self._repo, "tag": tag, "bytes": str(size), "files": str(files)}
        self.say("dry", f"dry run: {what}, would go to {self._repo} as {tag}", data)
