"""The run's line of checkpoints: from the highest claim back through the bases. Order comes from here alone.

What a holder that was cut off published after its successor had claimed the run is off the line: an orphan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from relay_agent.checkpoints.disk import names
from relay_agent.checkpoints.manifest import MANIFEST, MAX_SEQ, NAME, Sealed, Torn, read
from relay_agent.checkpoints.unfinished import is_unfinished
from relay_agent.volume.claims import Claim
from relay_agent.volume.volume import RunFolder, claimed_epochs, read_claim


@dataclass(frozen=True)
class Line:
    line: tuple[Sealed, ...]  # newest first
    orphans: tuple[Sealed, ...]  # not on the line; later epochs first, newest first within one
    bad: tuple[tuple[str, Torn], ...]  # names without a manifest that reads, and why
    claims: Mapping[int, Claim | None]  # by epoch; None: its content was lost

    @property
    def bases(self) -> frozenset[str]:
        """Every claim's base."""
        return frozenset(claim.base for claim in self.claims.values() if claim and claim.base)

    @property
    def rested_on(self) -> frozenset[str]:
        """Names that claims or manifests have as their base, whether or not it is still there."""
        return self.bases | {sealed.manifest.base for sealed in self.line + self.orphans if sealed.manifest.base}

    def claimed_base(self, epoch: int) -> str | None:
        claim = self.claims.get(epoch)
        return claim.base if claim else None

    @property
    def next_seq(self) -> int:
        """Never one that would not be read back, whatever lies on the volume."""
        return min(MAX_SEQ, 1 + max((sealed.manifest.seq for sealed in self.line + self.orphans), default=0))


def marks_so_far(run: RunFolder, mode: str, trainer: str) -> bool | None:
    """Whether that trainer marks what is whole, by what was published of it; None: that tells nothing."""
    try:
        found = [sealed.manifest for sealed in published(run)[0]]
    except OSError:
        return None
    known = {one.marks for one in found if (one.mode, one.trainer) == (mode, trainer)} - {None}
    return True in known if known else None


def published(run: RunFolder) -> tuple[list[Sealed], list[tuple[str, Torn]]]:
    """All published checkpoints whose manifest reads, in no order, and the names of the others with the reason."""
    found: list[Sealed] = []
    bad: list[tuple[str, Torn]] = []
    for name in sorted(names(run.ckpt)):
        if not NAME.match(name):
            continue
        try:
            found.append(read(run.ckpt / name, run.run_id))
        except Torn as torn:
            if not is_unfinished(run.ckpt / name, MANIFEST, empty=not run.atomic):
                bad.append((name, torn))
    return found, bad


def survey(run: RunFolder, tip: int | None = None) -> Line:
    """Read every manifest and claim and put the checkpoints in order.

    `tip`: the epoch whose line is wanted, by default the highest one claimed. Nothing is hashed.
    """
    found, bad = published(run)
    claims = {epoch: read_claim(run, epoch) for epoch in claimed_epochs(run)}
    by_name = {sealed.name: sealed for sealed in found}
    by_epoch: dict[int, list[Sealed]] = defaultdict(list)
    for sealed in sorted(found, key=lambda sealed: (-sealed.manifest.seq, -sealed.manifest.step)):
        by_epoch[sealed.manifest.epoch].append(sealed)

    line: list[Sealed] = []
    epoch = tip if tip is not None else max(claims or by_epoch, default=0)
    upto: int | None = None  # seq of the checkpoint the epoch above resumed from
    while True:
        own = [sealed for sealed in by_epoch[epoch] if upto is None or sealed.manifest.seq <= upto]
        line += own
        claim = claims.get(epoch)
        base = claim.base if claim else own[-1].manifest.base if own else None
        # What an epoch resumed from was there before it: one of its own or a later epoch only has that name.
        if base is None or base not in by_name or by_name[base].manifest.epoch >= epoch:
            break
        epoch, upto = by_name[base].manifest.epoch, by_name[base].manifest.seq

    on_line = {sealed.name for sealed in line}
    orphans = sorted(
        (sealed for sealed in found if sealed.name not in on_line),
        key=lambda sealed: (-sealed.manifest.epoch, -sealed.manifest.seq),
    )
    return Line(tuple(line), tuple(orphans), tuple(bad), claims)
