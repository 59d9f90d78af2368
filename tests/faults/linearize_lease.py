"""The lease of one run as its callers may rely on it, for the checker of histories: what each call may answer in each
state, and what it leaves. Written from the rules, not from the code: no SQL, no statuses but what shows in answers.

Expiry is nobody's call. It may have happened before a call where at least L has passed between the moment the last
renewal was sent (it cannot have been counted from earlier) and the moment that call was answered (it cannot have been
decided later). Nothing else takes a run from its holder but its own word and an operator's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from linearize import Call

FREE, HELD, REVOKED, EXPIRED = "free", "held", "revoked", "expired"
HELD_AFTER = 5
FINAL = frozenset({"completed", "failed", "cancelled"})


class Lease(NamedTuple):
    """`since`: the earliest moment from which the current lease can be counted. `token`: "" where no answer told it.
    `called_off`: its holder was told to cancel, so that whatever ends this lease ends the run. `floor`: of epochs,
    since a restore. `silent`: leases in a row that ran out, or fewer; after `HELD_AFTER` the run is held."""

    epoch: int = 0  # the highest granted or burned
    ended: bool = False
    state: str = FREE
    holder: str = ""
    request: str = ""
    held_epoch: int = 0
    token: str = ""
    since: float = 0.0
    called_off: bool = False
    floor: int = 0
    silent: int = 0

    @property
    def newest(self) -> bool:
        return self.held_epoch == self.epoch

    @property
    def next_epoch(self) -> int:
        return max(self.epoch, self.floor) + 1

    def free(self) -> Lease:
        return self._replace(state=FREE, holder="", request="", token="", since=0.0, called_off=False)

    def expired(self) -> Lease:
        silent = min(HELD_AFTER, self.silent + 1)
        if self.state == HELD and not self.called_off:
            return self._replace(state=EXPIRED, silent=silent)
        return self.free()._replace(ended=self.ended or self.called_off, silent=silent)

    def cancelled(self) -> Lease:
        """While nobody holds it, or after a restore, above whatever may have been granted."""
        return self.free()._replace(ended=True, epoch=max(self.epoch, self.floor))

    def extended(self, call: Call) -> Lease:
        if self.state == HELD and call.at <= self.since:
            return self
        epoch, ended, _, holder, request, held_epoch, token, since, *rest = self  # `_replace` takes four times as long
        return Lease(epoch, ended, HELD, holder, request, held_epoch, token, max(since, call.at), *rest)


After = Lease | None
Answer = tuple[object, ...] | None
"""None: any, as the call is open."""
_ORDERS = ("force", "drain", "cancel", "requeue")


class LeaseModel:
    """`step` for the history of one run whose leases last `length` seconds.

    An epoch is made once. So what was never answered cannot have made one that an answer says another call made, which
    spares the search most of what unanswered calls might have done.
    """

    def __init__(self, length: float, calls: Iterable[Call]) -> None:
        self._length = length
        self._maker: dict[int, tuple[str, str]] = {}
        for call in calls:
            if call.answer is None or call.answer[0] == "refused":
                continue
            if call.what == "acquire":
                self._maker[call.answer[1]] = call.said
            elif call.what == "force":
                self._maker[call.answer[1]] = ("", "")
            elif call.what == "register":
                self._maker[call.said[1]] = (call.said[0], "register")

    def step(self, lease: Lease, call: Call) -> Iterator[Lease]:
        after = _RULES[call.what](lease, call, call.answer)
        if after is not None and not (call.answer is None and (after == lease or not self._can_be(lease, after))):
            yield after
        if lease.state in (HELD, REVOKED) and call.until >= lease.since + self._length:
            out = lease.expired()
            late = _RULES[call.what](out, call, call.answer)
            # That it expired while this call did not show it can be said as well by the next one that does.
            if late is None or late == after or (late == out and after == lease):
                return
            if call.answer is not None or self._can_be(lease, late):
                yield late

    def era(self, lease: Lease) -> int:
        return lease.epoch

    def last_era(self, call: Call) -> float:
        if call.answer is None:
            return math.inf
        if call.answer[0] == "refused":
            return _last_era_refused(call.what, call.said, str(call.answer[1]))
        match call.what:
            case "acquire" | "force":
                return float(call.answer[1])
            case "register":
                return float(call.said[1])
            case "end":
                return math.inf  # of any epoch that was
        return float(call.said[0])

    def _can_be(self, before: Lease, after: Lease) -> bool:
        if after.epoch == before.epoch:
            return True
        made = (after.holder, after.request) if after.newest else ("", "")
        return self._maker.get(after.epoch, made) == made


def _refused(answer: Answer, *codes: str) -> bool:
    """Whether the answer can be a refusal with one of these codes; with none named, any."""
    return answer is None or (answer[0] == "refused" and (not codes or answer[1] in codes))


def _last_era_refused(what: str, said: tuple[object, ...], code: str) -> float:
    """A renewal of an earlier epoch and an order on one are told so before anything else."""
    earlier = {"renew": ("superseded", "not_holder")} | dict.fromkeys(_ORDERS, ("epoch_changed",))
    return float(str(said[0])) if what in earlier and code not in earlier[what] else math.inf


def _acquire(lease: Lease, call: Call, answer: Answer) -> After:
    """said: incarnation, request id. answer: granted epoch token | refused code."""
    holder, request = call.said
    mine = lease.holder == holder
    if lease.ended:
        return lease if _refused(answer, "ended") else None
    if lease.state == REVOKED:
        return lease if _refused(answer, "revoked") else None
    if lease.state != FREE and mine and lease.request == request and lease.newest:
        if answer is None:
            return lease.extended(call)
        if answer[0] != "granted" or answer[1] != lease.epoch or lease.token not in ("", answer[2]):
            return None
        return lease.extended(call)._replace(token=str(answer[2]))
    if lease.state == HELD and not mine:
        return lease if _refused(answer, "held") else None
    if lease.state == HELD and lease.called_off:
        return lease.expired() if _refused(answer, "ended") else None
    if lease.floor and answer == ("refused", "recovering"):
        return lease
    if lease.state == EXPIRED and lease.called_off:
        return lease.cancelled() if _refused(answer, "ended") else None
    if lease.silent == HELD_AFTER and answer == ("refused", "ended"):
        return lease.free()._replace(ended=True)
    epoch = lease.next_epoch
    if answer is not None and (answer[0] != "granted" or answer[1] != epoch):
        return None
    token = "" if answer is None else str(answer[2])
    return Lease(epoch, False, HELD, holder, request, epoch, token, call.at, floor=lease.floor, silent=lease.silent)


def _renew(lease: Lease, call: Call, answer: Answer) -> After:
    """said: epoch, token. answer: ok | refused code."""
    epoch, token = call.said
    if epoch < lease.epoch:
        return lease if _refused(answer, "superseded", "not_holder") else None
    if epoch > lease.epoch:
        return lease if _refused(answer, "unknown") else None
    if not lease.newest or lease.token not in ("", token):
        return lease if _refused(answer, "not_holder", "unknown") else None
    if lease.state not in (HELD, EXPIRED) or lease.ended:
        return lease if _refused(answer, "released", "not_holder", "unknown") else None
    if answer is not None and answer[0] != "ok":
        return None
    if answer is None and lease.state == HELD:
        return lease  # that an unanswered one extended it only makes an expiry harder to explain
    return lease.extended(call)


def _register(lease: Lease, call: Call, answer: Answer) -> After:
    """said: incarnation, epoch, token, whether that is a true one. answer: ok | refused code.

    What was granted for sure, and after all that is known, counts more than what is known.
    """
    holder, epoch, token, true = call.said
    if lease.newest and epoch == lease.epoch and lease.token == token:
        return _renew(lease, Call("renew", (epoch, token), call.called, call.at), answer)
    if epoch <= lease.epoch or ((lease.ended or lease.state in (HELD, REVOKED)) and not true):
        return lease if _refused(answer) else None
    if not true and answer is not None and _refused(answer, "recovering", "unknown", "not_holder"):
        return lease  # its key could have proven it
    if lease.state == HELD and lease.called_off:
        return lease.expired() if _refused(answer, "released") else None
    if lease.state == EXPIRED and lease.called_off:
        return lease.cancelled() if _refused(answer, "released") else None
    if answer is not None and answer[0] != "ok":
        return None
    return Lease(epoch, False, HELD, holder, "register", epoch, token, call.at, floor=lease.floor, silent=lease.silent)


def _end(lease: Lease, call: Call, answer: Answer) -> After:
    """The report that an attempt is over. said: epoch, token, outcome. answer: ok | refused code."""
    epoch, token, outcome = call.said
    if lease.floor and epoch != lease.held_epoch and answer == ("refused", "unknown"):
        return lease  # granted after the backup
    if epoch > lease.epoch or (epoch == lease.held_epoch and lease.token not in ("", token)):
        return lease if _refused(answer, "unknown", "not_holder") else None
    if answer is not None and answer[0] != "ok":
        return None
    if epoch != lease.held_epoch:
        return lease
    if lease.state == REVOKED:
        return lease.free()
    if lease.state in (HELD, EXPIRED) and lease.newest:
        return lease.free()._replace(ended=outcome in FINAL or lease.called_off, silent=0)
    return lease


def _force(lease: Lease, call: Call, answer: Answer) -> After:
    """said: expected epoch, whether its pod is gone. answer: ok new-epoch | refused code."""
    expected, pod_gone = call.said
    if (refusal := _as_seen(lease, expected)) is not None:
        return lease if _refused(answer, refusal) else None
    if lease.ended:
        return lease if _refused(answer, "ended") else None
    if answer is not None and answer != ("ok", lease.next_epoch):
        return None
    waits = lease.state in (HELD, REVOKED) and not pod_gone
    after = lease._replace(state=REVOKED, called_off=False) if waits else lease.free()
    return after._replace(epoch=lease.next_epoch, ended=lease.called_off)


def _drain(lease: Lease, call: Call, answer: Answer) -> After:
    """said: expected epoch. answer: ok | refused code."""
    if (refusal := _as_seen(lease, call.said[0])) is not None:
        return lease if _refused(answer, refusal) else None
    if lease.state != HELD:
        return lease if _refused(answer, "not_held") else None
    if lease.called_off and answer == ("refused", "not_now"):
        return lease
    return lease if answer is None or answer[0] == "ok" else None


def _cancel(lease: Lease, call: Call, answer: Answer) -> After:
    """said: expected epoch. answer: ok | refused code."""
    if (refusal := _as_seen(lease, call.said[0])) is not None:
        return lease if _refused(answer, refusal) else None
    if lease.ended:
        return lease if _refused(answer, "not_held") else None
    if answer is not None and answer[0] != "ok":
        return None
    if lease.state == HELD:
        return lease._replace(called_off=True)
    after = lease if lease.state == REVOKED else lease.free()
    return after._replace(ended=True, epoch=max(lease.epoch, lease.floor))


def _requeue(lease: Lease, call: Call, answer: Answer) -> After:
    """said: expected epoch. answer: ok | refused code."""
    if (refusal := _as_seen(lease, call.said[0])) is not None:
        return lease if _refused(answer, refusal) else None
    if not lease.ended:
        return lease if _refused(answer, "not_ended") else None
    if lease.state == REVOKED:
        return lease if _refused(answer, "held") else None
    return lease._replace(ended=False, silent=0) if answer is None or answer[0] == "ok" else None


def _as_seen(lease: Lease, expected: int) -> str | None:
    if lease.epoch == 0:
        return "unknown_run"
    return "epoch_changed" if expected != lease.epoch else None


_RULES: dict[str, Callable[[Lease, Call, Answer], After]] = {
    "acquire": _acquire,
    "renew": _renew,
    "register": _register,
    "end": _end,
    "force": _force,
    "drain": _drain,
    "cancel": _cancel,
    "requeue": _requeue,
}
