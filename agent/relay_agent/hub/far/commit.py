"""One commit: what it says is known before it is asked whether it may be made, and then it is one request.

The library's own `create_commit` asks the Hub this and that before, and waits as long as it likes in between: a
permission is over by then. Here it is looked at right before the last bytes, without which there is no commit. Texts
are read while they are sent, so that many of them take no memory.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from huggingface_hub import CommitOperationAdd
from huggingface_hub.utils._http import get_session, hf_raise_for_status

from relay_agent.hub import layout
from relay_agent.hub.far.failures import not_the_hub
from relay_agent.hub.far.remote import File

PIECE = 1 << 16
_READ = 3 << 14
"""Bytes read at once: base64 makes whole signs of three."""
_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_END = b'"}}\n'


class Changed(Exception):  # noqa: N818 - it says what happened
    """A file is longer or shorter than it was."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path  # in the repository


class Body:
    """What is posted: the header, what goes, what comes. A text is named by its operation."""

    def __init__(self, lines: Sequence[bytes | CommitOperationAdd]) -> None:
        self._lines = lines
        self.last: Callable[[], None] = lambda: None
        """Called before the last of it goes; what it raises ends the request."""
        self.hear: Callable[[int, int], None] = lambda done, total: None

    @property
    def size(self) -> int:
        return sum(len(line) if isinstance(line, bytes) else _length(line) for line in self._lines)

    def __iter__(self) -> Iterator[bytes]:
        held, done, size = b"", 0, self.size
        for chunk in self._chunks():
            if len(held) >= PIECE:
                yield held
                done += len(held)
                self.hear(done, size)
                held = b""
            held += chunk
        self.last()
        yield held

    def _chunks(self) -> Iterator[bytes]:
        for line in self._lines:
            if isinstance(line, bytes):
                yield line
                continue
            yield _begin(line)
            left = line.upload_info.size
            with line.as_file() as file:
                while data := file.read(min(left, _READ)):
                    left -= len(data)
                    yield base64.b64encode(data)
                if left or file.read(1):
                    raise Changed(line.path_in_repo)
            yield _END


def body(
    message: str, parent: str, gone: Sequence[str], adds: Sequence[CommitOperationAdd], there: Mapping[str, File]
) -> Body | None:
    """`there`: what the commit before it (`parent`) holds; None where all of it is as it shall be."""
    lines: list[bytes | CommitOperationAdd] = [_line("deletedFile", {"path": path}) for path in gone]
    for add in adds:
        found = there.get(add.path_in_repo)
        if add._upload_mode == "lfs":
            oid = add.upload_info.sha256.hex()
            if found is None or found.sha256 != oid:
                value = {"path": add.path_in_repo, "algo": "sha256", "oid": oid, "size": add.upload_info.size}
                lines.append(_line("lfsFile", value))
        elif found is None or found.sha256 is not None or found.oid != oid_of(add):
            lines.append(add)
    if not lines:
        return None
    return Body([_line("header", {"summary": message, "description": "", "parentCommit": parent}), *lines])


def post(api: Any, repo: str, what: Body) -> str:
    """The new commit."""
    headers = {"Content-Type": "application/x-ndjson", "Content-Length": str(what.size), **api._build_hf_headers()}
    url = f"{api.endpoint}/api/models/{repo}/commit/{layout.BRANCH}"
    response = get_session().post(url, headers=headers, content=what)
    hf_raise_for_status(response, endpoint_name="commit")
    try:
        oid = response.json()["commitOid"]
        if _OID.match(oid):
            return str(oid)
    except (KeyError, TypeError, ValueError):
        pass
    raise not_the_hub(api.endpoint, "it names no commit")


def oid_of(add: CommitOperationAdd) -> str:
    """Of git, of a text as it is now."""
    digest = hashlib.sha1(b"blob %d\0" % add.upload_info.size, usedforsecurity=False)
    with add.as_file() as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _begin(add: CommitOperationAdd) -> bytes:
    path = msgspec.json.encode(add.path_in_repo)
    return b'{"key":"file","value":{"encoding":"base64","path":' + path + b',"content":"'


def _length(add: CommitOperationAdd) -> int:
    return len(_begin(add)) + 4 * -(-add.upload_info.size // 3) + len(_END)


def _line(key: str, value: Mapping[str, object]) -> bytes:
    return msgspec.json.encode({"key": key, "value": value}) + b"\n"
