"""The trainer's own folder, seen by the agent: what is whole there is taken for the publisher, and what is told of it.

One thing at a time, in a thread that gives way to the training.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay_agent.checkpoints.adapters import BY_NAME, KINDS, Adapter
from relay_agent.checkpoints.answers import There
from relay_agent.checkpoints.disk import FULL, refusal
from relay_agent.checkpoints.gentle import GentleThread
from relay_agent.checkpoints.handing import Handed, hand_out
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.looked import own_name
from relay_agent.checkpoints.missed import Miss
from relay_agent.checkpoints.output_watch import Doubt, OutputWatch, Ready
from relay_agent.checkpoints.recorder import Recorder
from relay_agent.checkpoints.resume import Resume
from relay_agent.checkpoints.shared import Rewritten, Shared
from relay_agent.checkpoints.staging import SHARE
from relay_agent.checkpoints.take import Occupied
from relay_agent.checkpoints.tree import Cancelled, Check, Torn, Unreadable, Unsettled, never
from relay_agent.checkpoints.unfound import Unfound
from relay_agent.checkpoints.watching import Settling
from relay_agent.config import Settings
from relay_agent.process import say
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock
from relaytui.wire.text import clean, counted

RETRY_AFTER = 15.0
"""Seconds until one that the volume refused is tried again."""
SHARED_EVERY = 2.0
"""Seconds between two looks at what is published as hard links."""
MAX_DOUBTS = 20
"""That are told of at once, the latest."""


def checkpoint_dir(settings: Settings, folder: RunFolder, epoch: int) -> Path:
    """Where that attempt's trainer saves: CHECKPOINT_DIR, below RELAY_OUTPUT_DIR unless it is absolute."""
    return folder.output(epoch) / settings.checkpoint_dir


def kinds_of(settings: Settings) -> tuple[Adapter, ...]:
    """Those that are looked for in it."""
    if settings.checkpoints == "none":
        return ()
    return KINDS if settings.checkpoints == "auto" else (BY_NAME[settings.checkpoints],)


class Taking:
    """Of one attempt. `step_now`: the step that its trainer told last."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        epoch: int,
        clock: Clock,
        recorder: Recorder,
        step_now: Callable[[], int],
        check: Check = never,
    ) -> None:
        self.root = checkpoint_dir(settings, folder, epoch)
        self.gently = GentleThread()
        self._folder = folder
        self._epoch = epoch
        self._clock = clock
        self._recorder = recorder
        self._check = check
        self._watch = OutputWatch(
            self.root, folder.staging(epoch), settings.settle_seconds, clock,
            kinds=kinds_of(settings), step_now=step_now, late_step=self._newest, atomic=folder.atomic,
        )  # fmt: skip
        self._unfound = Unfound(clock, step_now, folder.staging(epoch), self.root, own_name(settings), recorder)
        self._looks = kinds_of(settings) != ()
        self._known: set[str] = set()  # kinds that were found
        self._told: set[tuple[str, str]] = set()
        self._wait_until = 0.0
        self._shared: Shared | None = None
        self._look_at_shared = 0.0
        self.held: dict[str, tuple[int, int]] = {}
        """What is ready and the volume does not take, or does not give: when it was saved, and its step."""
        self.held_why, self.held_as = "", Miss.HELD
        """What the volume said, and what that means for it."""
        self.unsettled: dict[str, tuple[int, int]] = {}
        """What changed while it was taken last, alike."""
        self.behind: dict[str, tuple[int, int]] = {}
        """What waits for another of its step to be published, alike."""

    async def prepare(self, resume: Resume | None) -> Handed:
        """Before the trainer starts: what it is handed, and what lies in its folder that is none of its doing. OSError
        where the volume refuses what has to be put there."""
        handed = Handed()
        if resume is not None:
            handed = await self.gently(hand_out, self._folder, self._epoch, resume.path, self.root, check=self._check)
        before = await self.gently(self._watch.begin)
        for name in handed.there:
            words = f"{name} lay in {self.root} already and stays: the trainer may load that instead of the checkpoint"
            self._recorder.event("resume.unseeded", words)
            say(words)
        if before and not self.root.is_relative_to(self._folder.output(self._epoch)):
            words = (
                f"{counted(len(before), 'checkpoint')} in {self.root} lay there before the trainer started: not taken"
            )
            self._recorder.event("checkpoint.before", words)
            say(words)
        return handed

    def _newest(self) -> int:
        """The step of the newest in the line: what was saved since and tells none is of a later one. Blocking."""
        try:
            line = survey(self._folder, self._epoch).line
        except OSError:
            return 0
        return line[0].manifest.step if line else 0

    def heed_frozen(self, frozen: Callable[[], bool]) -> None:
        """As the publisher has it, of what keeps still in the trainer's own folder."""
        self._watch.watching.frozen = frozen

    def doubt_exit(self, may_be_cut: Callable[[int], bool]) -> None:
        """Of saves of which steps an exit with 0 says nothing."""
        self._watch.may_be_cut = may_be_cut

    @property
    def waiting(self) -> list[str]:
        """What is whole once it has kept still, as of the last look."""
        return self._watch.waiting

    def settling(self) -> list[Settling]:
        """As `OutputWatch` has it."""
        return self._watch.settling()

    @property
    def any(self) -> bool:
        """Whether one lay there at the last look that was not taken, whole or not."""
        return self._watch.any

    def unproven(self) -> list[Doubt]:
        """As `OutputWatch` has it."""
        return self._watch.unproven()

    def scan(self, exited: int | None = None) -> list[Ready] | None:
        """What can be taken, in the order of saving; None: it is not time to look. Blocking. `exited`: the trainer's
        exit code, for the last look."""
        if exited is None and self._clock.boot() < self._wait_until:
            return None
        return self._watch.scan(exited)

    def say_if_none(self, staged: bool) -> None:
        """After a look. `staged`: there is, or was, something in the staging folder."""
        if self._looks:
            self._unfound.look(staged or self._watch.found)

    def pending(self) -> There:
        """What lies there by now and is not taken. Blocking."""
        return self._watch.pending()

    async def take(
        self,
        found: list[Ready] | None,
        exited: int | None = None,
        on_taken: Callable[[str, int, str], None] = lambda path, inode, name: None,
    ) -> None:
        """What a look found is in the staging folder afterwards; `on_taken` hears where each lay, its inode and how it
        is called there. Cancelled where nobody has the time for it."""
        anew = any(ready.again for ready in found or ())  # it begins to write them anew: the others are next
        await self._see_to_shared(exited is not None or anew)
        if found is None:
            return
        self.held, self.unsettled, self.behind = {}, {}, {}
        for ready in found:
            if not await self._take(ready, on_taken):
                break
        doubts = self._watch.doubts() if exited is not None else self._watch.refused()
        for doubt in doubts[-MAX_DOUBTS:]:
            self._tell("checkpoint.untaken", doubt.path, f"{doubt.path} is not taken: {doubt.why}")

    async def _take(self, ready: Ready, on_taken: Callable[[str, int, str], None]) -> bool:
        """Whether the next one may come: those of one volume meet the same fate."""
        name, kind = ready.candidate.path, ready.adapter.name
        saved = ready.saved_at, ready.candidate.step or 0
        try:
            taken = await self.gently(self._watch.take, ready, self._check)
        except Occupied:
            self.behind[name] = saved
            return True
        except Unsettled:
            self.unsettled[name] = saved
            return True  # the next look sees what it is then
        except Unreadable as trouble:
            self._wait_until = self._clock.boot() + RETRY_AFTER
            self.held[name], self.held_why, self.held_as = saved, str(trouble), Miss.REFUSED
            self._tell("checkpoint.untaken", name, f"{name} waits: {trouble}")
        except Torn:
            return True  # told of below
        except Cancelled:
            raise
        except OSError as error:
            self._wait_until = self._clock.boot() + RETRY_AFTER
            self.held[name] = saved
            if error.errno in FULL:
                self.held_why, self.held_as = error.strerror or str(error), Miss.NO_ROOM
                self._tell("checkpoint.no_space", name, f"{name} waits, the volume is full: {self.held_why}")
            else:
                self.held_why, self.held_as = refusal(error, self.root / name), Miss.HELD
                self._tell("checkpoint.refused", name, f"{name} waits, {self.held_why}")
        else:
            on_taken(name, ready.inode, taken.path.name)
            if kind not in self._known:
                self._known.add(kind)
                words = f"checkpoints of {kind} are taken from {self.root}, by {' and '.join(taken.ways)}"
                self._recorder.event("checkpoint.adapter", words, {"adapter": kind})
                say(words)
            return True
        return False

    # -- what is published and lies in the trainer's folder, too ---------------------------------------------------

    async def published(self, path: Path) -> None:
        """One of those that were taken is in the line."""
        if self._shared is not None:
            with suppress(OSError):
                await self.gently(self._shared.add, path)

    async def _see_to_shared(self, at_once: bool) -> None:
        """Files of its own for what a trainer might write to: it has begun to write to one again."""
        now = self._clock.boot()
        if now < self._look_at_shared and not at_once:
            return
        self._look_at_shared = now + SHARED_EVERY
        try:
            if self._shared is None:
                shared = Shared(self._folder, self._epoch, self._check)
                await self.gently(shared.begin)
                self._shared = shared
            first = await self.gently(self._shared.written) if self._shared.any else []
            took = self._clock.boot() - now
            self._look_at_shared = now + max(SHARED_EVERY, SHARE * took)
            if not first:
                return
            self._watch.copies = True
            told, refused = await self.gently(_part, self._shared, first)
        except OSError as error:
            told, refused = [], error
        for each in told:
            what = f"what was published of it lies in {each.aside}" if each.aside else "what was published is unchanged"
            words = f"the trainer wrote to the files of {each.name} again: {what}; copies are taken from now on"
            self._recorder.event("checkpoint.rewritten", words, {"name": each.name})
            say(words)
        if refused is not None:
            self._look_at_shared = now + RETRY_AFTER
            words = f"what is published shares files with the trainer's folder still: {refused.strerror or refused}"
            self._tell("checkpoint.shared", "", words)

    def _tell(self, kind: str, path: str, words: str) -> None:
        """Once."""
        if (path, words) not in self._told:
            self._told.add((path, words))
            self._recorder.event(kind, clean(words, 500), {"name": clean(path, 128)})


def _part(shared: Shared, first: list[str]) -> tuple[list[Rewritten], OSError | None]:
    """What became of them, and why not of all. Blocking."""
    told: list[Rewritten] = []
    try:
        told.extend(shared.part(first))
    except OSError as error:
        return told, error
    return told, None
