"""Which checkpoint a new holder resumes from: the newest whole one of the run's line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from relay_agent.checkpoints.aside import set_aside
from relay_agent.checkpoints.disk import SYSTEM, Disk, names
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import NAME, Torn, read, verify
from relay_agent.checkpoints.rollback import is_beyond, notes
from relay_agent.checkpoints.tree import Check, Unreadable, never
from relay_agent.volume.volume import RunFolder


@dataclass(frozen=True)
class Resume:
    path: Path  # RELAY_RESUME_FROM
    name: str
    step: int
    epoch: int
    on_line: bool = True  # False: nothing on the line was whole, this one lies beside it
    healthy: bool = True  # False: saved while the loss was nan, inf, diverging, or not known to the end
    last_healthy: str | None = None  # the newest of the line that was saved while it was well
    bad: tuple[tuple[str, str], ...] = ()  # what was passed over on the way and set aside: name, reason
    forked: bool = False  # it is the copy of another run's that this one began with


def _silent(name: str, reason: str) -> None:
    pass


def choose(
    run: RunFolder,
    on_bad: Callable[[str, str], None] = _silent,
    disk: Disk = SYSTEM,
    check: Check = never,
    *,
    healthy: bool = False,
) -> Resume | None:
    """The newest whole checkpoint of the line, every byte of it read; None where no whole one is left. Blocking.

    Never one saved where a note on the volume says that the loss was bad already (`rollback`).
    `healthy`: only of those saved while it was well. The claim that names one as its base takes those after it
    off the line, where they stay.

    For the holder of the lease only, before it claims its epoch with the answer as base: torn ones that stand in the
    way are moved to `ckpt/.bad`. `on_bad` hears of each (name, reason), also when None is answered. OSError where none
    is left but some could not be read: a volume in trouble is no reason to start over.
    """
    order, known = survey(run), notes(run)
    bad: list[tuple[str, str]] = []
    unreadable: list[str] = []

    def pass_over(name: str, torn: Torn) -> None:
        where = f"stays in {run.ckpt / name}"
        if isinstance(torn, Unreadable):
            unreadable.append(name)
        else:
            with suppress(OSError):  # it cannot be moved: it is still not used
                where = f"is kept in {set_aside(run, run.ckpt / name, disk)}"
        reason = f"{torn.reason}; it {where}"
        bad.append((name, reason))
        on_bad(name, reason)

    for name, torn in order.bad:
        pass_over(name, torn)
    for on_line, candidates in ((True, order.line), (False, order.orphans)):
        for sealed in candidates:
            if is_beyond(known, sealed.manifest) or (healthy and not (on_line and sealed.manifest.healthy)):
                continue
            try:
                manifest = verify(sealed.path, run.run_id, check)
            except Torn as torn:
                pass_over(sealed.name, torn)
                continue
            well = next((other.name for other in order.line if other.manifest.healthy), None)
            return Resume(
                sealed.path, manifest.name, manifest.step, manifest.epoch, on_line, manifest.healthy, well, tuple(bad),
                manifest.forked_from is not None,
            )  # fmt: skip
    if unreadable:
        raise OSError(errno.EIO, "no checkpoint of the run can be read", str(run.ckpt / unreadable[0]))
    return None


def is_passed_over(run: RunFolder, name: str) -> bool:
    """Whether a published checkpoint is off the line and no note says that the loss was bad by then. Blocking."""
    order = survey(run)
    beside = next((sealed for sealed in order.orphans if sealed.name == name), None)
    return beside is not None and not is_beyond(notes(run), beside.manifest)


def of_name(run: RunFolder, name: str, check: Check = never) -> Resume:
    """The published checkpoint of that name, every byte of it read; Torn where it is not whole. Blocking."""
    manifest = verify(run.ckpt / name, run.run_id, check)
    well = name if manifest.healthy else None
    return Resume(
        run.ckpt / name, name, manifest.step, manifest.epoch, healthy=manifest.healthy, last_healthy=well,
        forked=manifest.forked_from is not None,
    )  # fmt: skip


def is_fork(run: RunFolder, name: str | None) -> bool:
    """Whether the published checkpoint of that name is the copy that a fork began with. Blocking."""
    try:
        return name is not None and read(run.ckpt / name, run.run_id).manifest.forked_from is not None
    except Torn:
        return False


def floor(run: RunFolder, name: str | None) -> int | None:
    """A trainer that was handed the published checkpoint of that name and begins at this step or below began elsewhere;
    None where nothing tells. One that tells no step itself is of any after the one before it. Blocking."""
    try:
        manifest = read(run.ckpt / name, run.run_id).manifest if name is not None else None
    except Torn:
        return None
    if manifest is None:
        return None
    if not manifest.heard:
        return manifest.step - 1
    before = manifest.base if manifest.base and NAME.match(manifest.base) else "step_1"
    return min(manifest.step - 1, int(before.split(".")[0].removeprefix("step_")))


def is_another(path: Path, run_id: str, manifest: str) -> bool:
    """Whether a checkpoint lies in `path` that is not the one whose manifest has that hash. Not where none reads."""
    try:
        return bool(manifest) and read(path, run_id).sha256 != manifest
    except Torn:
        return False


@dataclass(frozen=True)
class Remains:
    """What tells of checkpoints that cannot be resumed from any more."""

    aside: Mapping[str, Path]  # published once and found damaged: by the name each had, where it lies in `ckpt/.bad`
    traces: tuple[str, ...]  # what else shows that the run has published, in words


def remains(run: RunFolder) -> Remains:
    """Asked before the epoch is claimed. Blocking. Torn saves that were never published are not missed."""
    aside: dict[str, Path] = {}
    with suppress(FileNotFoundError):
        for entry in sorted(names(run.bad)):
            for name in (entry, re.sub(r"\.[0-9]+\Z", "", entry)):  # the second of a name got a number
                if NAME.match(name):
                    aside[name] = run.bad / entry
    traces = ["ckpt/latest.json"] if os.path.lexists(run.ckpt / "latest.json") else []
    for epoch, claim in sorted(survey(run).claims.items()):
        if claim is not None and claim.base is not None:
            traces.append(f"the claim of epoch {epoch}, which went on from {claim.base}")
    return Remains(aside, tuple(traces))
