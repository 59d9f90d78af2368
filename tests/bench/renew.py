"""Durable renewals a second with 1, 16 and 256 agents, each renewing again as soon as it was answered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from tests.bench import renew_lines
from tests.bench.bare.disk import syncs_per_second
from tests.bench.children import Child, child, module
from tests.bench.commander_process import commander
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

CLIENTS = (1, 16, 256)
GOALS = {256: Goal(at_least=6_000)}
SECONDS = 1.0
READY = 60.0
PROBE = "fdatasync"


RATES = (*(f"renew.{clients}" for clients in CLIENTS), "renew.disk")


def run(setting: Setting) -> list[Row]:
    rows = []
    for part, names in ((rates, RATES), (renew_lines.run, (renew_lines.NAME,))):
        if setting.wants(*names):
            folder = setting.folder / names[-1]
            folder.mkdir()
            rows += part(replace(setting, folder=folder))
    return rows


def rates(setting: Setting) -> list[Row]:
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(commander(setting.folder))
        echo = stack.enter_context(child("bare echo", module("bare.echo"), setting.folder))
        most = str(max(CLIENTS))
        relay_load = stack.enter_context(
            child(
                "relay load",
                module("load.renew", "relay", str(serving.port), most),
                setting.folder,
                serving.load_environment(),
            )
        )
        bare_load = stack.enter_context(
            child("bare load", module("load.renew", "bare", str(echo.answer(READY)["port"]), most), setting.folder)
        )
        variants: dict[str, Callable[[], Figures]] = {PROBE: lambda: {"per_s": syncs_per_second(setting.folder)}}
        for load in (relay_load, bare_load):
            load.answer(READY)
            load.ask({"clients": max(CLIENTS), "seconds": 0.3}, READY)  # warm: code paths, file growth
        for clients in CLIENTS:
            variants[f"bare echo, {clients}"] = renewing(bare_load, clients)
            variants[f"relay, {clients}"] = renewing(relay_load, clients)
        samples = interleave(variants, setting)
    rows = []
    for clients in CLIENTS:
        bare = Yardstick("bare websocket echo", samples.of(f"bare echo, {clients}", "per_s"))
        values = samples.of(f"relay, {clients}", "per_s")
        rows.append(measured(f"renew.{clients}", "renewals/s", values, bare, GOALS.get(clients)))
    one = samples.of("relay, 1", "per_s")
    rows.append(measured("renew.disk", "renewals/s", one, Yardstick("fdatasync alone", samples.of(PROBE, "per_s"))))
    return rows


def renewing(load: Child, clients: int) -> Callable[[], Figures]:
    def measure() -> Figures:
        answer = load.ask({"clients": clients, "seconds": SECONDS}, SECONDS + READY)
        return {"per_s": answer["renewals"] / answer["seconds"], "p99_ms": answer["p99_ms"]}

    return measure


BENCH = Bench(
    "renew",
    "durable renewals a second with 1, 16 and 256 agents; what 5,000 log lines a second do to their p99",
    (*RATES, renew_lines.NAME),
    run,
)
