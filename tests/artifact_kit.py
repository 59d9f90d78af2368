"""What pods and operators do with the artifact store, over real sockets."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import orjson
from commander_kit import Agent, Kit

from relaytui.wire.proof import Role

CHUNK = 100_000


def some(size: int, seed: int = 1) -> bytes:
    """Bytes that look like nothing, the same for the same seed."""
    block = hashlib.sha256(str(seed).encode()).digest()
    return (block * (size // 32 + 1))[:size]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content(state: Path, data: bytes) -> Path:
    return state / "artifacts" / "sha256" / sha(data)[:2] / sha(data)


def stored_files(state: Path) -> list[str]:
    """Names of all contents on the disk."""
    return sorted(path.name for path in (state / "artifacts" / "sha256").glob("??/*"))


def part_files(state: Path) -> list[Path]:
    return sorted((state / "artifacts" / "uploads").glob("*"))


class Store:
    """One pod's, or with no agent an operator's, way to the store."""

    def __init__(self, kit: Kit, agent: Agent | None = None, run_id: str = "run-1") -> None:
        self.kit = kit
        self.agent = agent
        self.run_id = agent.run_id if agent is not None else run_id
        self.lease = {} if agent is None else {"epoch": agent.epoch, "token": agent.token}

    @property
    def role(self) -> Role:
        return "worker" if self.agent is not None else "operator"

    @property
    def headers(self) -> dict[str, str]:
        """For reading, as a pod."""
        if self.agent is None:
            return {}
        return {
            "X-Relay-Run": self.run_id,
            "X-Relay-Epoch": str(self.agent.epoch),
            "X-Relay-Lease": self.agent.token,
        }

    async def ask(
        self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None, role: Role | None = None
    ) -> tuple[int, Any]:
        if data is not None and not isinstance(data, bytes) and not hasattr(data, "__aiter__"):
            data = orjson.dumps(data)
        async with self.kit.session.request(
            method, self.kit.commander.url + "/api/artifacts" + path,
            data=io.BytesIO(data) if isinstance(data, bytes) else data,
            headers=self.kit.headers(role or self.role) | self._shown(path, headers or {}),
        ) as answer:  # fmt: skip
            kind = answer.headers.get("Content-Type", "")
            return answer.status, await (answer.json() if "json" in kind else answer.read())

    def _shown(self, path: str, headers: dict[str, str]) -> dict[str, str]:
        """A pod shows its lease with every request about an upload, unless the test says what it shows."""
        bare = "X-Bare" in headers or not path.startswith("/uploads/")
        return headers if bare else self.headers | headers

    async def begin(self, data: bytes, name: str = "step_00000001", **more: Any) -> tuple[int, Any]:
        body = {"run_id": self.run_id, "kind": "checkpoint", "name": name, "sha256": sha(data), "size": len(data)}
        return await self.ask("POST", "/uploads", body | self.lease | more)

    async def chunk(self, upload: str, offset: int, data: Any, **headers: str) -> tuple[int, Any]:
        return await self.ask("PATCH", f"/uploads/{upload}", data, {"Upload-Offset": str(offset)} | headers)

    async def offset(self, upload: str) -> int:
        status, body = await self.ask("GET", f"/uploads/{upload}")
        assert status == 200, body
        offset: int = body["offset"]
        return offset

    async def finish(self, upload: str) -> tuple[int, Any]:
        return await self.ask("POST", f"/uploads/{upload}/finish")

    async def put(self, data: bytes, name: str = "step_00000001", **more: Any) -> dict[str, Any]:
        """The artifact's row; in as many chunks as it takes."""
        status, begun = await self.begin(data, name, **more)
        assert status == 200, begun
        if not begun.get("stored"):
            at = begun.get("offset", 0)
            while at < len(data):
                status, body = await self.chunk(begun["upload"], at, data[at : at + CHUNK])
                assert status == 200, body
                at = body["offset"]
            status, begun = await self.finish(begun["upload"])
            assert status == 200, begun
        row: dict[str, Any] = begun["artifact"]
        return row

    async def rows(self) -> list[dict[str, Any]]:
        status, body = await self.ask("GET", f"?run={self.run_id}", headers=self.headers)
        assert status == 200, body
        rows: list[dict[str, Any]] = body["artifacts"]
        return rows

    async def names(self) -> list[str]:
        return [row["name"] for row in await self.rows()]

    async def get(self, artifact: int, **headers: str) -> tuple[int, Any]:
        return await self.ask("GET", f"/{artifact}/content", headers=self.headers | headers)


async def pod(kit: Kit, run_id: str = "run-1", worker: str = "pod") -> Store:
    """One that holds the run."""
    agent = await kit.agent(worker)
    assert (await agent.acquire(run_id))["type"] == "granted"
    return Store(kit, agent)


def flip(path: Path, at: int | None = None) -> None:
    """One bit of it, in the middle or there."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 if at is None else at)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
