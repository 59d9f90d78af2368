"""The highest epoch that the Hub knows of, for a grant above it: where the volume cannot tell, the Hub is asked.

A commander with new books would grant epochs from 1 on, and whoever holds one pushes nothing over what an attempt of a
higher one has pushed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from relay_agent.config import Settings
from relay_agent.volume.volume import MAX_JUMP, RunFolder, highest_claim
from relaytui.wire.messages import Granted

WITHIN = 20.0
"""Seconds that the Hub has to answer, at most; with a lease in hand a third of its length."""


class Beyond:
    """`lease.acquire.Elsewhere`. Asks a repository once in its life, and only where nothing was claimed on the volume:
    else what a sync finds there is noted on it."""

    def __init__(self, settings: Settings, folder: RunFolder, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._folder = folder
        self._say = say
        self._asked = False

    async def __call__(self, granted: Granted | None) -> int:
        repo = self._settings.hf_repo or (granted.config.hf_repo if granted is not None else "")
        if not repo:
            return 0
        from relay_agent.hub.attempts import noted  # who has nothing there loads nothing of it
        from relay_agent.hub.layout import repo_of

        repo = repo_of(repo, self._settings.run_id)
        known, empty = 0, False
        with suppress(OSError):
            known = await asyncio.to_thread(noted, self._folder.hf)
            empty = await asyncio.to_thread(highest_claim, self._folder) == 0
        if empty and not self._asked:
            self._asked = True
            within = WITHIN if granted is None else min(WITHIN, granted.lease_seconds / 3)
            known = max(known, await self._ask(repo, within))
        if known > MAX_JUMP:
            self._say(f"no run comes to epoch {known}, which {repo} tells of: it is not heeded")
            return 0
        return known

    async def _ask(self, repo: str, within: float) -> int:
        from relay_agent.hub.attempts import highest
        from relay_agent.sending.trouble import Trouble

        try:
            return await highest(self._settings, repo, within)
        except Trouble as error:
            self._say(
                f"{repo} cannot be asked which attempts have pushed there: {error.words}; it is asked again before"
                " the first sync"
            )
            return 0
