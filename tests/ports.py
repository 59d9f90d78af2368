"""Ports for what a test starts, stops and starts again."""

from __future__ import annotations

import random
import socket

_dice = random.SystemRandom()


def free_port() -> int:
    """A port on which nobody listens, and that the kernel gives to nobody who asks for any: below those it hands out.

    One of its own choosing (port 0) may be another test's a moment later, while what is to listen on it starts.
    """
    while True:
        port = _dice.randrange(10_000, 30_000)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
