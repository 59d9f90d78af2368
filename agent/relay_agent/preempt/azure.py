"""Azure: a Scheduled Event of type Preempt, at least 30 seconds ahead (Azure, Scheduled Events for Linux VMs).

The events of all machines of a scale set are in one list: only those that name this one count. The first question ever
switches the service on, and may be answered only after two minutes. Acknowledging an event would only bring it closer.
"""

from __future__ import annotations

from msgspec import Struct

from relay_agent.preempt.metadata import Metadata, Unanswered
from relay_agent.preempt.notice import Notice, Surroundings, moment
from relaytui.wire.codec import decode
from relaytui.wire.errors import RelayError

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
ENDS = {"Preempt": "takes this spot machine away", "Terminate": "deletes this machine"}


class Event(Struct, rename="pascal"):
    event_type: str = ""
    resources: list[str] = []
    not_before: str = ""


class Events(Struct, rename="pascal"):
    events: list[Event] = []


class Azure:
    every = 5.0

    def __init__(self, around: Surroundings) -> None:
        self._metadata: Metadata = around.metadata
        self._name = ""

    async def look(self) -> list[Notice]:
        answer = await self._metadata.ask(EVENTS, HEADERS)
        if answer.status != 200:
            raise Unanswered(f"HTTP {answer.status}")
        try:
            events = decode(answer.text.encode(), Events).events
        except RelayError:
            raise Unanswered("something that is no list of events") from None
        ending = [event for event in events if event.event_type in ENDS]
        if ending and not self._name:
            named = await self._metadata.ask(NAME, HEADERS)
            self._name = named.text if named.status == 200 else ""
        return [
            Notice("azure", f"Azure {ENDS[event.event_type]}", moment(event.not_before))
            for event in ending
            if self._is_ours(event)
        ]

    def _is_ours(self, event: Event) -> bool:
        """Where nobody says what this machine is called, an event of one machine alone is taken for ours."""
        return self._name in event.resources if self._name else len(event.resources) <= 1
