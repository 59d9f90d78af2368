"""The real client in a process of its own: whether it uses xet is decided when huggingface_hub is imported."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Protocol

__all__ = ["client_env", "run_client"]

REPOSITORY = Path(__file__).resolve().parents[2]
PRELUDE = """
import json, os, sys
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import *
api = HfApi(endpoint=os.environ["HF_ENDPOINT"], token=os.environ["HF_TOKEN"])
say = lambda value: print("SAID " + json.dumps(value, default=str), flush=True)
"""


class Reachable(Protocol):
    url: str
    token: str


def client_env(url: str, token: str = "hf_write", *, xet: bool = False, home: Path | None = None) -> dict[str, str]:
    """The environment of a process whose huggingface_hub talks to that hub alone."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env |= {"HF_ENDPOINT": url, "HF_TOKEN": token, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    env["HF_HOME"] = str(home) if home is not None else os.devnull
    if not xet:
        env["HF_HUB_DISABLE_XET"] = "1"
    return env


async def run_client(
    hub: Reachable, script: str, *args: str, token: str | None = None, xet: bool = False, home: Path | None = None,
    deadline: float = 60.0,
) -> list[Any]:  # fmt: skip
    """What `script` said with `say(value)`; it has `api`, an HfApi, and `sys.argv[1:]`. AssertionError if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PRELUDE + script, *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=client_env(hub.url, token or hub.token, xet=xet, home=home),
    )  # fmt: skip
    try:
        async with asyncio.timeout(deadline):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (
        f"the client ended with {process.returncode}:\n{err.decode(errors='replace')[-4000:]}"
    )
    lines = out.decode().splitlines()
    return [json.loads(line.removeprefix("SAID ")) for line in lines if line.startswith("SAID ")]
