"""A job for the child process at the artifact store."""

from __future__ import annotations

from typing import Any, TypeVar

from relay_agent.artifacts.jobs import StoreJob
from relay_agent.sending import calls

T = TypeVar("T")
FAR = "relay_agent.artifacts.far"
QUIET = {**calls.QUIET, "commit": 1800.0}
"""Seconds: before it says that all is well the commander may have to read all of it."""


async def call(job: StoreJob, result: type[T], *, cache: str, **how: Any) -> T:
    """See `sending.calls.call`."""
    return await calls.call(FAR, job, result, cache=cache, quiet=QUIET, **how)
