"""A small recorded fleet: what a feed says of four runs, three agents and what happened to them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
from scripted_commander import NOW, ScriptedCommander, snapshot

from relaytui.client.answers import RunDetail
from relaytui.wire.feed import Lines, Snapshot
from relaytui.wire.rows import AttemptRow, CheckpointRow, EventRow, RunRow, WorkerRow
from relaytui.wire.status import Outcome, RunStatus, WorkerStatus


def run(run_id: str, status: RunStatus = RunStatus.RUNNING, **changes: object) -> RunRow:
    values: dict[str, object] = {
        "run_id": run_id,
        "mode": "sft",
        "status": status,
        "epoch": 3,
        "created_at": NOW - 3_000,
        "updated_at": NOW,
        "attempts": 3,
    }
    if status.active:
        values |= {
            "holder": "pod-a",
            "incarnation": "i-a",
            "lease_expires_at": NOW + 252,
            "lease_seconds": 300.0,
            "reported_at": NOW - 2,
        }
    return RunRow(**{**values, **changes})  # type: ignore[arg-type]


RUNS = [
    run(
        "sft-shakespeare",
        step=340,
        total=400,
        rate=12.4,
        loss=2.3106,
        first_loss=4.1589,
        lr=0.01,
        newest_checkpoint="step_00000300",
        newest_step=300,
        checkpoints=3,
        published=6,
        message="trainer runs",
    ),
    run(
        "rl-rewrite",
        mode="rl",
        epoch=1,
        attempts=1,
        holder="pod-b",
        lease_expires_at=NOW + 41,
        step=120,
        total=1_200,
        rate=0.45,
        loss=0.1234,
        reward=0.4321,
        newest_checkpoint="step_00000100",
        newest_step=100,
        checkpoints=2,
        published=2,
    ),
    run(
        "llama-ft-final-v2",
        RunStatus.DRAINING,
        epoch=12,
        attempts=12,
        holder="gpu-worker-long-name-17",
        step=18_400,
        total=120_000,
        rate=2.2,
        loss="nan",
        newest_checkpoint="step_00018000",
        newest_step=18_000,
        checkpoints=3,
        published=92,
        draining_since=NOW - 20,
    ),
    run("waiting", RunStatus.QUEUED, epoch=0, attempts=0, message="waits for an agent"),
    run(
        "sft-baseline",
        RunStatus.COMPLETED,
        epoch=2,
        attempts=2,
        step=400,
        total=400,
        loss=2.0442,
        first_loss=4.15,
        newest_checkpoint="step_00000400",
        newest_step=400,
        checkpoints=3,
        published=8,
        reported_at=NOW - 900,
    ),
    run("ablation-7", RunStatus.FAILED, step=12, total=400, loss=3.9, message="trainer exited with 1"),
    run("sweep-lr-03", RunStatus.LOST, step=88, total=400, loss=2.9, newest_step=80, newest_checkpoint="step_00000080"),
    run("sweep-lr-04", RunStatus.PREEMPTED, step=61, total=400, loss=3.1),
    run("old-idea", RunStatus.CANCELLED),
]

WORKERS = [
    WorkerRow(
        "pod-a",
        "i-a",
        WorkerStatus.BUSY,
        NOW - 1,
        NOW - 800,
        "node-07.cluster",
        "0.1.0",
        "NVIDIA H100",
        8,
        "sft-shakespeare",
        3,
    ),
    WorkerRow(
        "pod-b", "i-b", WorkerStatus.BUSY, NOW - 1, NOW - 300, "node-09", "0.1.0", "RTX 4090", 1, "rl-rewrite", 1
    ),
    WorkerRow("pod-c", "i-c", WorkerStatus.IDLE, NOW - 4, NOW - 300, "node-10", "0.1.0", waiting_for="sft-shakespeare"),
    WorkerRow("pod-d", "i-d", WorkerStatus.OFFLINE, NOW - 400, NOW - 900, "node-11", "0.1.0"),
]

_KINDS = [
    ("lease.granted", "pod-a", "epoch 2 granted"),
    ("run.started", "pod-a", "trainer runs from step 200"),
    ("checkpoint.published", "pod-a", "step_00000250, 2 files, 41 kB"),
    ("run.lost", "commander", "lease ran out: nothing heard for 300 s"),
    ("lease.granted", "pod-a", "epoch 3 granted"),
    ("checkpoint.torn", "pod-a", "step_00000260 was never whole: set aside"),
    ("checkpoint.published", "pod-a", "step_00000300, 2 files, 41 kB"),
    ("lease.forced", "ada", "taken from pod-a: stuck for an hour"),
]
EVENTS = [
    EventRow(i + 1, NOW - 300 + i * 9, kind, actor, message, "sft-shakespeare", 2 + (i > 3))
    for i, (kind, actor, message) in enumerate(_KINDS)
]

ATTEMPTS = [
    AttemptRow(
        "sft-shakespeare", 1, "pod-x", NOW - 2_900, 0, 120, None, NOW - 2_000, Outcome.PREEMPTED, 143, "pod got SIGTERM"
    ),
    AttemptRow(
        "sft-shakespeare",
        2,
        "pod-b",
        NOW - 1_900,
        100,
        262,
        "step_00000100",
        NOW - 600,
        Outcome.LOST,
        None,
        "lease ran out",
    ),
    AttemptRow("sft-shakespeare", 3, "pod-a", NOW - 500, 250, 300, "step_00000250"),
]
CHECKPOINTS = [
    CheckpointRow("sft-shakespeare", f"step_{step:08d}", step, 2 + (step > 250), 41_200, 2, "a" * 64, NOW - 400 + step)
    for step in (200, 250, 300)
]


def loss_at(step: int, seed: int = 0) -> float:
    return 2.0 + 2.1 * math.exp(-step / 110) + 0.09 * math.sin(step * 1.7 + seed) + 0.05 * math.sin(step * 0.37)


POINTS = (
    [(1, step, loss_at(step)) for step in range(1, 121)]
    + [(2, step, loss_at(step, 1)) for step in range(101, 263)]
    + [(3, step, loss_at(step, 2)) for step in range(251, 341)]
)
LINES = [
    f"step {step}/400 loss {loss_at(step, 2):.4f} lr 0.0100" if step % 30 else "warning: clipped gradient (norm 4.2)"
    for step in range(251, 341)
]


def fleet() -> Snapshot:
    return snapshot(RUNS, WORKERS, EVENTS)


def backlog() -> list[Lines]:
    return [
        Lines(
            "sft-shakespeare",
            2,
            290,
            NOW - 620,
            ["step 261/400 loss 2.4812 lr 0.0100", "step 262/400 loss 2.4811 lr 0.0100"],
        ),
        Lines("sft-shakespeare", 3, 1, NOW - 400, ["resuming from step_00000250", *LINES]),
    ]


def scripted(commander: ScriptedCommander) -> None:
    """The fleet as greeting, and the answers to what a run's screen asks."""
    commander.greeting = [fleet()]
    name = "sft-shakespeare"
    commander.answers["GET", f"/api/runs/{name}"] = (200, RunDetail(NOW, RUNS[0], ATTEMPTS, CHECKPOINTS))
    commander.answers["GET", f"/api/runs/{name}/series"] = (200, {"metric": "loss", "points": POINTS})
    commander.answers["GET", f"/api/runs/{name}/log"] = (200, {"lines": []})


@pytest.fixture
async def commander() -> AsyncIterator[ScriptedCommander]:
    """One that has this fleet."""
    made = await ScriptedCommander().start()
    scripted(made)
    yield made
    await made.stop()
