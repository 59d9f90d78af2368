"""What the agent and its child process at the Hub say to each other: one job in, lines of JSON out.

The job goes in by stdin, with the token: never by argv or the environment, which others can read. A question of the
child's is answered by one line on stdin; the end of stdin is the end of the agent, and of the child.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

MAX_LINE = 16 << 20
"""Bytes of one message, at most."""

# -- jobs: agent to child, the first line ------------------------------------------------------------------------------


class Where(Struct, frozen=True):
    """Which Hub, as whom, how patiently."""

    repo: str
    token: str
    endpoint: str = ""  # empty: the Hub itself
    private: bool = True
    timeout: float = 60.0  # seconds that one request waits for the network
    xet: bool = False

    def __repr__(self) -> str:
        return f"Where({self.repo!r})"  # no token


class Job(Struct, frozen=True, tag_field="job"):
    where: Where


class Check(Job, frozen=True, tag="check"):
    """Make the repository if there is none, and see that it is private where it should be, ours to write, and this
    run's. Result: `Checked`. `make`: False only looks."""

    run_id: str
    make: bool = True


class Beside(Struct, frozen=True):
    """A file that goes beside the checkpoint: its last whole lines, as many as go into `tail` bytes, or all of it where
    `tail` is 0; or `text`, where there is no `file`. One that is not there, or no plain file, is left out."""

    path: str  # in the repository
    file: str = ""
    text: str = ""
    tail: int = 0


class Send(Job, frozen=True, tag="send"):
    """One checkpoint: its files, one commit, its tag. Result: `Sent`."""

    run_id: str
    epoch: int  # the holder's
    folder: str  # of the published checkpoint
    files: list[str]  # of it, in the order of its manifest, which is not among them
    beside: list[Beside]
    card: str  # what stands between Relay's markers in the model card
    card_fields: dict[str, str | list[str]]
    message: str
    threads: int = 3


class Trim(Job, frozen=True, tag="trim"):
    """Take away all but the newest `keep` steps, and what nothing else needs. Result: `Trimmed`."""

    run_id: str
    epoch: int
    keep: int
    every: int = 0
    best: str = ""
    spare: list[str] = []  # tags


class ListSteps(Job, frozen=True, tag="list"):
    """Which checkpoints are there, by their tags. Nothing is made. Result: `Listed`."""

    threads: int = 4


class Pull(Job, frozen=True, tag="pull"):
    """Bring the files of one checkpoint into a folder of ours, which may hold a part of them already. Result: `Pulled`.

    `not_whole` where what is there is none, or only some of its files; `no_room` where the volume has none for it."""

    run_id: str  # whose it must be
    revision: str  # the commit that its tag is on
    manifest: str  # SHA-256
    place: str
    threads: int = 4


AnyJob = Check | Send | Trim | ListSteps | Pull


# -- results -----------------------------------------------------------------------------------------------------------


class Checked(Struct, frozen=True):
    user: str
    made: bool
    private: bool


class Sent(Struct, frozen=True):
    revision: str  # the commit that the tag is on
    tag: str
    sent: int  # bytes that went over the network
    stored: bool  # True: nothing had to be sent, it was there


class Trimmed(Struct, frozen=True):
    tags: list[str]
    freed: int  # bytes


class Step(Struct, frozen=True):
    """One tag of Relay's. `trouble`: why it is none to go on from; what follows it says nothing then."""

    tag: str
    revision: str  # the commit
    trouble: str = ""
    run_id: str = ""
    name: str = ""  # of the checkpoint, as its manifest says; so is what follows
    step: int = 0
    epoch: int = 0
    seq: int = 0
    healthy: bool = True
    maker: int = 0  # the epoch whose trainer saved it
    bytes: int = 0
    manifest: str = ""  # its SHA-256


class Listed(Struct, frozen=True):
    steps: list[Step]  # in no order


class Pulled(Struct, frozen=True):
    folder: str  # what it is in, named as it is, with its manifest; nobody has read it all again yet
    moved: int  # bytes that came over the network


# -- child to agent ----------------------------------------------------------------------------------------------------


class Message(Struct, frozen=True, tag_field="type"):
    pass


class Phase(Message, frozen=True, tag="phase"):
    name: str


class Progress(Message, frozen=True, tag="progress"):
    """Bytes. What is stored already counts as done."""

    done: int
    total: int


class May(Message, frozen=True, tag="may"):
    """Asked right before what cannot be taken back; answered by `Go`."""

    what: str


class Result(Message, frozen=True, tag="result"):
    data: msgspec.Raw


Kind = Literal["permanent", "transient", "unknown"]


class Failed(Message, frozen=True, tag="failed"):
    """`permanent`: it comes again until somebody sees to it. `transient`: worth another try, after `wait` seconds where
    the Hub says so. `unknown`: whether it was done has to be looked up, which the next try does."""

    code: str
    words: str
    kind: Kind
    wait: float | None = None


AnyMessage = Phase | Progress | May | Result | Failed


# -- agent to child, after a question ----------------------------------------------------------------------------------


class Go(Struct, frozen=True):
    """The answer holds for so many seconds from when the question was asked; 0 is no."""

    seconds: float


def line(message: Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"
