"""What of a run is on the Hub, by the word of its agents: what the run's row and its checkpoints show.

Told by events of the state stream, `hub.synced`, `hub.failed`, `hub.refused` and `hub.pruned`, and by workers of the
original protocol, which say the same in another way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from relaytui.commander.model.records import Attempt
from relaytui.commander.model.run import Run
from relaytui.commander.store import checkpoints, runs
from relaytui.commander.store.writer import Tx
from relaytui.wire.ids import is_id, step_name
from relaytui.wire.text import clean

SYNCED = "hub.synced"
PRUNED = "hub.pruned"
TROUBLE = frozenset({"hub.failed", "hub.refused"})
KINDS = TROUBLE | {SYNCED, PRUNED}
MAX_ERROR = 300
_TAG = re.compile(r"step-([0-9]{1,15})(?:\.e([0-9]{1,15}))?\Z")


def heed(tx: Tx, attempt: Attempt, kind: str, message: str, data: Mapping[str, str], now: float) -> None:
    """One such event; its text is clean. An attempt is not asked of what a newer one has spoken of since."""
    run = runs.get(tx, attempt.run_id)
    if run is None or attempt.epoch < run.synced_epoch:
        return
    if kind in TROUBLE:
        runs.save(tx, replace(run, sync_error=_error(message, data), synced_epoch=attempt.epoch))
    elif kind == PRUNED:
        for tag in data.get("tags", data.get("tag", "")).split():
            checkpoints.set_hub(tx, run.run_id, _name(tag), "")
    elif kind == SYNCED:
        _synced(tx, run, attempt, data, now)


def _synced(tx: Tx, run: Run, attempt: Attempt, data: Mapping[str, str], now: float) -> None:
    step = data.get("step", "")
    tag = data.get("tag", "")
    saved = replace(
        run,
        synced_step=int(step) if step.isascii() and step.isdigit() and len(step) < 16 else None,
        synced_repo=clean(data.get("repo", ""), 200),
        synced_revision=clean(data.get("revision", ""), 64),
        synced_at=now,
        synced_epoch=attempt.epoch,
        sync_error="",
    )
    runs.save(tx, saved)
    name = data.get("checkpoint", "") or _name(tag)
    if tag and is_id(name):
        checkpoints.set_hub(tx, run.run_id, name, clean(tag, 64))


def _error(message: str, data: Mapping[str, str]) -> str:
    words = data.get("words") or message or data.get("code") or "no reason given"
    return clean(words, MAX_ERROR)


def _name(tag: str) -> str:
    """Of the checkpoint that has this tag, unless it had to have another one; empty where it is no tag of ours."""
    match = _TAG.match(tag)
    return step_name(int(match[1]), int(match[2]) if match[2] else None) if match else ""
