"""The real client in a process of its own: whether it uses xet is decided when huggingface_hub is imported."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

__all__ = ["ClientError", "RealClient", "client_env", "run_client"]

CHILD = Path(__file__).with_name("real_client.py")
TIMEOUT = 20.0
"""Seconds that the client waits for the hub in one request."""


class Reachable(Protocol):
    url: str
    token: str


class ClientError(Exception):
    """What the script raised there."""

    def __init__(self, failed: dict[str, Any], said: list[Any], waits: list[float]) -> None:
        super().__init__(f"{failed['kinds'][0]}: {failed['text']}\n{failed['trace']}")
        self.kinds: list[str] = failed["kinds"]  # its class and those that it is derived from
        self.text: str = failed["text"]
        self.status: int | None = failed["status"]  # of the hub's answer, if that was the reason
        self.cause: dict[str, Any] | None = failed["cause"]  # the same of what it came from
        self.said = said
        self.waits = waits


def client_env(url: str, token: str = "hf_write", *, xet: bool = False, home: Path | None = None) -> dict[str, str]:
    """The environment of a process whose huggingface_hub talks to that hub alone."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env |= {"HF_ENDPOINT": url, "HF_TOKEN": token, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    env["HF_HOME"] = str(home) if home is not None else os.devnull
    if not xet:
        env["HF_HUB_DISABLE_XET"] = "1"
    return env


class RealClient:
    """One process with huggingface_hub, for many scripts: `with RealClient() as client: await client(hub, "…")`

    A script has `api` (an HfApi for that hub), `Add`, `Delete`, `Copy` (operations of a commit) and `args`, and says
    what is to be known: `say(value)`. `patient`: it waits between its retries; else it only notes how long it would.
    `by`: who starts it.
    """

    def __init__(
        self, *, xet: bool = False, home: Path | None = None, patient: bool = False,
        by: type[subprocess.Popen[bytes]] = subprocess.Popen,
    ):  # fmt: skip
        self._env = client_env("http://127.0.0.1:9", "hf_none", xet=xet, home=home)
        self._env["CLIENT_WAITS"] = str(int(patient))
        self._by = by
        self._turn = threading.Lock()
        self.waits: list[float] = []
        """Seconds between the retries of the last script."""

    def __enter__(self) -> RealClient:
        self._child = self._by(
            [sys.executable, "-P", str(CHILD)], env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    async def __call__(
        self, hub: Reachable, script: str, *args: Any, token: str | None = None, timeout: float = TIMEOUT,
        deadline: float = 60.0,
    ) -> list[Any]:  # fmt: skip
        """What the script said; ClientError with what it raised; ConnectionError where the process is gone.

        `timeout`: seconds that one request of the client's may wait. `deadline`: for the whole script.
        """
        return await asyncio.to_thread(self.run, hub, script, *args, token=token, timeout=timeout, deadline=deadline)

    def run(
        self, hub: Reachable, script: str, *args: Any, token: str | None = None, timeout: float = TIMEOUT,
        deadline: float = 60.0,
    ) -> list[Any]:  # fmt: skip
        token = token if token is not None else hub.token
        asked = {"url": hub.url, "token": token, "script": script, "args": args, "timeout": timeout}
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        late = threading.Timer(deadline, self._child.kill)
        with self._turn:
            late.start()
            try:
                stdin.write(json.dumps(asked).encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
            finally:
                late.cancel()
                late.join()
        if not line:
            raise ConnectionError("the client's process is gone")
        answer = json.loads(line)
        self.waits = answer["waits"]
        if failed := answer.get("failed"):
            raise ClientError(failed, answer["said"], answer["waits"])
        return list(answer["said"])


async def run_client(
    hub: Reachable,
    script: str,
    *args: Any,
    token: str | None = None,
    xet: bool = False,
    home: Path | None = None,
    deadline: float = 60.0,
) -> list[Any]:
    """One script in a process of its own, which waits between its retries; the rest as `RealClient` has it."""
    with RealClient(xet=xet, home=home, patient=True) as client:
        return await client(hub, script, *args, token=token, deadline=deadline)
