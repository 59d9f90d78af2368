"""The child process at the artifact store: `python -I -m relay_agent.artifacts.child`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from relay_agent.artifacts.jobs import AnyStoreJob, Attach, ListStored, Pull, Put, Seal
from relay_agent.hub.child import Tell, serve
from relay_agent.hub.protocol import Failed

WORK: Mapping[Any, str] = {Seal: "send.seal", Put: "send.put", Attach: "attach.attach", ListStored: "fetch.offers",
                           Pull: "fetch.pull"}  # fmt: skip
"""Module of `far` and function that does a job."""


def _work(job: Any, tell: Tell) -> Any:
    module, _, name = WORK[type(job)].partition(".")
    return getattr(importlib.import_module(f"relay_agent.artifacts.far.{module}"), name)(job, tell)


def _told(error: Exception, job: Any) -> Failed:
    failed: Failed = importlib.import_module("relay_agent.artifacts.far.failures").told(error)
    return failed


if __name__ == "__main__":
    serve(AnyStoreJob, _work, _told)
