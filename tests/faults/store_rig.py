"""The commander of the campaigns of kills, and the leases that its holders come with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp

from relaytui.wire.proof import derived_token
from tests.faults.kills import BrokenPromiseError, programs

RUN = "run-1"


class StoreRig:
    def __init__(self, state: Path) -> None:
        self.state = state
        state.mkdir(mode=0o700)
        (state / "key").write_bytes(b"k" * 32)
        self.port = self.epoch = 0
        self.token = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.faults.store_commander", self.state, str(self.port)]
        self._process = programs.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def secret(self, role: Any = "worker") -> str:
        return derived_token((self.state / "key").read_bytes(), role)

    def next_lease(self) -> None:
        """The holder before is gone, and got further; another one has the run."""
        asyncio.run(self._next_lease())

    async def _next_lease(self) -> None:
        async with aiohttp.ClientSession() as session:
            if self.epoch:
                step = self.epoch * 1_000
                done = {"type": "published", "name": f"step_{step:08}", "step": step, "bytes": 1, "files": 1}
                told = [
                    {"type": "started", "step": 0, "checkpoint": None, "pid": 42},
                    {**done, "manifest": hashlib.sha256(str(step).encode()).hexdigest()},
                    {"type": "ended", "outcome": "preempted", "step": step},
                ]
                lease = {"run_id": RUN, "epoch": self.epoch, "token": self.token}
                reports = [{"t": 1.0, **report} for report in told]
                ws = await self._hello(session)
                await ws.send_json({"type": "reports", "stream": "state", "first_seq": 1, "reports": reports, **lease})
                await self._hear(ws, "ack")
                await ws.close()
                self.epoch += 1  # another incarnation
            ws = await self._hello(session)
            ask = {"type": "acquire", "request": 1, "request_id": f"q{self.epoch}", "run_id": RUN, "mode": "sft"}
            await ws.send_json(ask)
            granted = await self._hear(ws, "granted")
            self.epoch, self.token = granted["epoch"], granted["token"]
            await ws.close()

    async def _hello(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        ws = await session.ws_connect(f"{self.url}/ws/agent", headers={"X-Relay-Secret": self.secret()})
        await ws.send_json({"type": "hello", "protocol": 1, "worker": "pod", "incarnation": "pod-1"})
        await self._hear(ws, "welcome")
        return ws

    async def _hear(self, ws: aiohttp.ClientWebSocketResponse, kind: str) -> dict[str, Any]:
        while True:
            body: dict[str, Any] = await ws.receive_json(timeout=20)
            if body["type"] == kind:
                return body
            if body["type"] in ("refused", "denied", "error", "wait"):
                raise BrokenPromiseError(f"no lease: {body}")

    def rows(self) -> list[dict[str, Any]]:
        asked = urllib.request.Request(
            f"{self.url}/api/artifacts?run={RUN}", headers={"X-Relay-Secret": self.secret("operator")}
        )
        with urllib.request.urlopen(asked, timeout=20) as answer:
            rows: list[dict[str, Any]] = json.load(answer)["artifacts"]
        return rows

    def judge(self) -> None:
        """What is listed is whole."""
        for row in self.rows():
            path = self.state / "artifacts" / "sha256" / row["sha256"][:2] / row["sha256"]
            if row.get("damaged") or hashlib.sha256(path.read_bytes()).hexdigest() != row["sha256"]:
                raise BrokenPromiseError(f"artifact {row['id']} ({row['name']}) does not verify")

    def judge_bytes(self) -> tuple[int, int]:
        return account((self.state / "chunks").read_text().splitlines())


def account(lines: Iterable[str]) -> tuple[int, int]:
    """(bytes that came, of contents that are stored), as the commander wrote them down; BrokenPromiseError where what
    was there came once more."""
    came: Counter[str] = Counter()
    stored: dict[str, int] = {}
    for line in lines:
        what = json.loads(line)
        if "stored" in what:
            stored[what["stored"]] = what["size"]
        elif what["sha256"] in stored:
            raise BrokenPromiseError(f"sent although it was stored: {what}")
        elif what["offset"] < what["at"]:
            raise BrokenPromiseError(f"sent although it was there: {what}")
        else:
            came[what["sha256"]] += what["after"] - what["at"]
    for sha256, size in stored.items():
        if came[sha256] > size:
            raise BrokenPromiseError(f"{came[sha256]} bytes came of {size} of {sha256}")
    return sum(came.values()), sum(stored.values())
