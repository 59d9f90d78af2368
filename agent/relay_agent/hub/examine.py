"""What `relay-agent doctor` says of the Hub: whether what is asked for could be done. Makes nothing there."""

from __future__ import annotations

from relay_agent.config import Settings
from relay_agent.hub import calls
from relay_agent.hub.protocol import Check, Checked
from relay_agent.hub.wish import trouble, wish_of
from relay_agent.sending.examined import Word
from relay_agent.sending.trouble import Trouble
from relaytui.wire.messages import RunConfig

PATIENCE = 25.0
"""Seconds for all of it."""


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
            return Word("warn", f"{dry}, and nothing would come back from there: {error.words}", "see to that")
        if error.kind == "permanent":
            return Word("fail", f"{repo}: {error.words}", "training goes on without it, and nothing is synced")
        return Word("warn", f"{repo}: {error.words}", "the sync tries again for as long as the run goes on")
    if dry:
        return Word("warn", f"{dry}; the Hub answers", "set HF_DRY_RUN to false to sync")
    private = "private" if checked.private else "public"
    return Word("ok", f"the token is {checked.user or 'known'}'s; {repo} is, or will be, {private}")
