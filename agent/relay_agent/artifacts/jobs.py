"""What an agent asks of its child process at the artifact store: one job each, and its result."""

from __future__ import annotations

from msgspec import Struct

from relay_agent.sending.protocol import Step

STORE = "the artifact store"
"""What people call it."""


class Store(Struct, frozen=True):
    """Which commander, and as whom."""

    url: str
    secret: str  # the worker's
    run_id: str
    epoch: int
    token: str  # of the lease
    timeout: float = 60.0  # seconds that one request waits for the network
    finish: float = 600.0  # and one that has the commander read all of it

    def __repr__(self) -> str:
        return f"Store({self.url!r}, {self.run_id!r}, {self.epoch})"  # no tokens


class StoreJob(Struct, frozen=True, tag_field="job"):
    store: Store


class Archive(Struct, frozen=True):
    """What a checkpoint is as one file: the same wherever and whenever it is made."""

    sha256: str
    size: int


class Put(StoreJob, frozen=True, tag="put"):
    """Send a published checkpoint, and its manifest beside it, from where an earlier try ended. Result: `Kept`."""

    folder: str
    manifest: str  # its SHA-256
    final: bool
    note: str = ""  # a file on the pod's own disk that says which upload is under way


class Attach(StoreJob, frozen=True, tag="attach"):
    """Small files as they are. Result: `Attached`."""

    root: str
    patterns: list[str]
    most: int  # bytes of one
    count: int


class ListStored(StoreJob, frozen=True, tag="list"):
    """The run's checkpoints there, as their manifests have them. Result: `Offers`."""


class Pull(StoreJob, frozen=True, tag="pull"):
    """Bring one into `place`. Result: `Came`."""

    artifact: int
    archive: Archive
    name: str
    content: int  # bytes of its files
    files: int
    place: str


class Kept(Struct, frozen=True):
    artifact: int  # its number there
    size: int  # bytes that it has there
    sent: int  # bytes that went over the network
    stored: bool  # True: nothing had to be sent, it was there


class Attached(Struct, frozen=True):
    kept: list[str]
    trouble: list[str]  # why others are not; of each a line


class Offer(Struct, frozen=True):
    """`step.revision` is the number of the artifact, `step.tag` the name that people see."""

    step: Step
    archive: Archive
    files: int


class Offers(Struct, frozen=True):
    offers: list[Offer]


class Came(Struct, frozen=True):
    folder: str
    moved: int
