"""Waiting for the lease of a run: ask, be denied, wait as long as told, ask again."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from relay_agent.config import Settings
from relay_agent.lease.lease import Lease
from relay_agent.link.asked import LinkLost
from relay_agent.link.link import Link
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import Acquire, Denied, Granted, Renew, Renewed
from relaytui.wire.text import clean

ANSWER_TIMEOUT = 15.0
SAY_EVERY = 60.0
_NUMBERS = re.compile(r"[0-9]+")


Elsewhere = Callable[[Granted | None], Awaitable[int]]
"""The highest epoch that left its traces anywhere but in the volume's claims; 0: none is known. Asked before there is a
grant (None), and with one, which says more of the run."""


async def _nowhere(granted: Granted | None) -> int:
    return 0


@dataclass(frozen=True)
class Grant:
    """A lease that was renewed once since it was granted, so that the answer was not an old one."""

    lease: Lease
    answer: Granted


async def acquire(
    link: Link,
    settings: Settings,
    folder: RunFolder,
    config_hash: str,
    clock: Clock,
    say: Callable[[str], None],
    rng: random.Random,
    elsewhere: Elsewhere = _nowhere,
) -> Grant:
    """Ask until it is granted, above every epoch that is known. RelayError (exit 75) where asking again will not
    help."""
    denied = _Denials(say, clock)
    known = await elsewhere(None)
    while True:
        granted, asked = await _granted(link, settings, folder, config_hash, clock, denied, rng, known)
        lease = Lease.granted(granted.run_id, granted.epoch, granted.token, granted.lease_seconds, asked)
        confirmed = await _confirm(link, lease, clock)
        if confirmed is None:
            continue
        if (above := await elsewhere(granted)) < lease.epoch:
            return Grant(confirmed, granted)
        known = max(known, above)  # the commander said only with the grant where else to look


async def _granted(
    link: Link,
    settings: Settings,
    folder: RunFolder,
    config_hash: str,
    clock: Clock,
    denied: _Denials,
    rng: random.Random,
    known: int,
) -> tuple[Granted, float]:
    """The grant, and when it was first asked for: a lost answer may have been the one that counts."""
    request_id = secrets.token_hex(8)
    asked: float | None = None
    while True:
        await link.up()
        try:
            highest = max(known, await asyncio.to_thread(highest_claim, folder))
        except OSError as error:
            denied.tell(settings.run_id, f"the volume does not answer: {error.strerror or error}")
            await asyncio.sleep(rng.uniform(1.0, 5.0))
            continue
        asked = clock.boot() if asked is None else asked
        try:
            answer = await link.ask(
                lambda number, highest=highest: Acquire(  # type: ignore[misc]
                    number, request_id, settings.run_id, settings.mode, highest, config_hash
                ),
                ANSWER_TIMEOUT,
            )
        except LinkLost:
            await asyncio.sleep(rng.uniform(0.1, 1.0))
            continue
        if isinstance(answer, Granted) and answer.run_id == settings.run_id:
            return answer, asked
        asked = None  # nothing was granted
        if isinstance(answer, Denied):
            if answer.final:
                raise RelayError(
                    "lease_denied",
                    f"the commander denies run {settings.run_id}: {clean(answer.reason, 300)}",
                    "asking again will not help; see `relay-tui runs`",
                    exit_code=Exit.LEASE,
                )
            denied.tell(settings.run_id, clean(answer.reason, 300))
            await asyncio.sleep(rng.uniform(0.5, 1.0) * min(60.0, max(0.1, answer.retry_after)))
        else:
            denied.tell(settings.run_id, "the commander's answer is not understood")
            await asyncio.sleep(rng.uniform(1.0, 5.0))


async def _confirm(link: Link, lease: Lease, clock: Clock) -> Lease | None:
    """Renew once, as long as the lease lasts; None where it is not ours after all."""
    while clock.boot() < lease.safe_until:
        sent = clock.boot()
        try:
            answer = await link.ask(
                lambda number: Renew(number, lease.run_id, lease.epoch, lease.token),
                min(ANSWER_TIMEOUT, lease.every * 2),
            )
        except LinkLost:
            await asyncio.sleep(0.2)
            continue
        return lease.renewed(sent, answer.lease_seconds) if isinstance(answer, Renewed) else None
    return None


class _Denials:
    """Says why one waits: when the reason is new, and now and then."""

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._reason = ""
        self._said_at = float("-inf")

    def tell(self, run_id: str, reason: str) -> None:
        now = self._clock.boot()
        # One that counts seconds down is not new with each of them.
        same = _NUMBERS.sub("0", reason) == _NUMBERS.sub("0", self._reason)
        if not same or now - self._said_at >= SAY_EVERY:
            self._reason, self._said_at = reason, now
            self._say(f"waiting for run {run_id}: {reason}")
