"""A run's repository as it is at one moment: what its branch and its tags hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from relay_agent.checkpoints.manifest import MAX_BYTES, Manifest
from relay_agent.checkpoints.tree import MOST
from relay_agent.hub import layout
from relay_agent.hub.far.check import read, see_run
from relay_agent.hub.far.failures import not_known
from relay_agent.sending.trouble import Trouble

T = TypeVar("T")
MOST_FILES = 300_000
"""In a repository, folders too; the Hub advises 100,000 at most."""
MOST_NAMES = 64 << 20
"""Characters of all that their names are."""


@dataclass(frozen=True)
class File:
    size: int
    oid: str  # of git
    sha256: str | None  # of a large file


@dataclass(frozen=True)
class Head:
    sha: str  # of the commit
    run: layout.RunFile | None
    manifest: bytes | None


def head_of(api: Any, repo: str, run_id: str) -> Head:
    """What `main` holds; Trouble where it is another run's."""
    sha = api.repo_info(repo, revision=layout.BRANCH).sha
    run = see_run(read(api, repo, layout.RUN, sha), run_id)
    return Head(sha, run, read(api, repo, layout.MANIFEST_PATH, sha, MAX_BYTES))


def refuse_older(head: Head, epoch: int, attempt: str) -> None:
    """Trouble where a later attempt has pushed already: whoever comes after it is cut off, and does not know it; or
    where another one has the same epoch."""
    if head.run is not None and (words := layout.fenced(head.run.holder, head.run.attempt, epoch, attempt)):
        raise Trouble("superseded", words)


def tags_of(api: Any, repo: str) -> dict[str, str]:
    """All tags, and the commits that they are on."""
    return {tag.name: tag.target_commit for tag in api.list_repo_refs(repo).tags}


def manifest_at(api: Any, repo: str, revision: str, run_id: str) -> tuple[Manifest, bytes] | None:
    """The manifest that a tag of ours has, and its bytes; None where it is none of this run's, or of what is never
    taken."""
    data = read(api, repo, layout.MANIFEST_PATH, revision, MAX_BYTES)
    if data is None or data.count(b'"sha256"') > MOST:
        return None
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, RecursionError):
        return None
    return (manifest, data) if manifest.run_id == run_id else None


def files_at(api: Any, repo: str, revision: str) -> dict[str, File]:
    """Every file in the repository at a commit that the Hub named, by path. Trouble."""
    found: dict[str, File] = {}
    try:
        entries = api.list_repo_tree(repo, revision=revision, recursive=True)
        for entry in bounded(entries, f"{repo} lists files", lambda entry: entry.path):
            if isinstance(entry, RepoFile):
                sha = entry.lfs.sha256 if entry.lfs else None
                found[entry.path] = File(entry.size, entry.blob_id, sha)
    except RevisionNotFoundError:
        raise not_known(repo, revision) from None
    return found


def bounded(entries: Iterable[T], what: str, name: Callable[[T], str]) -> Iterator[T]:
    """Trouble where there is no end to them."""
    room = MOST_NAMES
    for number, entry in enumerate(entries):
        room -= len(name(entry))
        if number >= MOST_FILES or room < 0:
            raise Trouble("endless", f"{what} without end, or over {MOST_FILES:,}", "transient")
        yield entry
