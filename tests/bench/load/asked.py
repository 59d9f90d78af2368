"""A load process's ear: one JSON question a line on stdin, one JSON answer a line on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Question = dict[str, Any]
Answer = dict[str, Any]
Answering = Callable[[Question], Awaitable[Answer]]


def run(open_load: Callable[[], Awaitable[Answering]]) -> None:
    """Opens the load, says so, then answers until stdin ends. What goes wrong is said as `{"error": …}`."""
    asyncio.run(_run(open_load))


async def _run(open_load: Callable[[], Awaitable[Answering]]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        answer = await open_load()
        _say({"ready": True})
        while line := await reader.readline():
            _say(await answer(json.loads(line)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the bench says it in its one line
        _say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


def _say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)
