"""Yardstick of durable renewals: one etcd with its fsync, and h2load, a client in C that speaks gRPC to it.

A renewal is a transaction: where the key has this value, it is put again. Every one that took effect is a revision of
etcd's own, so that its count, not the client's, says how many there were.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.children import BenchError, child, environment

NEEDED = {"etcd": "etcd-server", "h2load": "nghttp2-client"}
"""Programs, and Debian's packages with them."""
KEY, VALUE = b"lease/run-0001", b"token-of-64-characters".ljust(64, b".")
START = 30.0
_FINISHED = re.compile(r"finished in ([\d.]+)(m?s),")


def missing() -> list[str]:
    """Debian packages that are not installed."""
    return [package for program, package in NEEDED.items() if shutil.which(program) is None]


class Etcd:
    """A server that listens on `port`; what its client posts is `body`."""

    def __init__(self, port: int, body: Path) -> None:
        self._port = port
        self._body = body
        body.write_bytes(b"\0" + len(RENEWAL).to_bytes(4, "big") + RENEWAL)

    def call(self, path: str, **request: Any) -> dict[str, Any]:
        """Through its JSON gateway, for what is not measured."""
        made = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", json.dumps(request).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(made, timeout=START) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def revision(self) -> int:
        return int(self.call("/v3/kv/range", key=text(KEY))["header"]["revision"])

    def renewals_per_second(self, clients: int, seconds: int) -> float:
        before = self.revision()
        argv = ["h2load", "-c", str(clients), "-m", "1", "-t", "1", "-D", str(seconds), "-d", str(self._body)]
        argv += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        done = subprocess.run(
            [*argv, f"http://127.0.0.1:{self._port}/etcdserverpb.KV/Txn"],
            capture_output=True,
            text=True,
            timeout=seconds + START,
            check=False,
        )
        finished = _FINISHED.search(done.stdout)
        if finished is None:
            raise BenchError(f"h2load ended with {done.returncode}: {(done.stderr or done.stdout)[-200:].strip()}")
        took = float(finished[1]) * (1e-3 if finished[2] == "ms" else 1.0)
        return (self.revision() - before) / took


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[Etcd]:
    client, peer = (f"http://127.0.0.1:{port}" for port in two_ports())
    argv = ["etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", client, "--listen-peer-urls", peer]
    argv += ["--advertise-client-urls", client, "--initial-advertise-peer-urls", peer]
    argv += ["--initial-cluster", f"default={peer}", "--log-level", "error"]
    with child("etcd", argv, folder, environment(), cwd=folder) as process:
        running = Etcd(int(client.rpartition(":")[2]), folder / "renewal.grpc")
        until = time.monotonic() + START
        while True:
            try:
                running.call("/v3/kv/put", key=text(KEY), value=text(VALUE))
                break
            except OSError as error:
                if process.process.poll() is not None or time.monotonic() > until:
                    raise process.broken(f"does not serve ({error})") from None
                time.sleep(0.05)
        yield running


def two_ports() -> list[int]:
    """Free ones: etcd cannot say which it chose."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# -- as much of protocol buffers as one transaction takes ----------------------------------------------------------


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


# TxnRequest: compare (result EQUAL is the default, target VALUE, key, value), success (a request to put).
RENEWAL = message(1, number(2, 3) + message(3, KEY) + message(7, VALUE)) + message(
    2, message(2, message(1, KEY) + message(2, VALUE))
)
