"""A websocket client that costs next to nothing, so that the load does not share the server's limit with it.

Frames are masked with a key of zeros (RFC 6455 §5.3 allows it; the payload goes as it is). Text only, no fragments.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
NO_MASK = b"\0\0\0\0"


class ClosedError(Exception):
    """The server hung up; the message says why as far as it said."""


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """One final client frame."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + NO_MASK + payload


class Socket(asyncio.Protocol):
    """One connection. Messages go to `on_message` where it is set, else they wait for `receive`."""

    def __init__(self) -> None:
        self.on_message: Callable[[bytes], None] | None = None
        self.on_close: Callable[[ClosedError], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._inbox: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._head: bytes | None = None
        self._closed: ClosedError | None = None

    # -- what a client does ----------------------------------------------------------------------------------------

    def send(self, payload: bytes) -> None:
        if self._closed is not None or self._transport is None:
            raise self._closed or ClosedError("not connected")
        self._transport.write(frame(payload))

    async def drain(self) -> None:
        """Waits while the kernel and the transport hold more than they should."""
        await self._writable.wait()
        if self._closed is not None:
            raise self._closed

    async def receive(self, timeout: float = 30.0) -> bytes:
        async with asyncio.timeout(timeout):
            while not self._inbox:
                if self._closed is not None:
                    raise self._closed
                self._arrived.clear()
                await self._arrived.wait()
        return self._inbox.popleft()

    async def upgraded(self, timeout: float = 30.0) -> None:
        """Waits for the server's 101."""
        async with asyncio.timeout(timeout):
            while self._head is None:
                if self._closed is not None:
                    raise self._closed
                self._arrived.clear()
                await self._arrived.wait()
        status = self._head.split(b"\r\n", 1)[0]
        if b" 101 " not in status + b" ":
            raise ClosedError(f"upgrade answered {status.decode('latin-1')!r}")

    def close(self) -> None:
        if self._transport is not None and self._closed is None:
            self._transport.write(frame(struct.pack("!H", 1000), CLOSE))
            self._transport.close()

    def fileno(self) -> int:
        assert self._transport is not None
        return int(self._transport.get_extra_info("socket").fileno())

    def pause(self, paused: bool) -> None:
        """While paused somebody else reads from and writes to its descriptor."""
        assert self._transport is not None
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- what the event loop calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ClosedError(f"connection lost ({exc or 'end of stream'})"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._head is None:
            head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not found:
                return
            self._head, self._buffer = head, bytearray(rest)
            self._arrived.set()
        self._take_frames()

    def _take_frames(self) -> None:
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 2:
            size, start = buffer[at + 1] & 0x7F, at + 2
            if size == 126:
                start += 2
                size = int.from_bytes(buffer[at + 2 : start], "big")
            elif size == 127:
                start += 8
                size = int.from_bytes(buffer[at + 2 : start], "big")
            if len(buffer) < start + size:
                break
            self._take(buffer[at] & 0x0F, bytes(buffer[start : start + size]))
            at = start + size
        del buffer[:at]

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == TEXT:
            if self.on_message is not None:
                self.on_message(payload)
            else:
                self._inbox.append(payload)
                self._arrived.set()
        elif opcode == PING and self._transport is not None:
            self._transport.write(frame(payload, PONG))
        elif opcode == CLOSE:
            code = int.from_bytes(payload[:2], "big") if payload else 1005
            self._end(ClosedError(f"server closed with {code} {payload[2:].decode('utf-8', 'replace')}".rstrip()))
            if self._transport is not None:
                self._transport.close()

    def _end(self, why: ClosedError) -> None:
        if self._closed is None:
            self._closed = why
            if self.on_close is not None:
                self.on_close(why)
        self._writable.set()
        self._arrived.set()


async def connect(port: int, path: str = "/ws", headers: Mapping[str, str] | None = None) -> Socket:
    """An upgraded connection to 127.0.0.1; ClosedError when the server will not."""
    _, socket = await asyncio.get_running_loop().create_connection(Socket, "127.0.0.1", port)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    assert socket._transport is not None
    socket._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    await socket.upgraded()
    return socket
