"""As much of S3 as s3fs needs, in memory; signatures are not looked at. And s3fs itself, mounted over it.

Writes can be counted, and at any of them the store can be gone for good: that is a pod that vanishes."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from agent_rig import eventually

BUCKET = "volume"
MADE = "Thu, 01 Jan 2026 00:00:00 GMT"
"""Each object, as far as the store tells."""


class Object(NamedTuple):
    data: bytes
    meta: dict[str, str]

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class Store(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.objects: dict[str, Object] = {}
        self.lock = threading.Lock()
        self.writes = 0
        self.fails_at = -1
        """The number of the write, from 0, that is the first not to happen. -1: all do."""
        self.on_failure: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def failed(self) -> bool:
        return 0 <= self.fails_at < self.writes

    def write(self) -> bool:
        """Whether this write happens."""
        with self.lock:
            self.writes += 1
        if self.failed:
            self.on_failure()
        return not self.failed


class Answer(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Store
    asked: dict[str, str]
    """The headers of the request, their names in small letters."""

    def parse_request(self) -> bool:
        """As much of it as one client needs that says what it means: s3fs asks a thousand times a second."""
        self.command, self.path, _ = self.raw_requestline.decode("latin-1").split()
        self.close_connection = False
        self.asked = {}
        while line := self.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            self.asked[name.lower()] = value.strip()
        if self.asked.get("expect") == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        return True

    def send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, length: int = -1) -> None:
        told = (headers or {}) | {"Content-Length": str(len(body) if length < 0 else length)}
        head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        self.wfile.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode("latin-1") + body)

    def missing(self) -> None:
        body = b"" if self.command == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>"
        self.send(404, body, {"Content-Type": "application/xml"})

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    @property
    def query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def body(self) -> bytes:
        return self.rfile.read(int(self.asked.get("content-length") or 0))

    def do_HEAD(self) -> None:
        found = self.server.objects.get(self.key)
        if found is None:
            self.missing()
        else:
            self.send(200, b"", self.described(found), len(found.data))

    def described(self, found: Object) -> dict[str, str]:
        return {**found.meta, "ETag": found.etag, "Last-Modified": MADE, "Accept-Ranges": "bytes"}

    def do_GET(self) -> None:
        if not self.key:
            self.list()
            return
        found = self.server.objects.get(self.key)
        if found is None:
            self.missing()
            return
        data, status, extra = found.data, 200, {}
        if (wanted := self.asked.get("range", "")).startswith("bytes="):
            first, _, last = wanted[6:].partition("-")
            end = min(int(last) if last else len(data) - 1, len(data) - 1)
            extra = {"Content-Range": f"bytes {first}-{end}/{len(data)}"}
            data, status = data[int(first) : end + 1], 206
        self.send(status, data, self.described(found) | extra)

    def list(self) -> None:
        query = self.query
        prefix, delimiter, marker = query.get("prefix", ""), query.get("delimiter", ""), query.get("marker", "")
        most = int(query.get("max-keys") or 1000)
        keys, folders, more, last = [], set(), False, ""
        with self.server.lock:
            objects = sorted(self.server.objects.items())
        for key, found in objects:
            if not key.startswith(prefix) or key <= marker:
                continue
            if len(keys) + len(folders) >= most:
                more = True
                break
            last = key
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                keys.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                    f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>"
                )
        body = "".join(
            (
                '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
                f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{most}</MaxKeys>",
                f"<IsTruncated>{str(more).lower()}</IsTruncated>",
                f"<NextMarker>{escape(last)}</NextMarker>" if more else "",
                *keys,
                *(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)),
                "</ListBucketResult>",
            )
        )
        self.send(200, body.encode(), {"Content-Type": "application/xml"})

    def do_PUT(self) -> None:
        data = self.body()
        if not self.server.write():
            self.send(500)
            return
        meta = {name: value for name, value in self.asked.items() if name.startswith("x-amz-meta-")}
        meta["Content-Type"] = self.asked.get("content-type") or "binary/octet-stream"
        source = unquote(self.asked.get("x-amz-copy-source") or "").lstrip("/").removeprefix(f"{BUCKET}/")
        if source:
            found = self.server.objects.get(source)
            if found is None:
                self.missing()
                return
            data = found.data
            if self.asked.get("x-amz-metadata-directive") != "REPLACE":
                meta = found.meta
        with self.server.lock:
            made = self.server.objects[self.key] = Object(data, meta)
        body = f"<CopyObjectResult><ETag>{escape(made.etag)}</ETag></CopyObjectResult>" if source else ""
        self.send(200, body.encode(), {"ETag": made.etag})

    def do_DELETE(self) -> None:
        if not self.server.write():
            self.send(500)
            return
        with self.server.lock:
            self.server.objects.pop(self.key, None)
        self.send(204)


@contextmanager
def store() -> Iterator[Store]:
    serving = Store()
    thread = threading.Thread(target=serving.serve_forever, name="store", kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield serving
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


class Mount:
    """The bucket as a folder, as one pod has it."""

    def __init__(self, place: Path, url: str) -> None:
        if shutil.which("s3fs") is None:
            pytest.skip("no s3fs here (apt-get install s3fs)")
        self.place = place
        place.mkdir()
        secret = place.with_name(f"{place.name}.secret")
        secret.write_text("key:secret\n")
        secret.chmod(0o600)
        options = f"passwd_file={secret},url={url},use_path_request_style,nomultipart,retries=1,connect_timeout=2"
        with place.with_name(f"{place.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["s3fs", BUCKET, place, "-f", "-o", options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        mounted = eventually(lambda: place.is_mount() or self.process.poll() is not None, f"{place} mounted")
        if mounted and self.process.returncode is not None:
            said = [line for line in log_of(place).splitlines() if "[INF]" not in line]
            pytest.skip(f"s3fs mounts nothing here: {' '.join(said)[-300:] or self.process.returncode}")

    def kill(self) -> None:
        """The pod is gone, and all that s3fs had not sent with it."""
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            eventually(lambda: self._unmount() == 0, "unmounted")
        else:
            self._unmount("-z")
        self.process.wait()

    def _unmount(self, *how: str) -> int:
        """As whoever mounted it may, who need not be root."""
        return subprocess.run(["fusermount", "-u", *how, self.place], capture_output=True).returncode


def log_of(place: Path) -> str:
    return place.with_name(f"{place.name}.log").read_text(errors="replace")


@contextmanager
def mounted(place: Path, url: str) -> Iterator[Mount]:
    mount = Mount(place, url)
    try:
        yield mount
    finally:
        mount.close()
