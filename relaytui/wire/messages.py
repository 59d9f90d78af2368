"""Messages on `/ws/agent`: JSON text frames, one message each, told apart by `type`.

The agent sends `hello` first (its token went in the upgrade's header), then acquires, renews and reports. Requests
carry a number of the agent's choosing and get exactly one answer with that number.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from relaytui.wire.bounds import Data, Devices, Protocol, ShortText, Time, Token
from relaytui.wire.ids import Count, Epoch, Id, Seq
from relaytui.wire.reports import AnyReport
from relaytui.wire.status import OrderKind, Stream

PROTOCOL = 1
REPLACED = 4001
"""Close code of a connection whose incarnation has connected again."""
LEAVES = 4002
"""Close code of an agent that ends: nobody has to miss it."""
MAX_FRAME = 1 << 20
"""Bytes in one frame, at most (design §6.5)."""
MAX_REPORTS = 1_000
"""Reports in one frame, at most."""


class Message(Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


class Capability(Struct, frozen=True, omit_defaults=True):
    gpu: ShortText = "cpu"
    gpus: Devices = 0
    cpus: Devices = 0
    memory: Count = 0  # bytes


class RunConfig(Struct, frozen=True):
    """What a grant tells the agent about its run; the original commander's fields."""

    l1_root: str
    run_id: Id
    ckpt_interval_sec: int
    ckpt_keep_last_n: int
    hf_sync_interval_sec: int
    hf_repo: str
    hf_push_on_improve: bool


class CheckpointRef(Struct, frozen=True, omit_defaults=True):
    """The newest checkpoint the commander knows of in the run's line, and where there are copies of it."""

    name: Id
    step: Count
    epoch: Epoch
    manifest: str
    stored: bool = False  # whole in the commander's artifact store
    hub: ShortText = ""  # its tag on the Hub


# -- agent to commander ------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    protocol: Protocol
    worker: Id
    incarnation: Id
    version: ShortText = ""
    host: ShortText = ""
    capability: Capability = Capability()
    labels: Data = {}
    now: Time | None = None  # on the agent's clock: how far that is off, the times in its reports are


class Acquire(Message, frozen=True, tag="acquire"):
    """Idempotent per (run, incarnation, request_id): asked again, the same grant is answered.

    `highest_epoch` is the highest claim found on the volume; the grant is above it.
    """

    request: Count
    request_id: Id
    run_id: Id
    mode: Id
    highest_epoch: Epoch = 0
    config_hash: ShortText = ""


class Renew(Message, frozen=True, tag="renew"):
    request: Count
    run_id: Id
    epoch: Epoch
    token: Token


class Register(Message, frozen=True, tag="register"):
    """A holder whose lease this commander does not know, because its history was lost or is an older one. Answered
    like a renewal: known from then on with the same epoch and token, or refused where somebody else has the run with
    a higher epoch, or with a lower one and the token proves nothing.
    """

    request: Count
    run_id: Id
    epoch: Annotated[int, Meta(ge=1, le=2**53)]
    token: Token
    mode: Id
    config_hash: ShortText = ""


class Reports(Message, frozen=True, tag="reports"):
    """Reports `first_seq`, `first_seq + 1`, … of one stream of one attempt."""

    run_id: Id
    epoch: Epoch
    token: Token
    stream: Stream
    first_seq: Seq
    reports: Annotated[list[AnyReport], Meta(min_length=1, max_length=MAX_REPORTS)]


class Skip(Message, frozen=True, tag="skip"):
    """Reports `first_seq` to `last_seq` of a stream will not come: lost on the pod, or lost here after they were
    acknowledged. The commander counts them, says so in an event, and goes on behind them.
    """

    run_id: Id
    epoch: Epoch
    token: Token
    stream: Stream
    first_seq: Seq
    last_seq: Count  # below `first_seq`: nothing is missing, an acknowledgement of what there is is asked for
    why: ShortText = ""


class OrderAck(Message, frozen=True, tag="order_ack"):
    """The order reached the agent and is being carried out (or not). `message`: how, or why not."""

    order_id: Count
    accepted: bool = True
    message: ShortText = ""


AgentMessage = Hello | Acquire | Renew | Register | Reports | Skip | OrderAck


# -- commander to agent ------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    protocol: int
    commander: str  # id of this commander's history; another one means its state was lost or replaced
    heartbeat: float  # seconds between pings; a peer silent for 1.5 of them is dead
    now: float
    namesake: str = ""
    """Where another agent that is connected and has this one's name runs. Comes again when one turns up later."""


class Granted(Message, frozen=True, tag="granted"):
    request: Count
    run_id: Id
    epoch: Epoch
    token: Token
    lease_seconds: float
    config: RunConfig
    newest: CheckpointRef | None = None


class Denied(Message, frozen=True, tag="denied"):
    """`code`: held, revoked (its holder is still stopping), ended, mode (the run has another mode)."""

    request: Count
    run_id: Id
    code: str
    reason: str
    retry_after: float  # seconds; how long it may take at most
    final: bool = False  # asking again will not help


class Renewed(Message, frozen=True, tag="renewed"):
    request: Count
    run_id: Id
    epoch: Epoch
    lease_seconds: float


class Refused(Message, frozen=True, tag="refused"):
    """A renewal or a frame of reports that changed nothing.

    `code`: superseded (a higher epoch was granted), released, not_holder (wrong token), unknown (no such lease here),
    gap (the next sequence number expected is `expected`).
    """

    run_id: Id
    epoch: Epoch
    code: str
    message: str
    request: Count = 0  # 0: not an answer to a numbered request
    stream: Stream | None = None
    expected: Count = 0


class Ack(Message, frozen=True, tag="ack"):
    """Everything of this stream up to and with `seq` is committed."""

    run_id: Id
    epoch: Epoch
    stream: Stream
    seq: Count


class Order(Message, frozen=True, tag="order"):
    """Sent again after every reconnect until it is acknowledged; drain and cancel until the attempt has ended, so that
    they outlive an agent that had acknowledged them."""

    order_id: Count
    run_id: Id
    epoch: Epoch
    kind: OrderKind
    by: str = ""
    why: str = ""


class Watched(Message, frozen=True, tag="watched"):
    """Whether anybody follows, as they come, the lines of the run that this agent trains. In each session nobody does
    until this says so: lines may gather for a moment then."""

    on: bool


class Problem(Message, frozen=True, tag="problem"):
    """Why the commander is about to hang up."""

    code: str
    message: str
    hint: str = ""


CommanderMessage = Welcome | Granted | Denied | Renewed | Refused | Ack | Order | Watched | Problem
