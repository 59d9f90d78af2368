"""What a run's repository on the Hub holds, and under which names. Pure.

One commit on `main` per checkpoint, and a tag on it. At the tag `step-N` lie `checkpoint/` with exactly the published
folder's files (so that `from_pretrained(repo, revision="step-N", subfolder="checkpoint")` works), `relay/run.json`,
`relay/metrics.jsonl`, `relay/events.jsonl`, `rollouts/…` where they are wished for, and the model card. A checkpoint is
on the Hub when its tag is: what no tag names is half done. Order comes from manifests, never from tags' names or dates.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from relay_agent.checkpoints.manifest import MANIFEST, Manifest
from relaytui.wire.ids import Count, Epoch, Id, Seq

BRANCH = "main"
CHECKPOINT = "checkpoint/"
MANIFEST_PATH = CHECKPOINT + MANIFEST
RUN = "relay/run.json"
METRICS = "relay/metrics.jsonl"
EVENTS = "relay/events.jsonl"
ROLLOUTS = "rollouts/"
CARD = "README.md"
OURS = (CHECKPOINT, "relay/")
"""Folders in the repository that are Relay's: what it does not put there itself, it takes away."""
VERSION = 1
MAX_RUN = 1 << 20
"""Bytes of a `run.json`, at most."""
MAX_REPO = 96

_NAME = re.compile(r"step_0*([0-9]+)(?:\.e0*([0-9]+)(?:\.([0-9]{1,6}))?)?\Z")
_TAG = re.compile(r"step-(0|[1-9][0-9]{0,15})(?:\.e([1-9][0-9]{0,15})(?:\.([1-9][0-9]{0,5}))?)?\Z")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII)


class Lineage(Struct, frozen=True, omit_defaults=True):
    """Where a run comes from: the model it began with, or the step of another run."""

    base_model: str = ""
    forked_repo: str = ""
    forked_run: str = ""
    forked_tag: str = ""


class RunFile(Struct, frozen=True):
    """`relay/run.json`. Who reads one has it from strangers: `decode_run` checks it."""

    relay_run: int  # version of this format
    run_id: Id
    mode: str
    checkpoint: Id  # its name, as in its manifest
    step: Count
    epoch: Epoch  # the attempt that published it
    seq: Seq
    holder: Epoch  # the attempt that pushed it
    complete: bool  # False: only weights or chosen files are here, and no trainer is resumed from them
    chosen: list[str]  # how they were chosen; empty: all
    config_hash: str = ""
    command: str = ""  # the digest of the trainer's command
    trainer: str = ""
    adapter: str = ""
    git_commit: str = ""
    environment: dict[str, str] = {}  # by an allow-list, without secrets
    lineage: Lineage = Lineage()
    base: Id | None = None  # the checkpoint before it in the line
    agent: str = ""  # version
    attempt: str = ""  # of `holder`: another commander may have granted the same epoch

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def fenced(holder: int, their: str, epoch: int, ours: str) -> str:
    """Why an attempt of `epoch` pushes nothing where the attempt of epoch `holder` has pushed last; empty: it may."""
    if holder > epoch:
        return f"epoch {holder} has pushed already, and this is epoch {epoch}"
    if holder == epoch and their and ours and their != ours:
        return f"another attempt of epoch {epoch} has pushed already: two commanders have this run"
    return ""


class BadRun(Exception):  # noqa: N818 - it says what was found
    """What lies at `relay/run.json` says nothing, and why."""


def decode_run(data: bytes) -> RunFile:
    """BadRun where it is none that this agent reads."""
    try:
        run = msgspec.json.decode(data, type=RunFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRun(f"it does not read: {error}") from None
    if run.relay_run != VERSION:
        raise BadRun(f"it has version {run.relay_run}, this agent reads {VERSION}")
    return run


def order(manifest: Manifest) -> tuple[int, int]:
    """The newest has the greatest."""
    return manifest.epoch, manifest.seq


def tag_of(name: str) -> str:
    """Of a published checkpoint's name: `step_00000500` is `step-500`, `step_00000500.e00000003` is `step-500.e3`.
    ValueError where it is no such name."""
    match = _NAME.match(name)
    if match is None:
        raise ValueError(f"{name!a} is no checkpoint's name")
    step, epoch, number = match.groups()
    return f"step-{int(step)}" + (f".e{epoch}" if epoch else "") + (f".{int(number)}" if number else "")


def tags_for(manifest: Manifest) -> list[str]:
    """Tags that it may have, the first that is free, or is its own already: on another volume another checkpoint of
    the same step may have had the name."""
    own = tag_of(manifest.name)
    wider = f"step-{manifest.step}.e{manifest.epoch}"
    more = [f"{wider}.{number}" for number in range(2, 100)]
    return [own, *(tag for tag in (wider, *more) if tag != own)]


def step_of(tag: str) -> int | None:
    """The step that a tag is of; None where it is none of Relay's. Nothing else may be made of it: that is the
    manifest's to say."""
    match = _TAG.match(tag)
    return int(match[1]) if match else None


def path_of(file: str) -> str:
    """In the repository, of a file of the checkpoint."""
    return CHECKPOINT + file


def repo_of(wish: str, run_id: str) -> str:
    """`{run_id}` in the name of a repository is the run's."""
    return wish.strip().replace("{run_id}", run_id)


def repo_trouble(repo: str) -> str:
    """What is wrong with the name of a repository; empty: the Hub takes it."""
    if not _REPO.match(repo):
        return "it should be owner/name, of letters, digits, dots, dashes and underscores"
    if len(repo) > MAX_REPO:
        return f"it has {len(repo)} characters, and the Hub takes {MAX_REPO}"
    if "--" in repo or ".." in repo:
        return "the Hub takes no -- and no .. in it"
    if repo.endswith((".", "-", ".git", ".ipynb")) or repo.partition("/")[0].endswith((".", "-")):
        return "the Hub takes no name that ends in a dot, a dash, .git or .ipynb"
    return ""
