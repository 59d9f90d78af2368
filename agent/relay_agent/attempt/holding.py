"""What an attempt starts with: its lease, what the grant said, where its reports go; and the note that it leaves."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from relay_agent.config import Settings
from relay_agent.lease.lease import Lease
from relay_agent.pod.pod import VERSION, Note, Pod, start_of
from relay_agent.pod.takeover import Found
from relay_agent.process import say
from relay_agent.spool.spool import Spool
from relay_agent.trainer.command import Launch
from relay_agent.volume.volume import RunFolder
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

    def kept(self, lost: str) -> str:
        """Where what the commander has not acknowledged is; `lost`: why the lease is over, if it is."""
        folder = self.spool.folder
        if folder is None or not self.spool.on_disk:
            return "the volume has it all"
        if lost == "not_holder":
            return f"{folder} keeps it; under this token the commander takes none of it"
        return f"{folder} keeps it, and the next agent on this pod delivers it"

    def note(
        self,
        pod: Pod,
        settings: Settings,
        run: RunFolder,
        launch: Launch,
        incarnation: str,
        resume: str | None,
        resume_step: int,
        line: int,
        *,
        started: bool = True,
    ) -> Path | None:
        """Leave word of the attempt. Where a later agent finds it; None where the pod's disk does not take it."""
        lease, folder = self.lease, self.spool.folder
        if folder is None:
            return None
        try:
            note = Note(
                version=VERSION,
                run_id=lease.run_id,
                mode=settings.mode,
                volume=str(run.root.absolute()),
                epoch=lease.epoch,
                token=lease.token,
                lease_seconds=lease.seconds,
                config=self.config,
                incarnation=incarnation,
                digest=launch.digest,
                trainer=launch.name,
                guard=self.guard,
                grace=settings.stop_grace,
                resume=resume,
                resume_step=resume_step,
                pid=os.getpid(),
                start=start_of(os.getpid()),
                binding=pod.binding(folder),
                started=started,
                line=line,
            )
            pod.write(folder, note)
        except OSError as error:
            if started:
                say(f"{folder} cannot be written: {error.strerror or error}; no later agent can take this attempt over")
            return None
        return folder
