"""Which checkpoints a repository holds: every tag of Relay's, and what the manifest at it says."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from huggingface_hub.errors import RepositoryNotFoundError

from relay_agent.checkpoints.manifest import MAX_BYTES, Torn, decode
from relay_agent.checkpoints.receiving import refuse_foreign
from relay_agent.checkpoints.tree import MOST
from relay_agent.hub import layout
from relay_agent.hub.far.check import read
from relay_agent.hub.far.client import connect
from relay_agent.hub.protocol import Listed, ListSteps
from relay_agent.sending.protocol import Step
from relay_agent.sending.trouble import Trouble

MAX_TAGS = 5_000
"""More than a run of years leaves; each costs a request."""
SMALL = 2 << 20
"""Bytes of a manifest, of which several are read at once; of larger ones it is one at a time."""
_LARGE = Lock()


def work(job: ListSteps, tell: Any) -> Listed:
    api, _ = connect(job.where)
    tell.phase("looking")
    return Listed(steps_of(api, job.where.repo, tell, job.threads))


def steps_of(api: Any, repo: str, tell: Any, threads: int = 4) -> list[Step]:
    try:
        tags = [(tag.name, tag.target_commit) for tag in api.list_repo_refs(repo).tags]
    except RepositoryNotFoundError as error:
        if error.response.status_code == 401:
            raise
        return []
    tags = [(name, commit) for name, commit in tags if layout.step_of(name) is not None]
    if len(tags) > MAX_TAGS:
        raise Trouble(
            "too_many_tags", f"{repo} has {len(tags):,} tags of steps, and over {MAX_TAGS:,} are not looked at"
        )
    steps: list[Step] = []
    pool = ThreadPoolExecutor(threads, thread_name_prefix="list")
    try:
        for step in pool.map(lambda tag: _step(api, repo, *tag), tags):
            steps.append(step)
            tell.progress(len(steps), len(tags))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # what waits for the Hub ends with this process
    return steps


def _step(api: Any, repo: str, tag: str, commit: str) -> Step:
    try:
        return _read(api, repo, tag, commit, SMALL)
    except Trouble as trouble:
        if trouble.code != "too_large":
            raise
    with _LARGE:
        return _read(api, repo, tag, commit, MAX_BYTES)


def _read(api: Any, repo: str, tag: str, commit: str, limit: int) -> Step:
    try:
        data = read(api, repo, layout.MANIFEST_PATH, commit, limit)
        if data is None:
            raise Torn("it has no manifest")
        if data.count(b'"sha256"') > MOST:  # of what is never taken nothing is made
            raise Torn(f"its manifest lists more than {MOST:,} files")
        manifest = decode(data)
        refuse_foreign(manifest)
    except Torn as torn:
        return Step(tag, commit, torn.reason)
    except Trouble as trouble:
        if trouble.code != "too_large" or limit < MAX_BYTES:
            raise
        return Step(tag, commit, trouble.words)
    return Step.of(tag, commit, manifest, hashlib.sha256(data).hexdigest())
