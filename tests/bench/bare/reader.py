"""Yardstick of the live path, its pod: starts a command, sends each chunk that it prints down a websocket.

python -m tests.bench.bare.reader PORT COMMAND…
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp

CHUNK = 65_536


async def read(port: int, command: list[str]) -> int:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"ws://127.0.0.1:{port}/in") as socket:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        while chunk := await process.stdout.read(CHUNK):
            await socket.send_str(chunk.decode("utf-8", "replace"))
        return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(read(int(sys.argv[1]), sys.argv[2:])))
