"""What `relay-agent doctor` says of the Hub: whether what is asked for could be done. Makes nothing there."""

from __future__ import annotations

from typing import Literal, NamedTuple

from relay_agent.config import Settings
from relay_agent.hub import calls
from relay_agent.hub.calls import HubError
from relay_agent.hub.protocol import Check, Checked
from relay_agent.hub.wish import trouble, wish_of
from relaytui.wire.messages import RunConfig

PATIENCE = 25.0
"""Seconds for all of it."""


class Word(NamedTuple):
    level: Literal["ok", "warn", "fail"]
    why: str
    todo: str = ""


async def examined(settings: Settings) -> Word | None:
    """None where no repository is named here; the commander may name one."""
    nothing = RunConfig(str(settings.l1_root), settings.run_id, 0, 0, 0, "", False)
    wish = wish_of(settings, nothing)
    if wish is None:
        return None
    repo = wish.where.repo
    if wrong := trouble(wish):
        return Word("fail", wrong, "set HF_REPO to owner/name and HF_TOKEN to a token that may write there")
    if missing := calls.missing():
        return Word("fail", missing)
    if wish.dry:
        return Word("warn", f"HF_DRY_RUN is true: nothing is sent to {repo}", "set HF_DRY_RUN to false to sync")
    job = Check(wish.where, settings.run_id, make=False)
    try:
        checked = await calls.call(job, Checked, cache=wish.cache, longest=PATIENCE)
    except HubError as error:
        why = f"{repo}: {error.words}"
        if error.kind == "permanent":
            return Word("fail", why, "training goes on without it, and nothing is synced")
        return Word("warn", why, "the sync tries again for as long as the run goes on")
    private = "private" if checked.private else "public"
    return Word("ok", f"the token is {checked.user or 'known'}'s; {repo} is, or will be, {private}")
