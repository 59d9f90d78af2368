"""The judge of what lies on a hub: it finds each thing that makes a tagged step less than whole, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from local_hub_kit import REPO, checkpoint, hub, put, sha256

from tests.hub import TestHub
from tests.hub.store import Tree, large

__all__ = ["hub"]

FILES = {"weights.bin": b"w" * 100, "shard/0.bin": b"s" * 50}


def edited(hub: TestHub, tree: Tree, path: str, **changes: Any) -> None:
    value = json.loads(hub.content.read(tree[path].sha256)) | changes
    tree[path] = hub.store.small(json.dumps(value).encode())


def stored(hub: TestHub, data: bytes) -> Any:
    hub.repo(REPO).objects[hub.content.put(data)] = len(data)
    return large(sha256(data), len(data))


def test_whole_steps_are_whole(hub: TestHub) -> None:
    put(hub, "step-5", checkpoint(hub, 5, FILES))
    put(hub, "step-10", checkpoint(hub, 10, {"weights.bin": b"later"}) | {"README.md": hub.store.small(b"mine")})
    again = checkpoint(hub, 10, {"weights.bin": b"other"})
    edited(hub, again, "checkpoint/manifest.json", epoch=3, name="step_00000010.e00000003")
    put(hub, "step-10.e3", again)
    put(hub, "release", {"a": hub.store.small(b"of people's")})
    assert hub.verify(REPO) == []


def test_weights_alone_are_whole_where_it_is_said(hub: TestHub) -> None:
    tree = checkpoint(hub, 5, FILES, run={"run_id": "run-1", "complete": False})
    del tree["checkpoint/shard/0.bin"]
    put(hub, "step-5", tree)
    assert hub.verify(REPO) == []
    del tree["checkpoint/weights.bin"]
    put(hub, "step-5", tree)
    assert [str(each) for each in hub.verify(REPO)] == ["step-5: it has no file of a checkpoint"]


Spoil = Callable[[TestHub, Tree], Any]
SPOILT: dict[str, tuple[Spoil, str]] = {
    "no manifest": (lambda hub, tree: tree.pop("checkpoint/manifest.json"), "it has no checkpoint/manifest.json"),
    "no run file": (lambda hub, tree: tree.pop("relay/run.json"), "it has no relay/run.json"),
    "torn manifest": (
        lambda hub, tree: tree.update({"checkpoint/manifest.json": hub.store.small(b'{"relay_')}), "does not read",
    ),
    "manifest of no object": (
        lambda hub, tree: tree.update({"checkpoint/manifest.json": hub.store.small(b"[]")}), "is no object",
    ),
    "another step": (lambda hub, tree: edited(hub, tree, "checkpoint/manifest.json", step=6), "is of step 6"),
    "another version": (
        lambda hub, tree: edited(hub, tree, "checkpoint/manifest.json", relay_manifest=2), "no version, or another",
    ),
    "another run": (lambda hub, tree: edited(hub, tree, "relay/run.json", run_id="run-2"), "of run-2"),
    "a vague run file": (lambda hub, tree: edited(hub, tree, "relay/run.json", complete="yes"), "does not say whether"),
    "a file too few": (lambda hub, tree: tree.pop("checkpoint/weights.bin"), "checkpoint/weights.bin is missing"),
    "a file too many": (
        lambda hub, tree: tree.update({"checkpoint/old.bin": stored(hub, b"old")}), "old.bin is not in its manifest",
    ),
    "another content": (
        lambda hub, tree: tree.update({"checkpoint/weights.bin": stored(hub, b"v" * 100)}), "is not what its manifest",
    ),
    "another size": (
        lambda hub, tree: tree.update({"checkpoint/weights.bin": large(sha256(b"w" * 100), 99)}), "is not what its",
    ),
    "an object deleted": (
        lambda hub, tree: hub.repo(REPO).objects.pop(sha256(b"w" * 100)), "weights.bin was deleted",
    ),
    "bytes that are gone": (
        lambda hub, tree: hub.content.path(sha256(b"w" * 100)).unlink(), "the content of checkpoint/weights.bin is not",
    ),
    "bytes that are few": (
        lambda hub, tree: hub.content.path(sha256(b"w" * 100)).write_bytes(b"w"), "the content of checkpoint/weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILT)
def test_what_is_not_whole_is_found(hub: TestHub, case: str) -> None:
    put(hub, "step-4", checkpoint(hub, 4, {"weights.bin": b"whole"}))
    tree = checkpoint(hub, 5, FILES)
    put(hub, "step-5", tree)
    assert hub.verify(REPO) == []
    spoil, words = SPOILT[case]
    spoil(hub, tree)
    put(hub, "step-5", tree)
    (finding,) = hub.verify(REPO)
    assert finding.tag == "step-5"
    assert words in finding.why


@pytest.mark.parametrize("tag", ["step-005", "step-", "step-5.e0", "step-x", "step-5.3"])
def test_a_tag_that_names_no_step_is_found(hub: TestHub, tag: str) -> None:
    put(hub, tag, checkpoint(hub, 5, FILES))
    assert [each.why for each in hub.verify(REPO)] == ["it names no step"]
