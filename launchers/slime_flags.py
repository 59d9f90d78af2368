"""Relay's wishes as slime's flags: where it saves, what it loads, and with which rollout it goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TRACKER = "latest_checkpointed_iteration.txt"
ITER = re.compile(r"iter_(\d{7,})\Z")


class Checkpoint(NamedTuple):
    folder: Path
    rollout: int
    names: tuple[tuple[str, str], ...] = ()
    """Where no tracker names it: what a folder that slime can load has, and where that lies."""


# -- what slime loads ------------------------------------------------------------------------------------------------


def checkpoint_in(given: Path) -> Checkpoint | None:
    """What slime calls a checkpoint: iter_N beside a tracker that names it. iter_N alone, or a folder that is one, is
    taken, too; None where it is not clear which."""
    try:
        text = (given / TRACKER).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    if text.isdigit() and (given / f"iter_{int(text):07d}").is_dir():
        return Checkpoint(given, int(text))
    alone = [given] if ITER.match(given.name) else []
    try:
        inside = [path for path in sorted(given.iterdir()) if ITER.match(path.name) and path.is_dir()]
    except OSError:
        return None
    found = alone or inside
    if len(found) != 1 or (text and not alone):
        return None
    (path,) = found
    rollout = int(path.name[len("iter_") :])
    names = [(path.name, str(path))]
    data = path.parent / "rollout"
    if data.is_dir():
        names.append(("rollout", str(data)))
    return Checkpoint(given, rollout, tuple(names))


def lay_out(folder: Path, load: dict) -> Path:
    """A folder that slime can load, of links to what lies elsewhere."""
    folder.mkdir()
    for name, target in load["layout"]:
        (folder / name).symlink_to(target)
    (folder / TRACKER).write_text(str(load["rollout"]), encoding="ascii")
    return folder


# -- what slime is told ----------------------------------------------------------------------------------------------


def value_of(words: list[str], flag: str) -> str | None:
    """The last one, as argparse takes it."""
    found = None
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            found = words[at + 1]
        elif word.startswith(flag + "="):
            found = word[len(flag) + 1 :]
    return found


def without(words: list[str], flags: Iterable[str]) -> list[str]:
    """Without these flags, each of which has one value."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in flags:
            skip = True
        elif not any(word.startswith(flag + "=") for flag in flags):
            kept.append(word)
    return kept


def as_relay_wishes(words: list[str], wish: dict) -> list[str]:
    """The job's command with Relay's folders in place of the script's."""
    load, save = wish["load"], wish["save"]
    own_load, own_save = value_of(words, "--load"), value_of(words, "--save")
    interval = wish["interval"] or value_of(words, "--save-interval") or "20"
    gone = ["--save", "--save-interval"]
    added = ["--save", save, "--save-interval", interval]
    if load:
        gone += ["--load", "--ckpt-step", "--start-rollout-id"]
        # Said aloud: a version of slime restored the weights and counted from 0 all the same.
        added += ["--load", load["from"], "--start-rollout-id", str(load["rollout"] + 1)]
    elif own_load is None or (own_save and Path(own_load) == Path(own_save)):
        # What an earlier run left in the script's own folder is none of this run's. Empty, it means --ref-load.
        gone.append("--load")
        added += ["--load", save]
    return [*without(words, gone), *added]


def nothing_left(words: list[str], wish: dict) -> str:
    """Why the job would not make a rollout; empty where nothing tells."""
    last, load = value_of(words, "--num-rollout") or "", wish["load"]
    if not load or not last.isdigit() or int(last) > load["rollout"] + 1:
        return ""
    return f"it resumes after rollout {load['rollout']}, and --num-rollout is {last}; nothing is left to do"
