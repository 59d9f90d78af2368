"""What goes wrong, scripted: which request it strikes, at which moment, and what happens there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

__all__ = ["QUOTA", "STORAGE_PATTERN", "Fault", "FaultPlan", "Faults"]

QUOTA = "Private repository storage limit reached, please upgrade your plan to increase your private storage limit."
STORAGE_PATTERN = (
    "Storage patterns tripped our internal systems! Please contact us at website@huggingface.co so we can verify your "
    "account and unlock more storage for your use-case."
)
BEFORE, READ, DONE = "before", "read", "done"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong with a request, as plain data.

    `route` names it (`Hub.ROUTES`; "*" is any), `match` is a part of its path. It strikes the requests after the first
    `skip`, `times` of them (None: for ever); of several that could, the one that was scripted first.

    `at` is the moment: "before" any of its body is read; when its body was "read" (or `after` bytes of it), and nothing
    done; when it is "done", and the answer is not sent (or only `after` bytes of its body).

    What happens there: `delay` seconds pass; somebody else commits the file `move` to the branch `main`; then it is
    answered with `status` (`error` in words, `headers`, X-Error-Code `code`), or never (`hang`), or the connection is
    `cut`. With none of the three it goes on. `rate`: its body, or its answer's, moves at so many bytes per second.
    """

    route: str
    at: str = BEFORE
    status: int | None = None
    error: str = "the hub's test says no"
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    cut: bool = False
    delay: float = 0.0
    rate: int | None = None
    after: int | None = None
    move: str | None = None
    times: int | None = 1
    skip: int = 0
    match: str = ""

    def __post_init__(self) -> None:
        if self.at not in (BEFORE, READ, DONE):
            raise ValueError(f"a fault strikes {BEFORE}, {READ} or {DONE}, not {self.at!r}")
        if self.hang + self.cut + (self.status is not None) > 1:
            raise ValueError("a fault ends a request in one way: status, hang or cut")
        if (self.at == READ or self.after is not None) and not self.ends:
            raise ValueError("a fault that strikes there ends the request: status, hang or cut")
        if self.after is not None and (self.at == BEFORE or (self.at == DONE and self.status is not None)):
            raise ValueError("`after` is of a body that was read, or of an answer that breaks off")

    @property
    def ends(self) -> bool:
        """Whether the request gets no answer of its own."""
        return self.hang or self.cut or self.status is not None

    # -- the usual ones ----------------------------------------------------------------------------------------------

    @classmethod
    def says(cls, route: str, status: int, error: str = "the hub's test says no", **more: Any) -> Fault:
        return cls(route, status=status, error=error, **more)

    @classmethod
    def never(cls, route: str, **more: Any) -> Fault:
        """Accepted, never answered."""
        return cls(route, hang=True, **more)

    @classmethod
    def cuts(cls, route: str, at: str = BEFORE, **more: Any) -> Fault:
        return cls(route, at=at, cut=True, **more)

    @classmethod
    def lost_reply(cls, route: str = "commit", **more: Any) -> Fault:
        """It is done; the connection breaks before anybody hears of it."""
        return cls(route, at=DONE, cut=True, **more)

    @classmethod
    def late(cls, route: str = "commit", status: int = 504, **more: Any) -> Fault:
        """It is done, and the proxy before the hub had given up by then."""
        return cls(route, at=DONE, status=status, error="Gateway Time-out", **more)

    @classmethod
    def slow(cls, route: str, rate: int, **more: Any) -> Fault:
        return cls(route, rate=rate, **more)

    @classmethod
    def limited(cls, route: str, seconds: int, kind: str = "api", **more: Any) -> Fault:
        """429 with the headers of a spent window of five minutes."""
        headers = {
            "RateLimit": f'"{kind}";r=0;t={seconds}',
            "RateLimit-Policy": f'"fixed window";"{kind}";q=1000;w=300',
        }
        return cls(route, status=429, error="We had to rate limit you", headers=headers, **more)

    @classmethod
    def retry_after(cls, route: str, seconds: int, status: int = 429, **more: Any) -> Fault:
        return cls(route, status=status, error="Too many requests", headers={"Retry-After": str(seconds)}, **more)

    @classmethod
    def quota(cls, route: str = "lfs-batch", times: int | None = None, **more: Any) -> Fault:
        return cls(route, status=403, error=QUOTA, times=times, **more)

    @classmethod
    def storage_pattern(cls, route: str = "lfs-batch", times: int | None = None, **more: Any) -> Fault:
        return cls(route, status=403, error=STORAGE_PATTERN, times=times, **more)

    @classmethod
    def moved(cls, route: str, at: str = BEFORE, path: str = "theirs.txt", **more: Any) -> Fault:
        """Somebody else's commit comes before (or just after) that request."""
        return cls(route, at=at, move=path, **more)

    # -- over the control route --------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Fault:
        known = {each.name for each in fields(cls)}
        if strange := set(plain) - known:
            raise ValueError(f"a fault has no {', '.join(sorted(strange))}")
        return cls(**plain)


TRANSIENT = (
    Fault.says("*", 503),
    Fault.says("*", 500),
    Fault.cuts("*", BEFORE),
    Fault.cuts("*", READ),
    Fault.cuts("*", READ, after=1000),
    Fault.lost_reply("*"),
    Fault.late("*"),
    Fault("*", delay=0.02),
    Fault.retry_after("*", 0),
)
"""What passes by itself; a plan draws of these."""


@dataclass(frozen=True)
class FaultPlan:
    """Faults by chance, the same ones for the same seed: the n-th request of a route meets the same fate however the
    requests of different routes come between each other."""

    seed: int
    share: float = 0.1
    kinds: tuple[Fault, ...] = TRANSIENT
    routes: tuple[str, ...] = ()
    """Those it strikes; none named: all."""
    in_a_row: int = 2
    """How often at most one route is struck without a request that gets through."""

    def fate(self, route: str, number: int) -> Fault | None:
        if self.routes and route not in self.routes:
            return None
        struck = [self._drawn(route, at) for at in range(max(0, number - self.in_a_row), number + 1)]
        if struck[-1] is None or (number >= self.in_a_row and None not in struck):
            return None
        return struck[-1]

    def _drawn(self, route: str, number: int) -> Fault | None:
        chance = random.Random(f"{self.seed}/{route}/{number}")
        return replace(chance.choice(self.kinds), route=route) if chance.random() < self.share else None


class Faults:
    """Those waiting to strike; each request asks once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Fault, Counter[str]]] = []
        self._seen: Counter[str] = Counter()
        self.plan: FaultPlan | None = None

    def add(self, faults: Iterable[Fault]) -> None:
        self._waiting += [(fault, Counter()) for fault in faults]

    def clear(self) -> None:
        self._waiting.clear()
        self.plan = None

    @property
    def waiting(self) -> list[Fault]:
        """Those that have not struck as often as they should; none of those that strike for ever."""
        return [fault for fault, _ in self._waiting if fault.times is not None]

    def next(self, route: str, path: str) -> Fault | None:
        number = self._seen[route]
        self._seen[route] += 1
        strikes: Fault | None = None
        for fault, count in list(self._waiting):
            if fault.route not in ("*", route) or fault.match not in path:
                continue
            count["seen"] += 1
            if strikes is not None or count["seen"] <= fault.skip:
                continue
            strikes = fault
            count["struck"] += 1
            if count["struck"] == fault.times:
                self._waiting.remove((fault, count))
        if strikes is not None:
            return strikes
        return self.plan.fate(route, number) if self.plan is not None else None
