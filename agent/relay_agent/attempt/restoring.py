"""An attempt that does not find on its volume what it should go on from looks for it on the Hub: `whence` says when.

What is taken from there is read to the last byte and put into `ckpt` as it was (`placing`), so that it is the
checkpoint that the commander and the Hub know. Everything else that was found there is said, and passed over.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress

from relay_agent.artifacts.restore import InStore
from relay_agent.artifacts.wish import wish_of as store_wish_of
from relay_agent.attempt.around import Around
from relay_agent.attempt.storing import store_of
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure, is_ours
from relay_agent.attempt.whence import TABLE, Act, Found, Here, Mark, Rule, There, is_foreign, is_known, there
from relay_agent.checkpoints.aside import throw_away
from relay_agent.checkpoints.manifest import Sealed, read
from relay_agent.checkpoints.placing import Taken, place
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.receiving import place_for
from relay_agent.checkpoints.resume import Resume
from relay_agent.checkpoints.rollback import Rollback, is_beyond, notes
from relay_agent.checkpoints.tree import Cancelled, Torn, Unreadable
from relay_agent.hub.layout import repo_trouble
from relay_agent.hub.restore import OnHub
from relay_agent.hub.wish import wish_of
from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relay_agent.sending.protocol import Step
from relay_agent.sending.source import Source
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import MAX_JUMP, RunFolder
from relaytui.wire.messages import CheckpointRef
from relaytui.wire.text import counted


class Restoring:
    """`sources`: the first one's is taken of what several have; of what all of them have the newest counts."""

    def __init__(
        self, sources: Sequence[Source], folder: RunFolder, rule: Rule, tenure: Tenure, tell: Teller, stop: Stop
    ) -> None:
        self._sources = sources
        self._folder = folder
        self._rule: Rule = rule
        self._tenure = tenure
        self._tell = tell
        self._stop = stop

    @classmethod
    def of(cls, around: Around) -> Restoring:
        settings, tell, tenure, stop = around.settings, around.tell, around.tenure, around.stop
        common = stop, around.clock, around.rng, tell.transfer
        sources: list[Source] = []
        if around.names_hub:
            wish = wish_of(settings, around.holding.config)
            if not repo_trouble(wish.where.repo):  # it is said where it is to be synced to
                sources.append(OnHub(wish.where, wish.cache, *common))
        if settings.artifacts != "none":
            cache = store_wish_of(settings).cache
            sources.append(InStore(functools.partial(store_of, around), cache, *common))
        return cls(sources, around.folder, settings.on_missing_checkpoint, tenure, tell, stop)

    async def find(
        self, here: Here, resume: Resume | None, known: CheckpointRef | None, *, healthy: bool = False
    ) -> Found:
        """What is to be done; where that is HUB, it is in its place. `resume`: the best on the volume; `known`: the
        newest that the commander knows, unless the volume is beyond that. `healthy`: only one that was saved while the
        loss was well. Cancelled; OSError where the volume fails."""
        if here is Here.NEWEST or not self._sources:
            return Found(TABLE[here, There.NOTHING, self._rule])
        return await self._ask(here, resume, known, healthy)

    async def _ask(self, here: Here, resume: Resume | None, known: CheckpointRef | None, healthy: bool) -> Found:
        mark = await asyncio.to_thread(_mark, resume)
        spoilt = await asyncio.to_thread(notes, self._folder)
        missed: dict[str, str] = {}  # why what may be whole cannot be had, by its manifest; "": of all in some place
        found: list[tuple[Source, Step]] = []
        for source in self._sources:
            say(f"looking for checkpoints of the run at {source.where}")
            try:
                steps = await source.steps()
            except Trouble as error:
                words = f"{source.where} cannot be asked for checkpoints: {error.words}"
                self._failed(words, error.code)
                missed.setdefault("", words)
                continue
            found += [(source, step) for step in self._candidates(source.where, steps, spoilt, healthy)]
        ours = self._tenure.lease.epoch
        candidates = sorted(
            found,
            key=lambda each: (not is_foreign(known, each[1].epoch, ours), each[1].epoch, each[1].seq),
            reverse=True,
        )
        nowhere = not any(known and is_known(known, step.name, step.epoch, step.manifest) for _, step in candidates)
        for source, step in candidates:
            better = next((why for manifest, why in missed.items() if manifest != step.manifest), "")
            first = step.manifest == candidates[0][1].manifest
            here = Here.LOST if here is Here.EMPTY and (better or not first) else here
            what = there(
                known, mark, Mark(step.epoch, step.seq), step.name, step.step, step.manifest, better=bool(better),
                ours=ours, nowhere=nowhere,
            )  # fmt: skip
            act = TABLE[here, what, self._rule]
            words = f"the newest whole one at {source.where} is {step.name} ({step.tag})"
            if known is not None and known.name == step.name and what is not There.NEWEST:
                words += ", with another manifest than the one that the commander knows"
            if act is not Act.HUB:
                act = TABLE[here, There.UNREACHED, self._rule] if better else act
                older = TABLE[here, what, "older"] is Act.HUB
                return Found(act, None, f"{better}; {words}" if better else words, older, what)
            try:
                return Found(Act.HUB, await self._bring(source, step), words, there=what)
            except Trouble as error:
                if error.code != "not_whole":
                    missed[step.manifest] = f"{step.name} at {source.where} cannot be had: {error.words}"
                self._failed(f"{step.tag} of {source.where} is not used: {error.words}", error.code, step)
            except Torn as torn:
                self._failed(f"{step.tag} of {source.where} is not used: {torn.reason}", "not_whole", step)
        better = next(iter(missed.values()), "")
        here = Here.LOST if here is Here.EMPTY and candidates else here
        what = There.UNREACHED if better else There.NOTHING
        words = better or f"nothing to go on from is at {' or '.join(source.where for source in self._sources)}"
        return Found(TABLE[here, what, self._rule], None, words, there=what)

    def _candidates(self, repo: str, steps: list[Step], spoilt: Mapping[int, Rollback], healthy: bool) -> list[Step]:
        """Those that may be gone on from, newest first; the others are said. Each tag of one manifest is among them:
        what lies at the first may be broken where the next one's is whole."""
        usable: dict[tuple[str, str], Step] = {}
        others: set[str] = set()
        for step in steps:
            if step.trouble:
                self._failed(f"{step.tag} of {repo} is not used: {step.trouble}", "not_whole", step)
            elif step.epoch > self._tenure.lease.epoch + MAX_JUMP:
                words = f"{step.tag} of {repo} is not used: no run comes to its epoch, {step.epoch}"
                self._failed(words, "not_whole", step)
            elif step.run_id != self._folder.run_id:
                others.add(step.run_id)
            elif not is_beyond(spoilt, step) and (step.healthy or not healthy):
                usable.setdefault((step.manifest, step.revision), step)
        if others:
            words = f"{repo} holds steps of {', '.join(sorted(others)[:3])}, which is another run: they are not used"
            self._failed(words, "other_run")
        return sorted(usable.values(), key=lambda step: (step.epoch, step.seq), reverse=True)

    async def _bring(self, source: Source, step: Step) -> Resume:
        """Trouble, Torn: it cannot be had from there."""
        say(f"bringing back {step.name}, {counted(step.bytes, 'byte')}, from {source.where} ({step.tag})")
        came = place_for(self._folder, step.manifest)
        had = await asyncio.to_thread(came.exists)
        try:
            sealed = await self._placed(source, step)
        except (Torn, Trouble) as error:
            if isinstance(error, Trouble) and error.code != "not_whole":
                raise
            await asyncio.to_thread(_drop, self._folder, step)
            if not had or isinstance(error, Taken | Unreadable):
                raise
            # A part of it was here from before, and nobody knows what became of that: once more, all of it.
            sealed = await self._placed(source, step)
        source.placed(step)
        manifest = sealed.manifest
        data = {"name": step.name, "step": str(step.step), "repo": source.where, "tag": step.tag}
        more = {"revision": step.revision, "manifest": step.manifest, "bytes": str(step.bytes)}
        words = f"{step.name} is back from {source.where} ({step.tag}), {counted(step.bytes, 'byte')}"
        self._tell.event(source.event, words, {**data, **more})
        say(words)
        well = sealed.name if manifest.healthy else None
        return Resume(
            sealed.path, sealed.name, manifest.step, manifest.epoch, healthy=manifest.healthy, last_healthy=well,
            forked=manifest.forked_from is not None,
        )  # fmt: skip

    async def _placed(self, source: Source, step: Step) -> Sealed:
        received = await source.pull(step, place_for(self._folder, step.manifest))
        ours, check = functools.partial(is_ours, self._tenure, self._folder), self._stop.unless_asked
        try:
            return await asyncio.to_thread(place, self._folder, received, ours, check=check)
        except Fenced:
            self._tenure.fenced()
            raise Cancelled from None

    def _failed(self, words: str, code: str, step: Step | None = None) -> None:
        say(words)
        self._tell.event("restore.failed", words, {"code": code} | ({"tag": step.tag} if step else {}))


def _mark(resume: Resume | None) -> Mark | None:
    """None: whatever is on the Hub is newer than what lies beside the line, or than nothing. Blocking."""
    if resume is None or not resume.on_line:
        return None
    manifest = read(resume.path).manifest
    return Mark(manifest.epoch, manifest.seq)


def _drop(run: RunFolder, step: Step) -> None:
    with suppress(OSError):
        throw_away(run, place_for(run, step.manifest))
