"""What goes to the Hub with one checkpoint: its files as they are wished for, and what is told beside them."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

import relaytui
from relay_agent.checkpoints.manifest import Sealed
from relay_agent.config import Settings
from relay_agent.hub import card, layout
from relay_agent.hub.choosing import chosen, told
from relay_agent.hub.protocol import Beside, Send
from relay_agent.hub.wish import Wish
from relay_agent.secret_words import scrub, scrub_deep
from relay_agent.trainer.command import Launch
from relay_agent.volume.volume import RunFolder

METRICS_TAIL = 8 << 20
EVENTS_TAIL = 4 << 20
"""Bytes of a file that grows with the run: the end of it."""
MANY_ROLLOUTS = 500
NO_LINEAGE = layout.Lineage()
SETTLED = 60.0
"""Seconds since a rollout was written last; a younger one may still be written."""
_NOT_TOLD = ("shared_secret", "hf_token", "commander_url", "agent_state", "worker_id", "source")
_WORDS = ("mode", "chosen", "command", "trainer", "adapter", "git_commit", "environment")
"""Of a run file: what may hold what somebody wrote."""


class NothingChosen(Exception):  # noqa: N818 - it says what happened
    """None of a checkpoint's files is what HF_PUSH wants."""


@dataclass(frozen=True)
class About:
    """What is known of an attempt before it begins."""

    mode: str
    trainer: str
    command: str
    config_hash: str
    git_commit: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    lineage: layout.Lineage = NO_LINEAGE

    @classmethod
    def of(cls, settings: Settings, launch: Launch, lineage: layout.Lineage) -> About:
        """Blocking: it asks git."""
        return cls(
            settings.mode, launch.name, launch.digest, config_hash(settings), git_commit(), told(os.environ), lineage
        )


def config_hash(settings: Settings) -> str:
    """The same for the same settings, wherever they came from; nothing can be read from it."""
    known = {name: _encodable(getattr(settings, name)) for name in settings.__struct_fields__ if name not in _NOT_TOLD}
    return hashlib.sha256(msgspec.json.encode(sorted(known.items()))).hexdigest()[:16]


def _encodable(value: object) -> str:
    """A command may hold bytes that are no UTF-8."""
    return str(value).encode(errors="backslashreplace").decode()


def git_commit() -> str:
    """Of the folder that the trainer starts in; empty: it is in none."""
    ask = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        said = subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    words = said.stdout.decode("ascii", "replace").strip()
    return words if said.returncode == 0 and len(words) in (40, 64) and words.isalnum() else ""


def packed(
    wish: Wish, run: RunFolder, epoch: int, sealed: Sealed, about: About, metrics: Path, before: float,
    attempt: str = "",
) -> Send:  # fmt: skip
    """`before`: seconds since 1970; rollouts written later wait. `attempt`: see `hub.attempts`. NothingChosen.
    Blocking: it looks for rollouts."""
    manifest = sealed.manifest
    files = chosen([entry.path for entry in manifest.files], wish.push)
    if not files:
        raise NothingChosen(f"HF_PUSH ({' '.join(wish.push)}) names no file of {sealed.name}")
    complete = len(files) == len(manifest.files)
    told_of = layout.RunFile(
        layout.VERSION, manifest.run_id, about.mode, sealed.name, manifest.step, manifest.epoch, manifest.seq, epoch,
        complete, list(wish.push), about.config_hash, about.command, manifest.trainer, manifest.adapter,
        about.git_commit, dict(about.environment), about.lineage, manifest.base, relaytui.__version__, attempt,
    )  # fmt: skip
    told_of = _without_secrets(told_of)
    beside = [
        Beside(layout.RUN, text=told_of.encode().decode()),
        Beside(layout.METRICS, file=str(metrics), tail=METRICS_TAIL),
        Beside(layout.EVENTS, file=str(run.events), tail=EVENTS_TAIL),
        *rollouts(wish, run, before),
    ]
    base = told_of.lineage.base_model
    fields: dict[str, str | list[str]] = {"tags": [card.TAG]} | ({"base_model": base} if base else {})
    section = scrub(_section(told_of, sealed))
    message = f"Step {manifest.step} of {manifest.run_id}"
    return Send(wish.where, manifest.run_id, epoch, str(sealed.path), files, beside, section, fields, message)


def _without_secrets(run: layout.RunFile) -> layout.RunFile:
    """Names of what is there stay as they are: somebody looks for them."""
    told_of = {name: scrub_deep(getattr(run, name)) for name in _WORDS}
    lineage = layout.Lineage(**scrub_deep(msgspec.structs.asdict(run.lineage)))
    return msgspec.structs.replace(run, lineage=lineage, **told_of)


def size_of(job: Send, sealed: Sealed) -> int:
    """Bytes of the checkpoint's files that go."""
    wanted = set(job.files)
    return sum(entry.size for entry in sealed.manifest.files if entry.path in wanted)


def _section(run: layout.RunFile, sealed: Sealed) -> str:
    forked = run.lineage.forked_repo or run.lineage.forked_run
    metrics = sealed.manifest.metrics.items()
    rows = {
        "Run": run.run_id,
        "Step": f"{run.step:,}",
        "Checkpoint": run.checkpoint,
        "Holds": "all that training goes on from" if run.complete else f"chosen files ({' '.join(run.chosen)})",
        "Metrics": ", ".join(f"{name} {value:.6g}" for name, value in sorted(metrics)),
        "Saved while the loss was": "" if sealed.manifest.healthy else "not known to be well",
        "Base model": run.lineage.base_model,
        "Forked from": " ".join(part for part in (forked, run.lineage.forked_tag) if part),
        "Trainer": run.trainer,
        "Git commit": run.git_commit,
        "Config": run.config_hash,
    }
    return f"{card.HEADING}\n\n{card.table(rows)}\n"


def rollouts(wish: Wish, run: RunFolder, before: float) -> list[Beside]:
    """The newest of all attempts; those that are there already are not sent again, and what vanished, or cannot be
    read, is not sent. Blocking."""
    if wish.rollouts is None:
        return []
    found: list[tuple[float, str, Path]] = []
    with suppress(OSError):
        for epoch in run.output(0).parent.iterdir():
            with suppress(OSError, ValueError):  # an attempt that made none hides no others
                if epoch.name.startswith("e"):
                    found += _rollouts_of(epoch, *wish.rollouts)
    newest = sorted((each for each in found if each[0] <= before), reverse=True)[:MANY_ROLLOUTS]
    return [Beside(name, file=str(path)) for _, name, path in newest if name.isprintable()]


def _rollouts_of(epoch: Path, below: Path, pattern: str) -> Iterator[tuple[float, str, Path]]:
    root = below if below.is_absolute() else epoch / below
    with os.scandir(root) as entries:
        for entry in entries:
            if fnmatchcase(entry.name, pattern) and entry.is_file(follow_symlinks=False):
                mtime = entry.stat(follow_symlinks=False).st_mtime
                yield mtime, f"{layout.ROLLOUTS}{epoch.name}/{entry.name}", Path(entry.path)
