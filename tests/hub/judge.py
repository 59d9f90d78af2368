"""Whether what lies on a hub keeps the promise: a step whose tag exists is there whole, byte for byte.

It reads Relay's manifest by itself, from JSON, so that a mistake in the agent's own reading does not hide another.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tests.hub.content import Content
from tests.hub.store import Repo, Tree

__all__ = ["Finding", "judge"]

CHECKPOINT = "checkpoint/"
MANIFEST = CHECKPOINT + "manifest.json"
RUN = "relay/run.json"
TAG = re.compile(r"step-(0|[1-9][0-9]*)(?:\.e([1-9][0-9]*)(?:\.[0-9]+)?)?\Z")


@dataclass(frozen=True)
class Finding:
    tag: str
    why: str

    def __str__(self) -> str:
        return f"{self.tag}: {self.why}"


class BadError(Exception):
    pass


def judge(repo: Repo, content: Content) -> list[Finding]:
    """What is wrong with the tags `step-…` of that repository; others are not looked at."""
    findings = []
    for tag, oid in repo.tags.items():
        if tag.startswith("step-"):
            try:
                _check(tag, repo.commits[oid].tree, repo, content)
            except BadError as bad:
                findings.append(Finding(tag, str(bad)))
    return findings


def _check(tag: str, tree: Tree, repo: Repo, content: Content) -> None:
    named = TAG.match(tag)
    if named is None:
        raise BadError("it names no step")
    manifest = _json(MANIFEST, tree, content)
    run = _json(RUN, tree, content)
    if manifest.get("relay_manifest") != 1:
        raise BadError("its manifest has no version, or another")
    if manifest.get("step") != int(named[1]):
        raise BadError(f"its manifest is of step {manifest.get('step')}")
    if named[2] is not None and manifest.get("epoch") != int(named[2]):
        raise BadError(f"its manifest is of epoch {manifest.get('epoch')}")
    if run.get("run_id") != manifest.get("run_id"):
        raise BadError(f"its manifest is of the run {manifest.get('run_id')}, {RUN} of {run.get('run_id')}")
    complete = run.get("complete", True)
    if not isinstance(complete, bool):
        raise BadError(f"{RUN} does not say whether it is complete")
    listed = {CHECKPOINT + file["path"]: file for file in manifest["files"]}
    there = {path for path in tree if path.startswith(CHECKPOINT) and path != MANIFEST}
    if strange := there - set(listed):
        raise BadError(f"{min(strange)} is not in its manifest")
    if complete and (missing := set(listed) - there):
        raise BadError(f"{min(missing)} is missing")
    if not there:
        raise BadError("it has no file of a checkpoint")
    for path in there:
        entry, file = tree[path], listed[path]
        if (entry.size, entry.sha256) != (file["size"], file["sha256"]):
            raise BadError(f"{path} is not what its manifest says")
        if entry.lfs and entry.sha256 not in repo.objects:
            raise BadError(f"the content of {path} was deleted")
        if not content.has(entry.sha256) or content.path(entry.sha256).stat().st_size != entry.size:
            raise BadError(f"the content of {path} is not there")


def _json(path: str, tree: Tree, content: Content) -> dict[str, Any]:
    if path not in tree or not content.has(tree[path].sha256):
        raise BadError(f"it has no {path}")
    try:
        value = json.loads(content.read(tree[path].sha256))
    except ValueError:
        raise BadError(f"{path} does not read") from None
    if not isinstance(value, dict):
        raise BadError(f"{path} is no object")
    return value
