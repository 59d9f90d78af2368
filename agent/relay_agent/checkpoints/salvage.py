"""What earlier attempts saved and nobody published: into the line where it belongs there, aside where it does not.

An agent can die between its trainer's save and the publishing, and a holder that was replaced can go on saving. The
holder of the next epoch, once it has claimed it, looks through the staging folders of all earlier ones:

- whole (marked, or the trainer is known to have ended well), saved by the latest attempt that saved anything, and
  after the newest of the line (`tip`): published in this epoch's line, `saved_by` that attempt,
- whole and anything else: the work of an attempt that went on beside the line; moved into `ckpt/.orphans`,
- not whole: moved into `ckpt/.bad`.

A later attempt that saved something settles which line it is; one that saved nothing has left no history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from relay_agent.checkpoints import take
from relay_agent.checkpoints.aside import empty_trash, orphan, set_aside, throw_away, trim
from relay_agent.checkpoints.disk import FULL, SYSTEM, Disk, folder, is_spoilt, names, refusal, remove_tree
from relay_agent.checkpoints.exit_word import recorded_end
from relay_agent.checkpoints.line import marks_so_far, survey
from relay_agent.checkpoints.manifest import MANIFEST
from relay_agent.checkpoints.missed import listed
from relay_agent.checkpoints.output_watch import HEARD, SEEN
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import Differs, Published, publish
from relay_agent.checkpoints.retention import NEWEST_ONLY, Retention
from relay_agent.checkpoints.shared import OWN
from relay_agent.checkpoints.staging import EARLY, OURS, STEP, Staged, StagingWatch, TornStaged, step_of
from relay_agent.checkpoints.strays import holds_data
from relay_agent.checkpoints.tip import Tip
from relay_agent.checkpoints.tree import Check, Torn, Unreadable, Unsettled, never, walk
from relay_agent.checkpoints.unfinished import UNFINISHED
from relay_agent.volume.volume import RunFolder, staged_epochs
from relaytui.wire.clock import SystemClock
from relaytui.wire.text import clean, sayable

_OURS = (SEEN, HEARD, OWN, take.TAKING, UNFINISHED)
"""Names in a staging folder that agents make there, besides that of the file that asks for a save."""


@dataclass(frozen=True)
class Told:
    """One event."""

    kind: str
    message: str
    name: str


@dataclass(frozen=True)
class _Left:
    """What lies in one dead attempt's staging folder."""

    epoch: int
    path: Path
    whole: list[Staged]
    torn: list[TornStaged]


class Salvage:
    """For the holder of `epoch`, after its claim and before its trainer starts. `keep`: as pruning has it, should the
    volume be full. `accept`: False where the run begins anew, so that nothing belongs to its line. `restarts`: its
    trainer counts its steps anew after a resume. `rescue`: brings what lies in the own folder of the last one's trainer
    into its staging folder. `well`: whether the loss of an epoch's attempt was well at a step, for all that the volume
    tells; None where that is nothing. `over`: whether an epoch's attempt can have been at its end where
    it has saved a step.
    """

    def __init__(
        self,
        run: RunFolder,
        epoch: int,
        still_mine: Callable[[], bool],
        keep: int = 2,
        *,
        accept: bool = True,
        restarts: bool = False,
        mode: str = "",
        trainer: str = "",
        marks: bool | None = None,
        ended: Callable[[RunFolder, int], int] = recorded_end,
        rescue: Callable[[int], list[Told]] = lambda dead: [],
        well: Callable[[int, int], bool | None] = lambda epoch, step: None,
        over: Callable[[int, int], bool] = lambda epoch, step: True,
        retention: Retention = NEWEST_ONLY,
        check: Check = never,
        disk: Disk = SYSTEM,
    ) -> None:
        self._rescue = rescue
        self._well = well
        self._over = over
        self._retention = retention
        self._run = run
        self._epoch = epoch
        self._still_mine = still_mine
        self._keep = keep
        self._accept = accept
        self._restarts = restarts
        self._mode = mode
        self._trainer = trainer
        self._marks = marks
        self._ended = ended
        self._check = check
        self._disk = disk
        self.published: list[Published] = []
        """Oldest first."""
        self.healthy = True
        """Whether the loss was well when the last of them was saved: as when the one before it was, where nothing on
        the volume tells."""
        self.unhealthy: set[str] = set()
        """Names of those of them that were saved while it was not."""
        self.pruned: list[str] = []
        self.told: list[Told] = []

    def work(self) -> Salvage:
        """Blocking: it reads every byte that it publishes. Fenced where `still_mine` said no, Cancelled by `check`;
        OSError where the volume cannot even be listed. What was done until then is told all the same.
        """
        empty_trash(self._run, self._disk)
        dead = [epoch for epoch in staged_epochs(self._run) if epoch < self._epoch]
        for epoch in dead:
            with suppress(OSError):
                take.clear(self._run.staging(epoch), self._disk)
        if dead and self._accept:
            self.told += self._rescue(dead[-1])
        left = list(self._look())
        line = survey(self._run, self._epoch)
        makers = {sealed.manifest.maker for sealed in line.line + line.orphans} | {
            each.epoch for each in left if each.whole
        }
        accepted = max((maker for maker in makers if maker < self._epoch), default=0)
        tip = Tip.of(line.line[0] if line.line else None, self._run.atomic)
        self.healthy = not line.line or line.line[0].manifest.healthy
        for each in left:
            for torn in each.torn:
                self._torn(each.epoch, torn.path, torn.reason)
            for staged in each.whole:
                further = tip.goes_on(each.epoch, staged.step, staged.saved_at, self._restarts)
                # Where it was copied to its place, a crash can leave what is published in the staging folder as well.
                again = not further and staged.step == tip.step and not self._run.atomic
                if self._accept and each.epoch == accepted and (further or again):
                    tip = self._publish(each.epoch, staged, tip, again)
                elif self._accept:
                    self._orphan(each.epoch, staged, f"the line went on to step {tip.step} without it")
                else:
                    self._orphan(each.epoch, staged, "the run goes on from before it, or anew")
            self._clear(each)
        with suppress(OSError):
            trim(self._run, self._still_mine, self._disk)
        return self

    def _clear(self, left: _Left) -> None:
        """Its staging folder goes; into `.bad` where its trainer put something there under names that nobody takes."""
        try:
            found = names(left.path)
            if any(STEP.match(name) for name in found):
                return  # what waits there is looked at again by the next attempt
            ours = {name for name in found if name in _OURS or name.startswith((f".{SEEN}.", f".{HEARD}."))}
            ours.add(self._run.save_file(left.epoch).name)
            strays = sorted(name for name in found if name not in ours and holds_data(left.path / name))
            if not strays:
                throw_away(self._run, left.path, self._disk)
                return
            for name in ours.intersection(found):
                remove_tree(self._disk, left.path / name)
        except OSError:
            return  # as above
        what = f"epoch {left.epoch} saved under other names than step_<N>: {clean(sayable(listed(strays)), 300)}"
        try:
            where = set_aside(self._run, left.path, self._disk)
        except OSError as error:
            words = f"{what}; that cannot be moved: {error.strerror or error}"
            self.told.append(Told("checkpoint.stuck", words, ""))
        else:
            self.told.append(Told("checkpoint.unfit", f"{what}; that is kept in {where}", ""))

    def _look(self) -> Iterator[_Left]:
        marks = self._marks
        if marks is None:
            marks = marks_so_far(self._run, self._mode, self._trainer)
        for dead in staged_epochs(self._run):
            if dead >= self._epoch:
                return
            watch = StagingWatch(self._run.staging(dead), math.inf, SystemClock(), marks)
            watch.demanded = self._marks is True
            watch.may_be_cut, watch.why_cut = self._cut_short(dead), EARLY
            try:
                whole = watch.scan(0.0, self._ended(self._run, dead))
            except OSError as error:
                words = f"the staging folder of epoch {dead} cannot be read: {error.strerror or error}"
                self.told.append(Told("checkpoint.unseen", words, ""))
                continue
            yield _Left(dead, self._run.staging(dead), whole, watch.torn())

    def _cut_short(self, dead: int) -> Callable[[str], bool]:
        return lambda name: not self._over(dead, step_of(name))

    def _publish(self, saved_by: int, staged: Staged, tip: Tip, again: bool) -> Tip:
        """The newest one afterwards: this, or `tip` where it has to be done without. `again`: only where it is that."""
        name = staged.path.name
        what = f"{name} of epoch {saved_by}"
        try:
            try:
                done = self._published(saved_by, staged, again)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.pruned += prune(
                    self._run, self._keep, still_mine=self._still_mine, disk=self._disk, retention=self._retention
                )
                done = self._published(saved_by, staged, again)
        except Differs:
            self._orphan(saved_by, staged, f"the line has another of step {tip.step}")
        except (Unsettled, Unreadable) as trouble:
            self.told.append(Told("checkpoint.unread", f"{what} stays where it is: {trouble}", name))
        except Torn as torn:
            self._torn(saved_by, staged.path, torn.reason)
        except FileNotFoundError:
            pass  # who saved it was quicker: it is published, or gone
        except OSError as error:
            words = error.strerror or str(error)
            if error.errno in FULL:
                words = f"{what} is not published, the volume is full: {words}"
                self.told.append(Told("checkpoint.no_space", words, name))
            elif not is_spoilt(error):
                words = f"{what} is not published, {refusal(error, staged.path)}"
                self.told.append(Told("checkpoint.refused", words, name))
            else:
                self._move(set_aside, saved_by, staged.path, "checkpoint.failed", f"the volume failed: {words}")
        else:
            if not done.fresh:
                return tip
            self.published.append(done)
            words = f"{what} had not been published by its own agent: it is {done.name} now"
            self.told.append(Told("checkpoint.salvaged", words, done.name))
            return Tip(done.step, saved_by, staged.saved_at)
        return tip

    def _published(self, saved_by: int, staged: Staged, again: bool) -> Published:
        _refuse_unflushed(staged.path)
        well = self._well(saved_by, staged.step)
        healthy = self.healthy if well is None else well
        done = publish(
            self._run,
            staged,
            self._epoch,
            self._still_mine,
            mode=self._mode,
            trainer=self._trainer,
            saved_by=saved_by,
            only_again=again,
            healthy=healthy,
            check=self._check,
            disk=self._disk,
        )
        if done.fresh:
            self.healthy = healthy
            self.unhealthy |= set() if healthy else {done.name}
        return done

    def _torn(self, epoch: int, path: Path, reason: str) -> None:
        self._move(set_aside, epoch, path, "checkpoint.torn", reason)

    def _orphan(self, epoch: int, staged: Staged, reason: str) -> None:
        self._move(orphan, epoch, staged.path, "checkpoint.orphan", reason)

    def _move(
        self, move: Callable[[RunFolder, Path, Disk], Path], epoch: int, path: Path, kind: str, reason: str
    ) -> None:
        what = f"{path.name} of epoch {epoch}"
        try:
            where = move(self._run, path, self._disk)
        except OSError as error:
            words = f"{what} is not used ({reason}) and cannot be moved: {error.strerror or error}"
            self.told.append(Told("checkpoint.stuck", words, path.name))
        else:
            self.told.append(Told(kind, f"{what} is kept aside in {where}: {reason}", path.name))


def _refuse_unflushed(path: Path) -> None:
    """Torn where a power cut may have left the name of a file and not its bytes: who saved it need not have flushed
    it before it marked it whole. What its agent had begun to publish was flushed, and is listed."""
    with folder(path) as root:
        if MANIFEST in names(root):
            return
        empty = next((found.path for found in walk(root, ignore=OURS).files if not found.size), None)
    if empty is not None:
        raise Torn(f"{empty!a} is empty, as a file is that was not on the disk yet when the power failed")
