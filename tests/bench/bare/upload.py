"""Yardstick of artifact uploads: a plain aiohttp server that writes the body of one request to a file.

    python -m tests.bench.bare.upload FILE

Hashes nothing, makes nothing durable. Answers how many bytes came.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aiohttp import web

from tests.bench.bare.serving import serve

TARGET = Path(sys.argv[1])


async def put(request: web.Request) -> web.Response:
    size = 0
    with TARGET.open("wb") as file:
        async for piece in request.content.iter_any():
            size += file.write(piece)
    return web.json_response({"bytes": size})


if __name__ == "__main__":
    serve({"/": put})
