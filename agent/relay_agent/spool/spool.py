"""What an attempt has to tell, on the pod's own disk until the commander has it: two lanes, state before telemetry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relay_agent.checkpoints.disk import SYSTEM, Disk
from relay_agent.spool.lane import BOUND, Lane
from relay_agent.spool.segments import Folder
from relaytui.wire.status import Stream


class Spool:
    """Both lanes of one attempt. `folder`: None where the pod has no disk for it."""

    def __init__(
        self,
        run_id: str,
        epoch: int,
        token: str,
        folder: Path | None = None,
        *,
        bound: int = BOUND,
        trouble: Callable[[str], None] = lambda text: None,
        disk: Disk = SYSTEM,
    ) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.folder = folder
        self.state, self.telemetry = (
            Lane(stream, run_id, epoch, token, Folder(folder, stream, disk), bound, trouble)
            for stream in (Stream.STATE, Stream.TELEMETRY)
        )

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self.state, self.telemetry

    def lane(self, stream: Stream) -> Lane:
        return self.state if stream is Stream.STATE else self.telemetry

    def load(self) -> None:
        for lane in self.lanes:
            lane.load()

    def rewind(self) -> None:
        for lane in self.lanes:
            lane.rewind()

    @property
    def empty(self) -> bool:
        return all(lane.empty for lane in self.lanes)

    @property
    def on_disk(self) -> bool:
        return self.folder is not None and all(lane.on_disk for lane in self.lanes)

    @property
    def dirty(self) -> bool:
        """Whether there is something to `sync`."""
        return any(lane.dirty for lane in self.lanes)

    def sync(self) -> None:
        for lane in self.lanes:
            lane.sync()

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()

    def delete(self) -> None:
        for lane in self.lanes:
            lane.delete()
