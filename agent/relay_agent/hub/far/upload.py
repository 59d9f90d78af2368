"""The bytes of files that a commit will name: which go apart from it, and that each of those goes once."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from huggingface_hub import CommitOperationAdd
from huggingface_hub.utils._http import hf_raise_for_status, http_backoff

from relay_agent.hub import layout
from relay_agent.hub.far.client import Again, Sent
from relay_agent.hub.far.failures import chain, not_the_hub

ASKED_AGAIN = 5
"""Times that the Hub is asked what it has before a file is sent again; then it is the library's affair."""
IN_COMMIT = 32 << 20
"""Bytes of texts that one commit carries in itself, at most: it is one request, and each file of it may be 10 MB."""
AT_ONCE = 256
"""Files that the Hub tells the way of in one answer, at most."""


def see_ways(api: Any, repo: str, adds: Sequence[CommitOperationAdd]) -> None:
    """Ask which of them go apart (`lfs`) and which in the commit (`regular`), and which its .gitignore names."""
    url = f"{api.endpoint}/api/models/{repo}/preupload/{layout.BRANCH}"
    for at in range(0, len(adds), AT_ONCE):
        some = adds[at : at + AT_ONCE]
        files = [
            {
                "path": add.path_in_repo,
                "sample": base64.b64encode(add.upload_info.sample).decode(),
                "size": add.upload_info.size,
            }
            for add in some
        ]
        response = http_backoff("POST", url, json={"files": files}, headers=api._build_hf_headers())
        hf_raise_for_status(response)
        try:
            rows = {row["path"]: row for row in response.json()["files"]}
            for add in some:
                row = rows[add.path_in_repo]
                add._should_ignore = bool(row["shouldIgnore"])
                apart = {"lfs": True, "regular": False}[row["uploadMode"]]
                add._upload_mode = "lfs" if apart and add.upload_info.size else "regular"  # storage takes no empty one
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise not_the_hub(api.endpoint, type(error).__name__) from None


def lighten(adds: Sequence[CommitOperationAdd]) -> int:
    """The largest texts go apart, too, where they are more than a commit carries. Bytes that it carries still."""
    room = IN_COMMIT
    for add in sorted((add for add in adds if add._upload_mode == "regular"), key=lambda add: add.upload_info.size):
        if room < add.upload_info.size:
            add._upload_mode = "lfs"
        else:
            room -= add.upload_info.size
    return room


def send(api: Any, sent: Sent, repo: str, adds: Sequence[CommitOperationAdd], threads: int) -> None:
    """Those that go apart, what is the same once. The library sends a file again whatever became of it; here the Hub is
    asked what it has before that."""
    apart = list({_content(add): add for add in adds if add._upload_mode == "lfs"}.values())
    sizes = frozenset(add.upload_info.size for add in apart)
    for asked in range(ASKED_AGAIN + 1):
        sent.expect(sizes if asked < ASKED_AGAIN else frozenset())
        try:
            api.preupload_lfs_files(repo, apart, revision=layout.BRANCH, num_threads=threads, free_memory=False)
        except Exception as error:
            if not any(isinstance(each, Again) for each in chain(error)):
                raise
        else:
            return


def _content(add: CommitOperationAdd) -> object:
    """The same for the same content, as far as it is known before it is read."""
    return add.upload_info.sha256 if add.upload_info.is_hashed else add.path_in_repo
