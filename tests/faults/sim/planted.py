"""Bugs planted on purpose, one at a time: the judges are worth what they catch of these."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import relay_agent.attempt.attempt
import relay_agent.checkpoints.prune
import relay_agent.lease.acquire
import relaytui.commander.services.leases
from relay_agent.attempt import beginning
from relay_agent.checkpoints.lost import Lost
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.resume import Resume
from relay_agent.checkpoints.staging import StagingWatch
from relay_agent.lease.lease import Lease
from relay_agent.spool.lane import Lane
from relaytui.commander.http.ws_agent import AgentSession
from relaytui.commander.model.lease import Renewal, decide_renew
from relaytui.commander.services.leases import Leases
from relaytui.commander.services.reports import StateReports
from relaytui.commander.store import attempts, runs
from tests.faults.sim.commander import SimWriter
from tests.faults.sim.loop import EPOCH_OF_WALL, PROCESS, HostClock
from tests.faults.sim.trainer import SimGuardian, SimSupervised

Replaced = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """`kinds`: of faults under which it shows; with none of them it may be no bug at all. `seen`: a world that showed
    it once, and is tried before the others."""

    what: str
    kinds: tuple[str, ...]
    replaced: tuple[Replaced, ...]
    plan: dict[str, Any]
    seen: int = 1


def _now() -> float:
    process = PROCESS.get()
    assert process is not None
    return process.host.boot()


def _ack_early(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: AgentSession, message: Any, size: Any) -> Any:
        self._outbox.ack(message.run_id, message.epoch, message.stream, message.first_seq + len(message.reports) - 1)
        return original(self, message, size)

    return take


def _renewed(lease: Lease, sent: float, seconds: float) -> Lease:
    return _RENEWED(lease, _now(), seconds)


_RENEWED = Lease.renewed


def _extend_half(original: Callable[..., Any]) -> Callable[..., Any]:
    def extend(tx: Any, claims: Any, boot_id: str, expires: float) -> Any:
        return original(tx, claims, boot_id, _now() + 0.3 * (expires - _now()))

    return extend


def _apply_again(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, tx: Any, run_id: str, epoch: int, hashed: bytes, first_seq: int, *more: Any) -> Any:
        with mock.patch.object(attempts, "last_seq", return_value=first_seq - 1):
            return original(self, tx, run_id, epoch, hashed, first_seq, *more)

    return apply


def _renew_any(run: Any, lease: Any, epoch: int, *, known: bool, right: bool) -> Any:
    return Renewal.EXTEND if right else decide_renew(run, lease, epoch, known=known, right=right)


def _by_name(original: Callable[..., Any]) -> Callable[..., Any]:
    def choose(run: Any, *args: Any, **given: Any) -> Any:
        found = original(run, *args, **given)
        if found is None:
            return None
        names = [path.name for path in run.ckpt.iterdir() if re.match("step_", path.name)]
        name = max(names, key=lambda name: name.replace("0", ""))  # as text, without the zeros
        path = run.ckpt / name
        return Resume(path, name, int(re.findall("[0-9]+", name)[0]), found.epoch)

    return choose


async def _unconfirmed(link: Any, lease: Lease, clock: Any) -> Lease:
    return lease


def _whole_at_once(self: StagingWatch, name: str, look: Any, unchanged: float, trainer_exited: int | None) -> bool:
    return not look.problem and not look.empty


def _gone_at_once(self: SimSupervised, within: float = math.inf) -> None:
    SimSupervised.__mro__[1].stop(self, within)  # type: ignore[attr-defined]
    for future, value in ((self.exited, 143), (self.gone, 0)):
        if not future.done():
            future.set_result(value)


def _count_anew(lane: Lane) -> None:
    _REWIND(lane)
    lane._ask, lane._fence = False, None


_REWIND = Lane.rewind

BUGS: dict[str, Bug] = {
    "ack before commit, state": Bug(
        "reports are acknowledged when they come in (and the disk is slow)", ("commander crash",),
        ((AgentSession, "_state", _ack_early(AgentSession._state)), (SimWriter, "delay", 1.0)),
        {"faulty_for": 40.0}, seen=8,
    ),
    "no dedupe": Bug(
        "the commander applies what it has already (and the disk is slow)", ("connection reset", "messages late"),
        ((StateReports, "_apply", _apply_again(StateReports._apply)), (SimWriter, "delay", 0.3)), {}, seen=4,
    ),
    "receive-time deadlines": Bug(
        "a renewal counts from when its answer came", ("messages late", "partition", "one-way partition"),
        ((Lease, "renewed", _renewed),), {"on_lease_loss": "stop", "pods": 3}, seen=2,
    ),
    "wall clock": Bug(
        "deadlines are on the wall clock", ("wall clock step",),
        ((HostClock, "boot", lambda self: self.wall() - EPOCH_OF_WALL),), {"pods": 3}, seen=5,
    ),
    "leases run out early": Bug(
        "the commander counts a third of the lease", ("partition", "agent SIGSTOP"),
        ((runs, "extend_many", _extend_half(runs.extend_many)),), {"pods": 3}, seen=2,
    ),
    "a restart shortens leases": Bug(
        "leases end with the commander", ("commander crash", "laptop reboots"),
        ((relaytui.commander.services.leases, "after_restart", lambda lease, now, boot_id, gap=0.0: (now, 0.0)),),
        {"pods": 3}, seen=6,
    ),
    "no hold-off after a restore": Bug(
        "a restored commander grants at once", ("restored backup",),
        ((Leases, "load_in", lambda self, tx, *, unproven=False: None),), {"pods": 3}, seen=4,
    ),
    "no fence on the volume": Bug(
        "who was replaced goes on publishing", ("partition", "force-acquire, pod gone"),
        ((Publisher, "_still_mine", lambda self: self._held()), (Lost, "_replaced", lambda self: False)),
        {"on_lease_loss": "continue", "pods": 3}, seen=7,
    ),
    "no epoch check at the commander": Bug(
        "renewals of any epoch are taken", ("partition", "force-acquire, pod gone"),
        ((relaytui.commander.services.leases, "decide_renew", _renew_any),),
        {"on_lease_loss": "continue", "pods": 3}, seen=2,
    ),
    "unconfirmed grants": Bug(
        "an answer that was long on its way starts a trainer", ("agent SIGSTOP", "messages late", "pod frozen"),
        ((relay_agent.lease.acquire, "_confirm", _unconfirmed),), {"on_lease_loss": "stop", "pods": 3}, seen=2,
    ),
    "prune to one": Bug(
        "only the newest checkpoint is kept", (),
        ((relay_agent.checkpoints.prune, "KEEP_AT_LEAST", 1),), {"keep": 1, "save_every": 3}, seen=2,
    ),
    "half a save is whole": Bug(
        "what lies in the staging folder is published as it is", (),
        ((StagingWatch, "_is_whole", _whole_at_once),), {"save_seconds": 0.5, "marks": True},
    ),
    "resume by name": Bug(
        "the newest checkpoint is the last one by name", ("agent SIGTERM", "pod lost"),
        ((beginning, "choose", _by_name(beginning.choose)),),
        {"total": 60, "step_seconds": 0.2, "save_every": 2, "keep": 6}, seen=9,
    ),
    "ended while it lives": Bug(
        "the end is told before the trainer is dead", ("agent SIGTERM", "drain"),
        ((SimSupervised, "stop", _gone_at_once),), {}, seen=3,
    ),
    "numbers are used again": Bug(
        "a new agent does not ask how far the commander is", ("agent crash", "pod disk full"),
        ((Lane, "rewind", _count_anew),), {"faulty_for": 40.0}, seen=4,
    ),
    "the guardian forgets deadlines": Bug(
        "nobody but the agent ends a lease", ("agent SIGSTOP",),
        ((SimGuardian, "deadline", property(lambda self: 0.0, lambda self, value: None)),),
        {"on_lease_loss": "stop", "pods": 3, "lease": 6.0, "faulty_for": 40.0}, seen=8,
    ),
}  # fmt: skip
