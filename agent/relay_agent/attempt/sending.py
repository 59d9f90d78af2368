"""What of an attempt goes off the pod: to the Hub, to the artifact store, to both, or nowhere.

An agent that sends nothing loads nothing of what would send it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from relay_agent.attempt.holding import Holding
from relay_agent.attempt.orders import Orders
from relay_agent.attempt.telling import Teller
from relay_agent.attempt.tenure import Tenure
from relay_agent.config import Settings
from relay_agent.outcome.stop import Stop
from relay_agent.trainer.command import Launch
from relay_agent.volume.volume import RunFolder
from relaytui.wire.clock import Clock
from relaytui.wire.messages import RunConfig
from relaytui.wire.reports import TelemetryReport
from relaytui.wire.status import Outcome

if TYPE_CHECKING:
    from relay_agent.attempt.forking import Forking
    from relay_agent.attempt.restoring import Restoring
    from relay_agent.sending.way import Way


class Sending:
    def __init__(
        self, settings: Settings, folder: RunFolder, launch: Launch, holding: Holding, tenure: Tenure, orders: Orders,
        tell: Teller, stop: Stop, clock: Clock, rng: random.Random,
    ) -> None:  # fmt: skip
        self._tell = tell
        self._telemetry = holding.spool.telemetry.append
        self._ways: list[Way] = []
        if settings.hf_repo or holding.config.hf_repo:
            from relay_agent.attempt.pushing import Pushing

            self._ways.append(Pushing(settings, folder, launch, holding, tenure, orders, tell, stop, clock, rng))
        if settings.artifacts != "none" or settings.artifacts_files:
            from relay_agent.attempt.storing import Storing

            self._ways.append(Storing(settings, folder, holding, tenure, tell, stop, clock, rng))

    def begin(self) -> None:
        for way in self._ways:
            self._tell.on_published.append(way.sender.published)
            way.begin()

    def feeding(self) -> Callable[[TelemetryReport], None]:
        """Where reports of the trainer go: to the commander, and to who else wants to know."""
        telemetry, heard = self._telemetry, [way.hear for way in self._ways if way.hear is not None]
        if not heard:
            return telemetry

        def all_of_them(report: TelemetryReport) -> None:
            for hear in heard:
                hear(report)
            telemetry(report)

        return all_of_them

    def pins(self) -> set[str]:
        """What is being sent is not pruned."""
        return set[str]().union(*(way.sender.pins for way in self._ways))

    async def last(self, outcome: Outcome) -> None:
        """The trainer is gone and all that is whole is published. All at once: one that nobody answers keeps the others
        from nothing."""
        await asyncio.gather(*(way.last(outcome) for way in self._ways))

    async def close(self) -> None:
        await asyncio.gather(*(way.close() for way in self._ways))


def restoring_of(
    settings: Settings, config: RunConfig, folder: RunFolder, tenure: Tenure, tell: Teller, stop: Stop, clock: Clock,
    rng: random.Random,
) -> Restoring | None:  # fmt: skip
    """None where nothing of the run is kept anywhere but on the volume."""
    if not (settings.hf_repo or config.hf_repo or settings.artifacts != "none"):
        return None
    from relay_agent.attempt.restoring import Restoring

    return Restoring.of(settings, config, folder, tenure, tell, stop, clock, rng)


def forking_of(
    settings: Settings, config: RunConfig, folder: RunFolder, tenure: Tenure, tell: Teller, stop: Stop, clock: Clock,
    rng: random.Random,
) -> Forking | None:  # fmt: skip
    """None where the run is no fork."""
    if settings.fork_from is None:
        return None
    from relay_agent.attempt.forking import Forking

    return Forking(settings, config, folder, tenure, tell, stop, clock, rng)
