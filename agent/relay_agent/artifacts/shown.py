"""What an upload tells."""

from __future__ import annotations

from relay_agent.artifacts.jobs import STORE, Attached, Kept
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.process import say
from relay_agent.sending.shown import Shown, Tells
from relaytui.wire.clock import Clock
from relaytui.wire.status import TransferKind
from relaytui.wire.text import counted


class StoreShown(Shown):
    kind = TransferKind.ARTIFACT
    until = "nothing more is sent before the end of the run", "it is tried again later"

    def __init__(self, tell: Tells, clock: Clock) -> None:
        super().__init__(f"the upload to {STORE}", f"not all that should be is in {STORE}", tell, clock)

    def kept(self, sealed: Sealed, kept: Kept, seconds: float) -> None:
        self.arrived(sealed, kept.size, kept.sent, seconds)
        there = ", which had its bytes already" if kept.stored else ""
        words = f"{sealed.name} is artifact {kept.artifact} of {STORE}{there}"
        step, number, size = str(sealed.manifest.step), str(kept.artifact), str(kept.size)
        data = {"name": sealed.name, "step": step, "id": number, "bytes": size}
        self.say("stored", words, data, send=False)  # the commander tells it itself

    def attached(self, attached: Attached) -> None:
        if attached.kept:
            say(f"{counted(len(attached.kept), 'file')} went to {STORE}")
        if attached.trouble:
            more = f" (and {len(attached.trouble) - 3} more)" if len(attached.trouble) > 3 else ""
            self.say("left", f"not attached: {'; '.join(attached.trouble[:3])}{more}")
