"""The holder's side of one lease while an attempt goes on: renewed, cut off, unknown, lost (design §4)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import random
from collections.abc import Callable

from relay_agent.attempt.telling import Teller
from relay_agent.guardian import EARLY
from relay_agent.lease.lease import LEAST_TO_STOP, MARGIN, Lease
from relay_agent.link.asked import Answer, LinkLost
from relay_agent.link.link import Link
from relay_agent.outcome.stop import Stop, Why
from relay_agent.pod.takeover import Standing
from relay_agent.process import say
from relay_agent.volume.volume import RunFolder, highest_claim
from relaytui.wire.clock import Clock
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import Refused, Register, Renew, Renewed
from relaytui.wire.text import clean

RENEW_TIMEOUT = 10.0


class Tenure:
    """`grace`: seconds that a trainer wants to save where one that is cut off stops it; None: it trains on."""

    def __init__(
        self,
        lease: Lease,
        link: Link,
        stop: Stop,
        tell: Teller,
        clock: Clock,
        rng: random.Random,
        mode: str,
        grace: float | None = None,
    ) -> None:
        self.lease = lease
        self._link = link
        self._stop = stop
        self._tell = tell
        self._clock = clock
        self._rng = rng
        self._mode = mode
        self._grace = grace
        self._said_notice = grace
        self._cut_off = False
        self._unknown = False
        self._since = clock.boot()
        self.trains = True
        """Until its trainer is known to have ended."""
        self.ended = False
        """The attempt has told its end, which gives the lease back: that it is released is what was wanted."""
        self.on_renewed: Callable[[Lease], None] | None = None
        self.on_standing: Callable[[Standing], None] | None = None

    @property
    def held(self) -> bool:
        """For all we know."""
        return not self.lease.lost

    @property
    def safe(self) -> bool:
        """Whether nobody else can have it."""
        return self.lease.safe(self._clock.boot())

    def held_for(self) -> float:
        """Seconds for which it is safely ours; 0 once it is lost."""
        return self.lease.safe_until - self._clock.boot() if self.held else 0.0

    @property
    def notice(self) -> float:
        """Seconds that the trainer has to save where it is stopped for the lease's end."""
        return self.lease.notice(self._grace or 0.0)

    def refuse_too_short(self) -> None:
        """RelayError (exit 2) where the trainer would have to be stopped before a renewal could come."""
        if self._grace is not None and (short := too_short(self.lease.seconds)):
            raise short

    def say_notice(self) -> None:
        """Once, that the lease leaves less to save in than the trainer's grace; again where its length changed."""
        if self._grace is None or self.notice == self._said_notice:
            return
        self._said_notice = self.notice
        if self.notice == self._grace:
            return
        words = shortened(self.lease.seconds, self._grace)
        self._tell.event("lease.short", words)
        say(words)

    async def renew(self) -> None:
        """For as long as the lease is ours; at once in every new session, whose commander may have been away long."""
        self.say_notice()
        while not self.lease.lost:
            sent, session = self._clock.boot(), self._link.sessions
            try:
                patience = min(RENEW_TIMEOUT, max(2.0, self.lease.every))
                answer = await self._link.ask(self._renewal, patience, functools.partial(self._renewed, sent))
            except LinkLost:
                self.note_cut_off()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.lease.every):
                        await self._link.up()
                await asyncio.sleep(0.2)
                continue
            if not self._renewed(sent, answer) and isinstance(answer, Refused):
                new = not self._unknown
                self.refused(answer)
                if self._unknown and new:
                    continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.lease.every * self._rng.uniform(0.9, 1.0)):
                    await self._link.after(session)

    async def answers(self, within: float) -> bool:
        """Whether the commander does, so many seconds at most from now; an agent may have just begun to look for it."""
        until = self._clock.boot() + within
        try:
            async with asyncio.timeout(within):
                await self._link.up()
            sent = self._clock.boot()
            answer = await self._link.ask(self._renewal, until - sent, functools.partial(self._renewed, sent))
        except (TimeoutError, LinkLost):
            return False
        if not self._renewed(sent, answer) and isinstance(answer, Refused):
            self.refused(answer)
        return True

    def _renewed(self, sent: float, answer: Answer) -> bool:
        """Take an answer to what was asked at `sent`, however late it comes; False where it renews nothing."""
        if self.lease.lost or not (isinstance(answer, Renewed) and self._is_ours(answer)):
            return False
        self.lease = self.lease.renewed(sent, answer.lease_seconds)
        self.say_notice()
        if self._unknown:
            self._tell.event("lease.registered", "the commander knows this lease again")
            say("the commander knows this lease again")
            self._link.send_again()
        self._cut_off = self._unknown = False
        if self.on_renewed is not None:
            self.on_renewed(self.lease)
        self._stands(Standing.SAME)
        return True

    def _is_ours(self, answer: Renewed | Refused) -> bool:
        return (answer.run_id, answer.epoch) == (self.lease.run_id, self.lease.epoch)

    def _renewal(self, number: int) -> Renew | Register:
        lease = self.lease
        if self._unknown:  # its books were lost, or are older ones: it can enter us again
            return Register(number, lease.run_id, lease.epoch, lease.token, self._mode)
        return Renew(number, lease.run_id, lease.epoch, lease.token)

    def note_cut_off(self, *, stopped: bool = False) -> None:
        """Whether it is time to say so, and to stop where that is the rule.

        One that was taken over and not renewed since may have its whole length; where the rule is to stop, only the
        guardian knows its end: `stopped` says that the trainer was.
        """
        lease = self.lease
        until = lease.safe_until
        if until == -math.inf and not (stopped and self._grace is not None):
            until = self._since + MARGIN * lease.seconds
        margin = 0.0 if self._grace is None else EARLY + self.notice
        if self._cut_off or lease.lost or self._clock.boot() <= until - margin:
            return
        self._cut_off = True
        if not self.trains and stopped and self._grace is not None:
            words = f"no renewal, and {lease.seconds:g} s are nearly over; on_lease_loss is stop: it was stopped"
            say("cut off from the commander for nearly a lease: the trainer was stopped, as ON_LEASE_LOSS says")
        elif not self.trains:
            words = f"no renewal for {lease.seconds:g} s; the trainer has ended"
            say("cut off from the commander for longer than the lease; the trainer has ended, nothing is pruned")
        elif self._grace is None:
            words = f"no renewal for {lease.seconds:g} s; on_lease_loss is continue: training goes on"
            say("cut off from the commander for longer than the lease; training goes on, nothing is pruned")
        else:
            words = f"no renewal, and {lease.seconds:g} s are nearly over; on_lease_loss is stop: stopping the trainer"
            say("cut off from the commander for nearly a lease: stopping the trainer, as ON_LEASE_LOSS says")
        self._tell.event("lease.cut_off", words)
        if self._grace is not None:
            self._stop.ask(Why.CUT_OFF, "cut off from the commander for as long as its lease")

    def _stands(self, standing: Standing) -> None:
        if self.on_standing is not None:
            self.on_standing(standing)

    def refused(self, refused: Refused) -> None:
        """A renewal or reports were refused. Only a word that the lease is over ends anything."""
        if not self._is_ours(refused):
            return
        if self.ended and refused.code == "released" and not self._unknown:  # as our own last word has it
            return
        message = clean(refused.message, 300)
        if refused.code in ("superseded", "released", "not_holder"):
            self.lose(refused.code, message)
            return
        self._stands(Standing.UNKNOWN)
        if not self._unknown:
            self._unknown = True
            then = "; training goes on" if self.trains else ""
            self._tell.event("lease.unknown", f"the commander does not know this lease: {message}{then}")
            say(f"the commander does not know this lease ({message}){then}")

    def lose(self, code: str, message: str) -> None:
        if not self.lease.lost:
            self.lease = self.lease.over(code)
            self._tell.event("lease.lost", f"{code}: {message}", {"code": code}, send=False)
            say(f"the lease is lost ({code}: {message})" + (": stopping the trainer" if self.trains else ""))
            self._link.give_up()
            self._stop.ask(Why.LOST, message or code)
            self._stands(Standing.HIGHER)

    def fenced(self) -> None:
        self.lose("superseded", "a later epoch has claimed the run on the volume")


def is_ours(tenure: Tenure, folder: RunFolder) -> bool:
    """Whether the run is still ours, for all that the commander and the volume have told. Blocking; OSError."""
    return tenure.held and highest_claim(folder) <= tenure.lease.epoch


def shortened(lease: float, grace: float) -> str:
    """What to say of a lease that leaves less to save in than `grace` seconds; empty where it leaves them."""
    left = Lease("", 0, "", lease, 0.0).notice(grace)
    if left >= grace:
        return ""
    return (
        f"ON_LEASE_LOSS=stop under a lease of {lease:g} s: without a commander the trainer gets {left:.3g} s to save (a"
        f" third of the lease), not the {grace:g} s of RELAY_STOP_GRACE"
    )


def too_short(lease: float) -> RelayError | None:
    """Why no trainer can be stopped in time under it, where that is so."""
    if lease >= LEAST_TO_STOP:
        return None
    return RelayError(
        "lease_too_short",
        f"ON_LEASE_LOSS=stop cannot be kept under a lease of {lease:g} s: it ends before a renewal could come and the"
        " trainer save",
        f"start the commander with --lease-seconds {LEAST_TO_STOP:g} or more, or set ON_LEASE_LOSS=continue",
        exit_code=Exit.USAGE,
    )
