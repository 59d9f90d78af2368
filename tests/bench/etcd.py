"""Durable renewals a second of 256 agents beside the same number of compare-and-swaps in etcd, on the same disk."""

from __future__ import annotations

import contextlib

from tests.bench.bare.etcd import etcd, missing
from tests.bench.children import child, module
from tests.bench.commander_process import commander
from tests.bench.renew import READY, renewing
from tests.bench.rounds import Bench, Setting, Skipped, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

CLIENTS = 256
SECONDS = 1


def run(setting: Setting) -> list[Row]:
    if packages := missing():
        raise Skipped(f"etcd and h2load are not both installed (Debian: {' '.join(packages)})")
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(etcd(setting.folder))
        serving = stack.enter_context(commander(setting.folder))
        argv = module("load.renew", "relay", str(serving.port), str(CLIENTS))
        load = stack.enter_context(child("relay load", argv, setting.folder, serving.load_environment()))
        load.answer(READY)
        load.ask({"clients": CLIENTS, "seconds": 0.3}, READY)  # warm: code paths, file growth
        other.renewals_per_second(CLIENTS, SECONDS)
        samples = interleave(
            {
                "etcd": lambda: {"per_s": other.renewals_per_second(CLIENTS, SECONDS)},
                "relay": renewing(load, CLIENTS),
            },
            setting,
        )
    swaps = Yardstick("etcd compare-and-swap over gRPC", samples.of("etcd", "per_s"))
    return [measured("etcd", "renewals/s", samples.of("relay", "per_s"), swaps, Goal(ratio_at_least=2))]


BENCH = Bench(
    "etcd",
    f"durable renewals a second of {CLIENTS} agents beside etcd's compare-and-swap over gRPC (h2load), same disk",
    ("etcd",),
    run,
)
