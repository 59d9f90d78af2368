"""What the agent and a child process of its say to each other: one job in, lines of JSON out.

The job goes in by stdin, with what is secret in it: never by argv or the environment, which others can read. A question
of the child's is answered by one line on stdin; the end of stdin is the end of the agent, and of the child.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from relay_agent.secret_words import scrub

if TYPE_CHECKING:
    from relay_agent.checkpoints.manifest import Manifest

MAX_LINE = 16 << 20
"""Bytes of one message, at most."""


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
    the other side says so. `unknown`: whether it was done has to be looked up, which the next try does."""

    code: str
    words: str
    kind: Kind
    wait: float | None = None


AnyMessage = Phase | Progress | May | Result | Failed


# -- agent to child, after a question ----------------------------------------------------------------------------------


class Go(Struct, frozen=True):
    """The answer holds for so many seconds from when the question was asked; 0 is no."""

    seconds: float


class Untold(Exception):  # noqa: N818 - it says what happened
    """What cannot be told, and why: that comes again with every try, and is a failure for good."""


def line(message: Struct) -> bytes:
    """Untold."""
    data = encoded(message) + b"\n"
    if len(data) > MAX_LINE:
        raise Untold(f"what is to be told has {len(data):,} bytes, and {MAX_LINE:,} at most are heard")
    return data


def encoded(what: Any) -> bytes:
    """Untold."""
    try:
        return msgspec.json.encode(what)
    except UnicodeEncodeError as error:  # of a path, or of what names one
        raise Untold(f"a name in what is to be told is no UTF-8: {scrub(error.object)[:200]!a}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Untold(f"what is to be told cannot be: {error}") from None


# -- what both sides know of a checkpoint elsewhere --------------------------------------------------------------------


class Step(Struct, frozen=True):
    """A checkpoint that lies elsewhere. `trouble`: why it is none to go on from; what follows it says nothing then."""

    tag: str  # what people call it there
    revision: str  # where it is found there
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

    @classmethod
    def of(cls, tag: str, revision: str, manifest: Manifest, sha256: str) -> Step:
        return cls(
            tag, revision, "", manifest.run_id, manifest.name, manifest.step, manifest.epoch, manifest.seq,
            manifest.healthy, manifest.maker, manifest.total_bytes, sha256,
        )  # fmt: skip
