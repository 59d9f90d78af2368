"""What an attempt starts with: its lease, what the grant said, and where its reports go."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from relay_agent.lease import Lease
from relay_agent.pod import Pod
from relay_agent.process import say
from relay_agent.spool import Spool
from relay_agent.takeover import Found
from relaytui.wire.messages import CheckpointRef, RunConfig


@dataclass(frozen=True)
class Holding:
    """`found`: what an agent that is gone left of it on this pod."""

    lease: Lease
    config: RunConfig
    newest: CheckpointRef | None
    spool: Spool
    guard: str
    found: Found | None = None
    same: bool = True
    """Whether that was configured as we are."""
    healthy: bool = False
    """Whether it goes back to the last checkpoint that was saved while the loss was well."""

    @classmethod
    def new(
        cls, lease: Lease, config: RunConfig, newest: CheckpointRef | None, pod: Pod, healthy: bool = False
    ) -> Holding:
        """Of a grant. Without a disk for it the spool is in memory, and nobody can take the attempt over."""
        folder: Path | None = None
        try:
            folder = pod.make_folder(lease.run_id, lease.epoch)
        except OSError as error:
            say(f"{pod.root} cannot be used: {error.strerror or error}; reports wait in memory only")
        spool = Spool(lease.run_id, lease.epoch, lease.token, folder, trouble=say)
        guard = pod.mark(lease.run_id, lease.epoch) + secrets.token_hex(8)
        return cls(lease, config, newest, spool, guard, healthy=healthy)
