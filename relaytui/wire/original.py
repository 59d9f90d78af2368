"""The original commander's calls, kept as they were so that its workers run unchanged; new fields only added."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from relaytui.wire.bounds import ShortText, Token
from relaytui.wire.ids import Count, Id
from relaytui.wire.messages import RunConfig

SECRET_HEADER = "X-Relay-Secret"  # noqa: S105 - a header's name
JobStatus = Literal["RUNNING", "PREEMPTED", "FAILED", "COMPLETED"]


class AcquireBody(Struct, frozen=True):
    worker_id: Id
    run_id: Id
    cap: dict[str, Any] | None = None
    force: bool = False
    mode: Id = "sft"  # added: the original's workers do not say


class AcquireAnswer(Struct, frozen=True, omit_defaults=True):
    status: Literal["granted", "denied"]
    lease_token: str | None = None
    lease_expires_in_sec: int | None = None
    config: RunConfig | None = None
    reason: str | None = None
    epoch: int | None = None  # added


class RenewBody(Struct, frozen=True):
    lease_token: Token
    worker_id: Id


class HubState(Struct, frozen=True):
    last_synced: ShortText | None = None
    repo: ShortText | None = None
    revision: ShortText | None = None


class ReportBody(Struct, frozen=True):
    lease_token: Token
    run_id: Id
    status: JobStatus
    step: Count = 0
    latest_ckpt: Annotated[str, Meta(max_length=512)] | None = None
    hf: HubState | None = None
    msg: ShortText | None = None
