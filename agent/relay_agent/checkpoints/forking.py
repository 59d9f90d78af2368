"""A run that begins with a checkpoint of another one: found, copied, and published as the first of its own.

The other run is only read, whoever trains it meanwhile. What is published has the new run's name, epoch and order, and
says in its manifest whose copy it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from relay_agent.checkpoints.disk import SYSTEM, Disk, folder, open_file
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import MANIFEST, Manifest, Origin, Sealed, read, verify
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.receiving import Receiving, manifest_of, place_for
from relay_agent.checkpoints.staging import Staged
from relay_agent.checkpoints.tree import Check, Torn, never, torn_by
from relay_agent.volume.volume import RunFolder

_CHUNK = 1 << 20
_SHOWN = 10
TRIES = 5
"""Checkpoints that are chosen one after another where each is pruned before it is here."""


class NoParent(Exception):  # noqa: N818 - it says what was found
    """There is no such checkpoint, and what there is instead."""


class Pruned(Exception):  # noqa: N818 - it says what happened
    """What was chosen went meanwhile: the other run trains on, and prunes."""


def find(parent: RunFolder, step: int | None, check: Check = never) -> Sealed:
    """The newest of the line of another run, or the newest of that step; every byte of it was read. NoParent where
    there is none that is whole, Pruned where what was read went meanwhile. Blocking."""
    try:
        order = survey(parent)
    except OSError as error:
        raise NoParent(f"{parent.root} cannot be read: {error.strerror or error}") from None
    bad: list[str] = []
    for sealed in order.line + order.orphans:
        if step is not None and sealed.manifest.step != step:
            continue
        if step is None and sealed in order.orphans:
            break
        try:
            verify(sealed.path, parent.run_id, check)
        except Torn as torn:
            _see_there(sealed)
            bad.append(f"{sealed.name} is not whole: {torn.reason}")
        else:
            _see_there(sealed)
            return sealed
    steps = [str(sealed.manifest.step) for sealed in order.line]
    there = f"it has the steps {', '.join(steps[:_SHOWN])}" + (", …" if steps[_SHOWN:] else "") if steps else ""
    raise NoParent("; ".join(bad[:3]) or there or f"nothing is published in {parent.ckpt}")


def _see_there(source: Sealed) -> None:
    """Pruning takes all of it away, or its manifest first."""
    if not os.path.lexists(source.path / MANIFEST):
        raise Pruned(source.name)


def copied(run: RunFolder, source: Sealed, check: Check = never, disk: Disk = SYSTEM) -> Path:
    """A copy of it among what comes in to `run`; one that was broken off goes on. Torn where it is not what was sealed,
    Pruned where it is not there any more, OSError where the volume refuses. Blocking."""
    try:
        return _copied(run, source, check, disk)
    except (Torn, OSError):
        _see_there(source)
        raise


def _copied(run: RunFolder, source: Sealed, check: Check, disk: Disk) -> Path:
    receiving = Receiving(place_for(run, source.sha256), manifest_of(source.path), disk)
    with folder(source.path) as root:
        for entry in receiving.open():
            with receiving.file(entry, check) as coming:
                try:
                    fd = open_file(root, entry.path)
                except OSError as error:
                    raise torn_by(error) from None
                with os.fdopen(fd, "rb", buffering=0) as file:
                    file.seek(coming.size)
                    while chunk := file.read(_CHUNK):
                        check()
                        coming.take(chunk)
                coming.finish()
            receiving.settle(entry)
    return receiving.seal()


def adopt(
    run: RunFolder,
    received: Path,
    epoch: int,
    still_mine: Callable[[], bool],
    *,
    mode: str,
    wall: Callable[[], float],
    repo: str = "",
    tag: str = "",
    check: Check = never,
    disk: Disk = SYSTEM,
) -> tuple[Published, Manifest]:
    """Publish what came in as the first checkpoint of this run; with the manifest that it had. As `publish` raises.
    Blocking: every byte is read twice, as it came and as it is sealed."""
    made = verify(received, None, check)
    sealed = read(received)
    origin = Origin(made.run_id, made.name, made.step, made.epoch, sealed.sha256, repo, tag)
    staged = Staged(made.step, received, marks=made.marks, adapter=made.adapter)
    done = publish(
        run, staged, epoch, still_mine, mode=mode, trainer=made.trainer, world_size=made.world_size,
        healthy=made.healthy, metrics=made.metrics, forked_from=origin, wall=wall, check=check, disk=disk,
    )  # fmt: skip
    return done, made
