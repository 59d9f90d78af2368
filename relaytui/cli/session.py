"""One command, one commander: finds it, asks it, closes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from relaytui.cli.options import Target, usage
from relaytui.client.discover import TOKEN_VARIABLE, remote_endpoint, running_commander
from relaytui.client.endpoint import Endpoint
from relaytui.wire.errors import Exit, RelayError

if TYPE_CHECKING:
    from relaytui.client.api import CommanderClient

T = TypeVar("T")


async def endpoint_of(target: Target) -> Endpoint:
    """The commander meant; RelayError `no_commander` where the state folder has none running."""
    if target.connect:
        if not os.environ.get(TOKEN_VARIABLE, "given").strip():
            raise usage(f"{TOKEN_VARIABLE} is empty", "set it to the operator's token, or unset it")
        return remote_endpoint(target.connect, target.state)
    endpoint = await running_commander(target.state)
    if endpoint is None:
        raise RelayError(
            "no_commander",
            f"no commander is running on {target.state}",
            "start one with `relay-tui serve`, or name another with --state or --connect",
            exit_code=Exit.UNAVAILABLE,
        )
    return endpoint


def ask(target: Target, question: Callable[[CommanderClient], Awaitable[T]]) -> T:
    """The commander's answer to one question."""
    from relaytui.client.api import CommanderClient  # aiohttp with it; the first frame of the dashboard does not wait

    async def asking() -> T:
        async with CommanderClient(await endpoint_of(target)) as client:
            return await question(client)

    return asyncio.run(asking())
