"""FORK_FROM, where a run has no checkpoint of its own: brought onto its volume, published as its first, and said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from relay_agent.attempt.around import Around
from relay_agent.checkpoints.forking import TRIES, NoParent, Pruned, adopt, copied, find
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.receiving import forget, place_for
from relay_agent.checkpoints.resume import Resume
from relay_agent.checkpoints.tree import Cancelled, Torn
from relay_agent.fork_from import ForkFrom
from relay_agent.hub.restore import OnHub
from relay_agent.hub.wish import wish_of
from relay_agent.process import say
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.text import counted


class Forking:
    def __init__(self, around: Around) -> None:
        self._around = around
        self._settings = around.settings
        self._folder = around.folder
        self._tell = around.tell
        self._stop = around.stop

    async def fork(self) -> Resume | None:
        """Its first checkpoint, published in the epoch that is claimed; None where it is no fork, or is to stop.
        RelayError where what it should begin with cannot be had: it does not begin with anything else."""
        wanted = self._settings.fork_from
        if wanted is None:
            return None
        try:
            if wanted.repo:
                received, tag = await self._from_hub(wanted)
            else:
                received, tag = await self._from_volume(wanted), ""
            return await self._adopted(wanted, received, tag)
        except Cancelled:
            return None
        except Fenced:
            self._around.tenure.fenced()
            return None
        except (NoParent, Torn) as wrong:
            raise self._refused(wanted, str(wrong)) from None
        except Trouble as error:
            raise self._refused(wanted, error.words, for_now=error.kind != "permanent") from None

    async def _from_volume(self, wanted: ForkFrom) -> Path:
        parent = RunFolder(self._folder.root.with_name(wanted.run_id), self._folder.atomic)
        if wanted.run_id == self._folder.run_id:
            raise NoParent("it is the run itself")
        if not await asyncio.to_thread(parent.ckpt.is_dir):
            raise NoParent(f"this volume has no run {wanted.run_id}")
        check = self._stop.unless_asked
        for _ in range(TRIES):
            try:
                sealed = await asyncio.to_thread(find, parent, wanted.step, check)
                size = counted(sealed.manifest.total_bytes, "byte")
                say(f"forking run {wanted.run_id} at step {sealed.manifest.step}: copying {sealed.name}, {size}")
                return await asyncio.to_thread(copied, self._folder, sealed, check)
            except Pruned as pruned:
                say(f"run {wanted.run_id} trains on, and has pruned {pruned} meanwhile: choosing again")
                await asyncio.to_thread(forget, self._folder)
        words = f"run {wanted.run_id} prunes its checkpoints faster than they can be copied, {TRIES} times in a row"
        raise Trouble("pruned", f"{words}; RELAY_CKPT_KEEP_LAST_N of the commander says how many it keeps", "transient")

    async def _from_hub(self, wanted: ForkFrom) -> tuple[Path, str]:
        wish = wish_of(msgspec.structs.replace(self._settings, hf_repo=wanted.repo), self._around.holding.config)
        source = OnHub(wish.where, wish.cache, self._stop, self._around.clock, self._around.rng, self._tell.transfer)
        found = [step for step in await source.steps() if wanted.tag in ("", step.tag)]
        whole = [step for step in found if not step.trouble]
        if not whole:
            raise NoParent(found[0].trouble if found and wanted.tag else f"{wanted.repo} has no such tag")
        newest = max(whole, key=lambda step: (step.epoch, step.seq))
        size = counted(newest.bytes, "byte")
        broken: Trouble | None = None
        for step in (step for step in whole if step.manifest == newest.manifest):
            say(f"forking run {step.run_id} at step {step.step}: bringing {step.tag} of {wanted.repo}, {size}")
            try:
                received = await source.pull(step, place_for(self._folder, step.manifest))
            except Trouble as error:
                if error.code != "not_whole":
                    raise
                broken = error  # where another tag has the same manifest, its files may be whole
                continue
            source.placed(step)
            return received, step.tag
        assert broken is not None
        raise broken

    async def _adopted(self, wanted: ForkFrom, received: Path, tag: str) -> Resume:
        epoch, wall = self._around.tenure.lease.epoch, self._around.clock.wall
        done, parent = await asyncio.to_thread(
            adopt, self._folder, received, epoch, self._around.mine, mode=self._settings.mode, wall=wall,
            repo=wanted.repo, tag=tag, check=self._stop.unless_asked,
        )  # fmt: skip
        await asyncio.to_thread(forget, self._folder)
        where = f"{tag} of {wanted.repo}" if wanted.repo else "this volume"
        words = f"forked from {parent.name} of run {parent.run_id} ({where}): {done.name} at step {done.step}"
        data = {"run": parent.run_id, "name": parent.name, "step": str(parent.step), "repo": wanted.repo, "tag": tag}
        self._tell.event("run.forked", words, {key: value for key, value in data.items() if value})
        say(words)
        self._tell.published(done)
        well = done.name if parent.healthy else None
        return Resume(done.path, done.name, done.step, epoch, healthy=parent.healthy, last_healthy=well, forked=True)

    def _refused(self, wanted: ForkFrom, why: str, *, for_now: bool = False) -> RelayError:
        return RelayError(
            "fork_impossible",
            f"run {self._settings.run_id} cannot begin with FORK_FROM {wanted.text}: {why}",
            "start the agent again later" if for_now else "name another step, or unset FORK_FROM to begin without one",
            exit_code=Exit.UNAVAILABLE if for_now else Exit.USAGE,
        )
