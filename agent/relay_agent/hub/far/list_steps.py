"""Which checkpoints a repository holds: every tag of Relay's, and what the manifest at it says."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from huggingface_hub.errors import RepositoryNotFoundError

from relay_agent.checkpoints.manifest import MAX_BYTES, Torn, decode
from relay_agent.checkpoints.receiving import refuse_foreign
from relay_agent.hub import layout
from relay_agent.hub.far.check import read
from relay_agent.hub.far.client import connect
from relay_agent.hub.protocol import Listed, ListSteps
from relay_agent.sending.protocol import Step
from relay_agent.sending.trouble import Trouble

MAX_TAGS = 5_000
"""More than a run of years leaves; each costs a request."""


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
        data = _manifest(api, repo, commit)
        manifest = decode(data)
        refuse_foreign(manifest)
    except Torn as torn:
        return Step(tag, commit, torn.reason)
    return Step.of(tag, commit, manifest, hashlib.sha256(data).hexdigest())


def _manifest(api: Any, repo: str, commit: str) -> bytes:
    try:
        data = read(api, repo, layout.MANIFEST_PATH, commit, MAX_BYTES)
    except Trouble as trouble:
        if trouble.code != "too_large":
            raise
        raise Torn(trouble.words) from None
    if data is None:
        raise Torn("it has no manifest")
    return data
