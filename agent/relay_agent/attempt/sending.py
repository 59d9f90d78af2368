"""What of an attempt goes off the pod: to the Hub, to the artifact store, to both, or nowhere; and what comes back.

An agent that sends nothing loads nothing of what would send it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from relay_agent.attempt.around import Around
from relaytui.wire.reports import TelemetryReport
from relaytui.wire.status import Outcome

if TYPE_CHECKING:
    from relay_agent.attempt.forking import Forking
    from relay_agent.attempt.restoring import Restoring
    from relay_agent.sending.way import Way


class Sending:
    def __init__(self, around: Around) -> None:
        self._tell = around.tell
        self._telemetry = around.holding.spool.telemetry.append
        self._ways: list[Way] = []
        if around.names_hub:
            from relay_agent.attempt.pushing import Pushing

            self._ways.append(Pushing(around))
        if around.settings.artifacts != "none" or around.settings.artifacts_files:
            from relay_agent.attempt.storing import Storing

            self._ways.append(Storing(around))

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


def restoring_of(around: Around) -> Restoring | None:
    """None where nothing of the run is kept anywhere but on the volume."""
    if not around.names_hub and around.settings.artifacts == "none":
        return None
    from relay_agent.attempt.restoring import Restoring

    return Restoring.of(around)


def forking_of(around: Around) -> Forking | None:
    """None where the run is no fork."""
    if around.settings.fork_from is None:
        return None
    from relay_agent.attempt.forking import Forking

    return Forking(around)
