"""What the agent asks of its child process at the Hub, and what comes of it; how they talk is `sending`'s."""

from __future__ import annotations

from msgspec import Struct

from relay_agent.sending.protocol import Step

# -- jobs: agent to child, the first line ------------------------------------------------------------------------------


class Where(Struct, frozen=True):
    """Which Hub, as whom, how patiently."""

    repo: str
    token: str
    endpoint: str = ""  # empty: the Hub itself
    private: bool = True
    timeout: float = 60.0  # seconds that one request waits for the network
    xet: bool = False
    secrets: dict[str, str] = {}  # what goes nowhere, and the word for each: see `secret_words`

    def __repr__(self) -> str:
        return f"Where({self.repo!r})"  # no token


class Job(Struct, frozen=True, tag_field="job"):
    where: Where


class Check(Job, frozen=True, tag="check"):
    """Make the repository if there is none, and see that it is private where it should be, ours to write, and this
    run's. Result: `Checked`. `make`: False only looks; `write`: False asks no token what it may."""

    run_id: str
    make: bool = True
    write: bool = True


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
    attempt: str = ""  # tells it from one of the same epoch that another commander granted


class Trim(Job, frozen=True, tag="trim"):
    """Take away all but the newest `keep` steps, and what nothing else needs. Result: `Trimmed`."""

    run_id: str
    epoch: int
    keep: int
    every: int = 0
    best: str = ""
    spare: list[str] = []  # tags
    attempt: str = ""


class Highest(Job, frozen=True, tag="highest"):
    """Which attempt has pushed there last. Nothing is made. Result: `Reached`."""

    run_id: str


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


# -- results -----------------------------------------------------------------------------------------------------------


class Checked(Struct, frozen=True):
    user: str
    made: bool
    private: bool
    holder: int = 0  # epoch of the attempt that pushed last
    attempt: str = ""
    doubt: str = ""  # why nobody can tell yet whether the token may write there


class Reached(Struct, frozen=True):
    epoch: int  # the highest; 0: none has pushed


class Sent(Struct, frozen=True):
    revision: str  # the commit that the tag is on
    tag: str
    sent: int  # bytes that went over the network
    stored: bool  # True: nothing had to be sent, it was there
    bared: bool = False  # it was to be private, and is public since
    remark: str = ""  # what beside the checkpoint stays behind, and why


class Trimmed(Struct, frozen=True):
    tags: list[str]
    freed: int  # bytes


class Listed(Struct, frozen=True):
    steps: list[Step]  # in no order


class Pulled(Struct, frozen=True):
    folder: str  # what it is in, named as it is, with its manifest; nobody has read it all again yet
    moved: int  # bytes that came over the network
