"""A job for the child process at the Hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, TypeVar

from relay_agent.hub.protocol import Job
from relay_agent.sending import calls
from relay_agent.sending.trouble import Trouble

T = TypeVar("T")
FAR = "relay_agent.hub.far"


def missing() -> str:
    """Why no child can do anything at the Hub; empty: it can."""
    if find_spec("huggingface_hub") is None:
        return "huggingface_hub is not installed beside the agent: pip install 'huggingface_hub>=2,<3'"
    return ""


def environment(cache: str, *, xet: bool) -> dict[str, str]:
    """What its library reads: no token is among it."""
    return {
        "HF_HOME": cache,
        "HF_XET_CACHE": os.path.join(cache, "xet"),  # noqa: PTH118 - text
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_XET_HIGH_PERFORMANCE": "0",
        "HF_XET_TELEMETRY_ENABLED": "0",
        **({} if xet else {"HF_HUB_DISABLE_XET": "1"}),
    }


async def call(job: Job, result: type[T], *, cache: str, more: Mapping[str, str] = {}, **how: Any) -> T:
    """See `sending.calls.call`; `more`: of the child's environment."""
    if words := missing():
        raise Trouble("hub_missing", words)
    environ = {**environment(cache, xet=job.where.xet), **more}
    return await calls.call(FAR, job, result, cache=cache, environ=environ, **how)
