"""Which steps stay on the Hub. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from relay_agent.checkpoints.manifest import Manifest, Sealed
from relay_agent.checkpoints.retention import NEWEST_ONLY, Retention
from relay_agent.hub.layout import order


def doomed(
    manifests: Mapping[str, Manifest], keep: int, retention: Retention = NEWEST_ONLY, spare: Collection[str] = ()
) -> list[str]:
    """Tags beyond the newest `keep`, oldest first; none where `keep` is 0. Spared besides: what `retention` says, the
    newest that was saved while the loss was well, and `spare`."""
    if keep < 1:
        return []
    newest_first = sorted(manifests, key=lambda tag: order(manifests[tag]), reverse=True)
    line = [Sealed(manifests[tag], "", Path(tag)) for tag in newest_first]
    names = {*retention.spared(line), *[sealed.name for sealed in line if sealed.manifest.healthy][:1]}
    kept = {*newest_first[:keep], *spare}
    kept |= {tag for tag in newest_first if manifests[tag].name in names}
    return [tag for tag in reversed(newest_first) if tag not in kept]
