"""FORK_FROM, where a run has no checkpoint of its own: brought onto its volume, published as its first, and said."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec

from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.checkpoints.forking import NoParent, adopt, copied, find
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.receiving import forget, place_for
from relay_agent.checkpoints.resume import Resume
from relay_agent.checkpoints.tree import Cancelled, Torn
from relay_agent.config import Settings
from relay_agent.fork_from import ForkFrom
from relay_agent.hub.restore import OnHub
from relay_agent.hub.wish import wish_of
from relay_agent.outcome.stop import Stop
from relay_agent.process import say
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import RunConfig
from relaytui.wire.text import counted


class Forking:
    def __init__(
        self,
        settings: Settings,
        config: RunConfig,
        folder: RunFolder,
        tenure: Tenure,
        tell: Teller,
        stop: Stop,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._config = config
        self._folder = folder
        self._tenure = tenure
        self._tell = tell
        self._stop = stop
        self._clock = clock
        self._rng = rng

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
            self._tenure.fenced()
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
        sealed = await asyncio.to_thread(find, parent, wanted.step, check)
        size = counted(sealed.manifest.total_bytes, "byte")
        say(f"forking run {wanted.run_id} at step {sealed.manifest.step}: copying {sealed.name}, {size}")
        return await asyncio.to_thread(copied, self._folder, sealed, check)

    async def _from_hub(self, wanted: ForkFrom) -> tuple[Path, str]:
        wish = wish_of(msgspec.structs.replace(self._settings, hf_repo=wanted.repo), self._config)
        source = OnHub(wish.where, wish.cache, self._stop, self._clock, self._rng, self._tell.transfer)
        found = [step for step in await source.steps() if wanted.tag in ("", step.tag)]
        whole = [step for step in found if not step.trouble]
        if not whole:
            raise NoParent(found[0].trouble if found and wanted.tag else f"{wanted.repo} has no such tag")
        step = max(whole, key=lambda step: (step.epoch, step.seq))
        size = counted(step.bytes, "byte")
        say(f"forking run {step.run_id} at step {step.step}: bringing {step.tag} of {wanted.repo}, {size}")
        received = await source.pull(step, place_for(self._folder, step.manifest))
        source.placed(step)
        return received, step.tag

    async def _adopted(self, wanted: ForkFrom, received: Path, tag: str) -> Resume:
        epoch = self._tenure.lease.epoch
        done, parent = await asyncio.to_thread(
            adopt, self._folder, received, epoch, self._mine, mode=self._settings.mode, wall=self._clock.wall,
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

    def _mine(self) -> bool:
        return self._tenure.held and highest_claim(self._folder) <= self._tenure.lease.epoch

    def _refused(self, wanted: ForkFrom, why: str, *, for_now: bool = False) -> RelayError:
        return RelayError(
            "fork_impossible",
            f"run {self._settings.run_id} cannot begin with FORK_FROM {wanted.text}: {why}",
            "start the agent again later" if for_now else "name another step, or unset FORK_FROM to begin without one",
            exit_code=Exit.UNAVAILABLE if for_now else Exit.USAGE,
        )
