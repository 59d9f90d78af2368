"""Frames of the agent's websocket: one message each, and the ways in which it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaytui.wire.codec import decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.messages import REPLACED, CommanderMessage, Message, Problem
from relaytui.wire.text import clean

if TYPE_CHECKING:
    import aiohttp


class Replaced(Exception):  # noqa: N818 - it says what happened
    """The same incarnation connected elsewhere."""


class Closed(Exception):  # noqa: N818
    """The connection ended; as text: why, as far as that was said."""


async def send(socket: aiohttp.ClientWebSocketResponse, message: Message | bytes) -> None:
    """A message, or one that is encoded already."""
    from aiohttp import WSMsgType

    await socket.send_frame(message if isinstance(message, bytes) else encode(message), WSMsgType.TEXT)


async def receive(socket: aiohttp.ClientWebSocketResponse, timeout: float | None = None) -> CommanderMessage:
    """The next message. Replaced, Closed; RelayError where it is none of ours, or none comes in so many seconds."""
    from aiohttp import WSMsgType

    try:
        frame = await socket.receive(timeout)
    except TimeoutError:
        raise RelayError("silent", "the commander does not answer", exit_code=Exit.UNAVAILABLE) from None
    if frame.type is WSMsgType.TEXT:
        return decode(frame.data, CommanderMessage)  # type: ignore[arg-type]  # a union is a type to msgspec
    if frame.type is WSMsgType.CLOSE and frame.data == REPLACED:
        raise Replaced
    if frame.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING):
        reason = clean(str(frame.extra or ""), 200)
        raise Closed(f"it closed the connection{f' ({reason})' if reason else ''}")
    if frame.type is WSMsgType.ERROR and isinstance(frame.data, TimeoutError):  # to a ping
        raise Closed("it has stopped answering")
    if frame.type is WSMsgType.ERROR:
        raise Closed(clean(str(frame.data), 200) or "the connection broke")
    raise RelayError("bad_frame", "the commander sent a frame that is not text", exit_code=Exit.UNAVAILABLE)


def problem(told: Problem) -> RelayError:
    """What the commander says before it hangs up, as an error of ours."""
    code = Exit.AUTH if told.code in ("unauthorized", "forbidden") else Exit.UNAVAILABLE
    if told.code == "protocol":
        code = Exit.USAGE
    return RelayError(clean(told.code, 64), clean(told.message, 300), clean(told.hint, 300), exit_code=code)
