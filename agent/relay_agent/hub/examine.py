"""What `relay-agent doctor` says of the Hub: whether what is asked for could be done. Makes nothing there."""

from __future__ import annotations

import asyncio

from relay_agent.config import Settings
from relay_agent.hub import calls
from relay_agent.hub.protocol import Check, Checked
from relay_agent.hub.wish import trouble, wish_of
from relay_agent.sending.examined import Word
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.messages import RunConfig

PATIENCE = 25.0
"""Seconds for all of it."""


def _behind(settings: Settings, holder: int) -> str:
    """What is wrong where an attempt has pushed that this volume and its commander do not know of; empty: nothing."""
    try:
        claimed = highest_claim(RunFolder(settings.l1_root / "runs" / settings.run_id))
    except OSError:
        return ""
    if not 0 < claimed < holder:  # from an empty volume the Hub is asked before there is a grant
        return ""
    return f"epoch {holder} has pushed there, and this volume knows of {claimed} at most: nothing of that is pushed"


async def examined(settings: Settings) -> Word | None:
    """None where no repository is named here; the commander may name one."""
    if not settings.hf_repo:
        return None
    wish = wish_of(settings, RunConfig(str(settings.l1_root), settings.run_id, 0, 0, 0, "", False))
    repo = wish.where.repo
    if wrong := trouble(wish):
        return Word("fail", *wrong)
    if missing := calls.missing():
        return Word("fail", missing)
    job = Check(wish.where, settings.run_id, make=False, write=not wish.dry)
    dry = f"HF_DRY_RUN is true: nothing is sent to {repo}" if wish.dry else ""
    try:
        checked = await calls.call(job, Checked, cache=wish.cache, longest=PATIENCE)
    except Trouble as error:
        if dry:
            return Word(
                "warn",
                f"{dry}, and the Hub could not be asked: {error.words}",
                "a pod with an empty volume could not restore from it: see that the Hub can be reached",
            )
        if error.kind == "permanent":
            return Word("fail", f"{repo}: {error.words}", "training goes on without it, and nothing is synced")
        return Word("warn", f"{repo}: {error.words}", "the sync tries again for as long as the run goes on")
    if dry:
        return Word("warn", f"{dry}; the Hub answers", "set HF_DRY_RUN to false to sync")
    if behind := await asyncio.to_thread(_behind, settings, checked.holder):
        return Word(
            "warn",
            f"{repo}: {behind}",
            "requeue the run once this attempt has ended: what it finds there is noted, and the next grant is above it",
        )
    if checked.doubt:
        return Word("warn", f"the token is {checked.user or 'known'}'s; {checked.doubt}", "see what it was given")
    private = "private" if checked.private else "public"
    return Word("ok", f"the token is {checked.user or 'known'}'s; {repo} is, or will be, {private}")
