"""Compute Engine: `instance/preempted` turns TRUE, and the machine ends 30 seconds later (Compute Engine, spot VMs).

The question waits for the change, so that a notice is heard at once and nothing is asked in between. Whoever answers
without `Metadata-Flavor: Google` is another machine.
"""

from __future__ import annotations

from urllib.parse import quote

from relay_agent.preempt.metadata import TIMEOUT, Metadata, Unanswered
from relay_agent.preempt.notice import Notice, Surroundings

PREEMPTED = "/computeMetadata/v1/instance/preempted"
WAIT = 60
"""Seconds that one question waits for a change."""


class Gcp:
    every = 1.0

    def __init__(self, around: Surroundings, wait: int = WAIT) -> None:
        self._metadata: Metadata = around.metadata
        self._wait = wait
        self._etag = ""

    async def look(self) -> list[Notice]:
        path, patience = PREEMPTED, TIMEOUT
        if self._etag:
            path += f"?wait_for_change=true&timeout_sec={self._wait}&last_etag={quote(self._etag, safe='')}"
            patience += self._wait
        answer = await self._metadata.ask(path, {"Metadata-Flavor": "Google"}, patience=patience)
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise Unanswered("somebody who is not Google's metadata server")
        if answer.status != 200:
            raise Unanswered(f"HTTP {answer.status}")
        self._etag = answer.headers.get("ETag", "")[:200]
        if answer.text.upper() == "TRUE":
            return [Notice("gcp", "Compute Engine takes this machine away")]
        return []
