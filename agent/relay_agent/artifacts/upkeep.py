"""An attempt's checkpoints go to the artifact store: every one, the best, or the last; and small files at the end.

Where they come faster than they can be sent the newest is sent and those before it are not.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from relay_agent.artifacts import calls
from relay_agent.artifacts.jobs import Attach, Attached, Kept, Put, Store
from relay_agent.artifacts.noted import Entry, Noted
from relay_agent.artifacts.shown import StoreShown
from relay_agent.artifacts.wish import MAX_FILE, MAX_FILES, Wish
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.process import say
from relay_agent.sending.schedule import Schedule
from relay_agent.sending.sender import Call, Holder, Sender


class Upkeep(Sender):
    """`store` is asked when it is needed: the lease's token may be another by then. `call`: in place of the child
    process."""

    shown: StoreShown
    spoilt = frozenset(("damaged", "changed", "unpackable"))
    waits_for_lease = True  # who gives it is who is sent to
    tries_at_end = True

    def __init__(self, wish: Wish, store: Callable[[], Store], holder: Holder, call: Call | None = None) -> None:
        super().__init__(
            StoreShown(holder.tell, holder.clock),
            Schedule(0.0, holder.rng, holder.clock.boot()),
            holder,
            call or functools.partial(calls.call, cache=wish.cache),
        )
        self._wish = wish
        self._store = store
        self._noted = Noted(holder.folder.root / "artifacts", holder.epoch)
        self._under_way = f"{wish.cache}/{holder.folder.run_id}.upload.json"
        self._attached = not wish.files

    async def prepare(self) -> bool:
        await asyncio.to_thread(self._noted.load)
        self.shown.there = self._noted.last_step
        return True

    # -- which -------------------------------------------------------------------------------------------------------

    def next(self, *, closing: bool, final: bool) -> Sealed | None:
        """The newest comes last: it is what stays longest. At the end it is sent once more where it is there already,
        and nothing says yet that the run ended with it."""
        which = self._wish.which
        if which == "none" or (which == "final" and not closing):
            return None
        line, wanted = self.line(), list[Sealed]()
        if which == "best" and self._wish.best is not None and (best := self._wish.best.of(line)) is not None:
            wanted.append(best)
        if line and (which == "every" or closing) and line[0] not in wanted:
            wanted.append(line[0])
        for sealed in wanted:
            known = self._noted.of(sealed.sha256)
            marks = closing and final and sealed is wanted[-1]
            if known is None or (marks and not known.final):
                return sealed
        return None

    def size_left(self, *, final: bool = False) -> int:
        return super().size_left(final=final) or (0 if self._attached else 1)

    # -- one upload --------------------------------------------------------------------------------------------------

    async def send(self, sealed: Sealed) -> None:
        self.shown.of(sealed, attempt=self._schedule.tries)
        began, final = self._clock.boot(), self._final
        kept = await self.work(Put(self._store(), str(sealed.path), sealed.sha256, final, self._under_way), Kept)
        self._schedule.done(self._clock.boot())
        self.shown.kept(sealed, kept, self._clock.boot() - began)
        step, number, at = sealed.manifest.step, kept.artifact, self._clock.wall()
        entry = Entry(sealed.name, step, sealed.sha256, number, at, final, self._epoch)
        try:
            await asyncio.to_thread(self._noted.stored, entry)
        except OSError as error:
            say(f"artifacts/stored.json cannot be written: {error.strerror or error}")

    async def send_rest(self) -> bool:
        if self._attached or not self._closing:
            return False
        await self.see_ours()
        root = str(self._folder.output(self._epoch))
        job = Attach(self._store(), root, list(self._wish.files), MAX_FILE, MAX_FILES)
        attached: Attached = await self._call(job, Attached, may=self.fence)
        self._attached = True
        self._schedule.done(self._clock.boot())
        self.shown.attached(attached)
        return True
