"""The volume beside a small model of it: claims, what trainers save, what is published, pruned, damaged, found by a
later holder and resumed from. Both say the same of the line, of what lies beside it and of every claim's base."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from checkpoint_kit import RUN, put, stage, take
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import verify
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import Fenced, publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.salvage import Salvage
from relay_agent.checkpoints.staging import Staged
from relay_agent.volume.volume import claimed_epochs, highest_claim, open_run
from relaytui.wire.errors import RelayError

MEMORY = Path("/dev/shm")


@dataclass
class Saved:
    """A checkpoint that was published: by whom, after which, and whether it is as it was."""

    name: str
    step: int
    epoch: int
    seq: int
    maker: int
    whole: bool = True


@dataclass
class Model:
    bases: dict[int, Saved | None] = field(default_factory=dict)
    """By epoch claimed; that very checkpoint, gone or not, and no other of its name."""
    saved: dict[str, Saved] = field(default_factory=dict)
    """What is published and not gone, by name."""

    @property
    def tip(self) -> int:
        return max(self.bases, default=0)

    def line(self, tip: int | None = None) -> list[Saved]:
        """Newest first: the tip's own, then those of its base's epoch up to the base, and so on."""
        found: list[Saved] = []
        epoch, upto = self.tip if tip is None else tip, None
        while True:
            own = [s for s in self.saved.values() if s.epoch == epoch and (upto is None or s.seq <= upto)]
            found += sorted(own, key=lambda saved: -saved.seq)
            base = self.bases.get(epoch)
            if base is None or self.saved.get(base.name) is not base:
                return found
            epoch, upto = base.epoch, base.seq

    def beside(self) -> list[Saved]:
        """Later epochs first."""
        line = {saved.name for saved in self.line()}
        rest = [saved for saved in self.saved.values() if saved.name not in line]
        return sorted(rest, key=lambda saved: (-saved.epoch, -saved.seq))


class Volume(RuleBasedStateMachine):
    atomic = True

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.run = replace(open_run(self.place, RUN), atomic=self.atomic)
        self.model = Model()
        self.staged: dict[int, list[int]] = {}
        """By epoch, the steps that its trainer saved and nobody published, in the order of saving."""
        self.content = 0
        self.claim()

    def teardown(self) -> None:
        if hasattr(self, "place"):
            shutil.rmtree(self.place)

    # -- holders -------------------------------------------------------------------------------------------------

    @rule()
    def claim(self) -> None:
        """The next holder: resumes from the newest whole one, claims, and looks through what the dead have left."""
        expected = next((s for s in [*self.model.line(), *self.model.beside()] if s.whole), None)
        passed = {s.name for s in [*self.model.line(), *self.model.beside()] if not s.whole}
        resume = choose(self.run)
        assert (resume and resume.name) == (expected and expected.name)
        for name in passed:  # what stood in the way, at least, is set aside
            if not (self.run.ckpt / name).exists():
                del self.model.saved[name]
        base = resume.name if resume else None
        epoch = highest_claim(self.run) + 1
        assert epoch == self.model.tip + 1
        take(self.run, epoch, base)
        self.model.bases[epoch] = expected
        self.salvage(epoch)

    def salvage(self, epoch: int) -> None:
        makers = {saved.maker for saved in self.model.saved.values()} | set(self.staged)
        accepted = max((maker for maker in makers if maker < epoch), default=0)
        line = self.model.line()
        newest = line[0].step if line else -1
        expected = []
        for step in self.staged.get(accepted, []):
            if step > newest:
                newest = step
                expected.append(step)
        work = Salvage(self.run, epoch, lambda: True).work()
        assert [done.step for done in work.published] == expected
        for done in work.published:
            self.note(done.name, done.step, epoch, accepted)
        orphans = [told for told in work.told if told.kind == "checkpoint.orphan"]
        assert len(orphans) == sum(map(len, self.staged.values())) - len(expected)
        self.staged.clear()

    def note(self, name: str, step: int, epoch: int, maker: int) -> None:
        seq = 1 + max((saved.seq for saved in self.model.saved.values()), default=0)
        rested_on = {base.name for base in self.model.bases.values() if base}
        assert name not in self.model.saved.keys() | rested_on, "a name is given once"
        self.model.saved[name] = Saved(name, step, epoch, seq, maker)

    @rule(data=st.data())
    def claim_what_is_over(self, data: st.DataObject) -> None:
        epoch = data.draw(st.integers(1, self.model.tip))
        with pytest.raises(RelayError):
            take(self.run, epoch, None)

    # -- trainers ------------------------------------------------------------------------------------------------

    def epochs(self) -> st.SearchStrategy[int]:
        """Of the holder, mostly; or of one that was replaced and does not know it."""
        return st.sampled_from([self.model.tip] * 3 + [max(1, self.model.tip - 1)])

    def next_step(self, epoch: int, further: int) -> int:
        line = self.model.line(epoch)
        return max(1, (line[0].step if line else 0) + further)

    @rule(data=st.data(), further=st.sampled_from([1, 1, 5, 0, -1]))
    def save_and_publish(self, data: st.DataObject, further: int) -> None:
        epoch = data.draw(self.epochs())
        step = self.next_step(epoch, further)
        self.content += 1
        if (self.run.staging(epoch) / f"step_{step}").exists():
            return
        done = put(self.run, epoch, step, f"content {self.content}")
        assert done.fresh
        self.note(done.name, step, epoch, epoch)

    @rule()
    def save_the_same_again(self) -> None:
        """It is there already: nothing new."""
        epoch = self.model.tip
        line = self.model.line()
        path = self.run.staging(epoch) / f"step_{line[0].step if line else 0}"
        if not line or line[0].epoch != epoch or not line[0].whole or path.exists():
            return
        shutil.copytree(self.run.ckpt / line[0].name, path)
        (path / "manifest.json").unlink()
        (path / "COMPLETE").touch()
        done = publish(self.run, Staged(line[0].step, path), epoch, lambda: True)
        assert (done.fresh, done.name) == (False, line[0].name)

    @rule(data=st.data(), further=st.sampled_from([1, 3]), marker=st.sampled_from([True, True, False]))
    def save_and_die(self, data: st.DataObject, further: int, marker: bool) -> None:
        """The agent is gone before it is published; without a marker nobody knows that it was whole."""
        epoch = data.draw(self.epochs())
        step = self.next_step(epoch, further)
        if (self.run.staging(epoch) / f"step_{step}").exists() or not self.run.staging(epoch).exists():
            return
        self.content += 1
        saved = stage(self.run, epoch, step, f"content {self.content}", marker=marker)
        for path in saved.path.rglob("*"):  # finer than the clock of some file systems
            os.utime(path, (self.content, self.content))
        if marker:
            self.staged.setdefault(epoch, []).append(step)

    @rule(further=st.sampled_from([1, 4]))
    def publish_without_the_lease(self, further: int) -> None:
        epoch = self.model.tip
        step = self.next_step(epoch, further)
        if (self.run.staging(epoch) / f"step_{step}").exists():
            return
        self.content += 1
        staged = stage(self.run, epoch, step, f"content {self.content}")
        with pytest.raises(Fenced):
            publish(self.run, staged, epoch, lambda: False)
        shutil.rmtree(staged.path)

    # -- care and harm -------------------------------------------------------------------------------------------

    @rule(keep=st.sampled_from([1, 2, 3]))
    def prune(self, keep: int) -> None:
        line = [saved for saved in self.model.line() if saved.whole]
        beside = [saved for saved in self.model.beside() if saved.whole]
        spared = {saved.name for saved in (line + beside)[: max(2, keep)]} | {saved.name for saved in line[:2]}
        spared |= {base.name for base in self.model.bases.values() if base}
        tips = {saved.epoch: saved.name for saved in reversed(beside)}
        spared |= set(tips.values())
        expected = [saved.name for saved in line + beside if saved.name not in spared]
        assert prune(self.run, keep) == expected
        for name in expected:
            del self.model.saved[name]

    @precondition(lambda self: any(saved.whole for saved in self.model.saved.values()))
    @rule(data=st.data())
    def tear(self, data: st.DataObject) -> None:
        """Bytes go missing."""
        name = data.draw(st.sampled_from(sorted(s.name for s in self.model.saved.values() if s.whole)))
        (self.run.ckpt / name / "weights.bin").write_bytes(b"torn")
        self.model.saved[name].whole = False

    # -- always --------------------------------------------------------------------------------------------------

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        order = survey(self.run)
        assert [sealed.name for sealed in order.line] == [saved.name for saved in self.model.line()]
        assert [sealed.name for sealed in order.orphans] == [saved.name for saved in self.model.beside()]
        assert order.bad == ()
        assert claimed_epochs(self.run) == sorted(self.model.bases)
        for epoch, base in self.model.bases.items():
            claim = order.claims[epoch]  # as `read_claim` has it
            assert claim is not None
            assert claim.base == (base and base.name)
        for saved in self.model.saved.values():
            if saved.whole:
                assert verify(self.run.ckpt / saved.name, RUN).step == saved.step


class VolumeOfObjects(Volume):
    """Where folders are copied to their place, and the manifest alone makes a checkpoint."""

    atomic = False


_SMALL = settings(
    max_examples=50, stateful_step_count=30, derandomize=True, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip
Volume.TestCase.settings = VolumeOfObjects.TestCase.settings = _SMALL
TestVolume = Volume.TestCase
TestVolumeOfObjects = VolumeOfObjects.TestCase
