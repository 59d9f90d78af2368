"""Take old steps off the Hub so that their space is free again.

A commit that deletes files frees nothing, and neither does a tag that goes: the large files of old commits are charged
until they are deleted as such. So: the tags first, then those large files that Relay put there and that nothing with a
name refers to any more; none of them while it is not known what a name refers to. Broken off in between, the next time
finishes it. Files of people's are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from huggingface_hub.errors import HfHubHTTPError
from msgspec.structs import replace

from relay_agent.checkpoints.manifest import Manifest
from relay_agent.checkpoints.retention import Best, Retention
from relay_agent.hub import layout
from relay_agent.hub.far.client import connect
from relay_agent.hub.far.remote import bounded, files_at, head_of, manifest_at, refuse_older, tags_of
from relay_agent.hub.keeping import doomed
from relay_agent.hub.protocol import Trim, Trimmed
from relay_agent.sending.trouble import Trouble

PORTION = 100
"""Large files that are deleted at once: as many requests as it takes, and each is done."""


def work(job: Trim, tell: Any) -> Trimmed:
    api, _ = connect(job.where)
    repo = job.where.repo
    tell.phase("pruning")
    head = head_of(api, repo, job.run_id)
    refuse_older(head, job.epoch, job.attempt)
    if head.run is None:
        return Trimmed([], 0)
    branch = head.sha
    del head  # its manifest may be large
    retention = Retention(job.every, Best.parse(job.best) if job.best else None)
    manifests: dict[str, Manifest] = {}
    tags = tags_of(api, repo)
    steps = count(1)
    for tag, commit in tags.items():
        tell.progress(next(steps), 0)
        if layout.step_of(tag) is not None and (short := _short(api, repo, commit, job.run_id, retention)) is not None:
            manifests[tag] = short
    gone = doomed(manifests, job.keep, retention, job.spare)
    for tag in gone:
        tell.may("prune")
        tell.still("prune")
        try:
            api.delete_tag(repo, tag=tag)
        except HfHubHTTPError as error:
            if error.response.status_code != 404:
                raise
        tell.progress(next(steps), 0)
    tell.at("untagged")
    named = {branch, *(commit for tag, commit in tags.items() if tag not in gone)}
    try:
        return Trimmed(gone, _free(api, repo, tell, named, steps))
    except Trouble:
        if not gone:
            raise
        return Trimmed(gone, 0)


def _short(api: Any, repo: str, commit: str, run_id: str, retention: Retention) -> Manifest | None:
    """What is asked of a manifest: there are many, and each may be large."""
    found = manifest_at(api, repo, commit, run_id)
    if found is None:
        return None
    manifest, best = found[0], retention.best and retention.best.name
    metrics = {name: value for name, value in manifest.metrics.items() if name == best}
    return replace(manifest, mode="", trainer="", adapter="", files=[], metrics=metrics, forked_from=None)


class _Large(NamedTuple):
    """All that is kept of a large file, of which there are many: `file_oid` as the library calls it."""

    file_oid: str
    size: int


def _free(api: Any, repo: str, tell: Any, named: set[str], steps: Iterator[int]) -> int:
    """Bytes of large files that were deleted. `named`: commits that had names before, and have them still."""
    large: list[_Large] = []
    listed = bounded(api.list_lfs_files(repo), f"{repo} lists large files", lambda file: file.filename + file.file_oid)
    for file in listed:
        tell.progress(next(steps), 0)
        if file.filename.startswith(layout.OURS):
            large.append(_Large(file.file_oid, file.size))
    if not large:
        return 0
    refs = api.list_repo_refs(repo, include_pull_requests=True)
    named |= {ref.target_commit for ref in (*refs.branches, *refs.tags, *refs.converts, *(refs.pull_requests or ()))}
    needed: set[str | None] = set()
    for commit in named:
        needed |= {file.sha256 for file in files_at(api, repo, commit).values()}
        tell.progress(next(steps), 0)
    free = [file for file in large if file.file_oid not in needed]
    for at in range(0, len(free), PORTION):
        tell.may("prune")
        tell.still("prune")
        api.permanently_delete_lfs_files(repo, free[at : at + PORTION], rewrite_history=False)
        tell.progress(next(steps), 0)
    return sum(file.size for file in free)
