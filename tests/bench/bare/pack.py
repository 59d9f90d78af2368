"""Yardstick of artifact uploads where there is no zstd or curl: tarfile, zstandard and http.client, one after another.

python tests/bench/bare/pack.py FOLDER PORT
"""

from __future__ import annotations

import http.client
import sys
import tarfile
import threading
from collections.abc import Iterator
from io import RawIOBase
from queue import Queue

import zstandard


class Pipe(RawIOBase):
    """Written to in one thread, iterated in another."""

    def __init__(self) -> None:
        self._pieces: Queue[bytes] = Queue(16)

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._pieces.put(bytes(data))
        return len(data)

    def __iter__(self) -> Iterator[bytes]:  # type: ignore[override]
        while piece := self._pieces.get():
            yield piece

    def end(self) -> None:
        self._pieces.put(b"")


def main() -> None:
    folder, port = sys.argv[1], int(sys.argv[2])
    pipe = Pipe()

    def pack() -> None:
        out = zstandard.ZstdCompressor(level=3).stream_writer(pipe, closefd=False)
        with out, tarfile.open(fileobj=out, mode="w|", bufsize=1 << 20) as archive:
            archive.add(folder, ".")
        pipe.end()

    threading.Thread(target=pack).start()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", "/", body=iter(pipe), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    print(connection.getresponse().read().decode())


if __name__ == "__main__":
    main()
