"""Reports: at least once on the wire, once in effect, in order, and only from the attempt they belong to."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from commander_kit import FakeClock, Kit, ended, log, published, running, started, step

from relaytui.commander.model import kinds
from relaytui.commander.services import telemetry
from relaytui.wire import reports
from relaytui.wire.codec import encode


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    async with running(tmp_path / "state", FakeClock()) as kit:
        yield kit


async def test_a_run_from_start_to_end(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1", mode="rl")
    assert await agent.state(started()) == {"type": "ack", "run_id": "run-1", "epoch": 1, "stream": "state", "seq": 1}
    assert (await agent.tell(log(1, "hello", "world"), step(1, 10, loss=3.0, lr=0.1, reward=0.5)))["seq"] == 2
    assert (await agent.tell(step(2, loss=2.5)))["seq"] == 3
    await agent.state(published(2), published(4), {"type": "pruned", "name": "step_00000002"})
    row = await kit.run("run-1")
    assert (row["status"], row["step"], row["total"]) == ("running", 4, 10), "what was saved was made"
    assert (row["loss"], row["first_loss"], row["lr"], row["reward"]) == (2.5, 3.0, 0.1, 0.5)
    assert (row["newest_checkpoint"], row["checkpoints"], row["published"]) == ("step_00000004", 1, 2)
    await agent.state(ended("completed", 10, exit_code=0, message="done"))
    body = (await kit.get("/api/runs/run-1"))[1]
    assert (body["run"]["status"], body["run"]["step"], body["run"]["message"]) == ("completed", 10, "done")
    attempt = body["attempts"][0]
    assert (attempt["outcome"], attempt["exit_code"], attempt["last_step"], attempt["lines"]) == ("completed", 0, 10, 2)
    assert [row["name"] for row in body["checkpoints"]] == ["step_00000002", "step_00000004"]
    assert "pruned_at" in body["checkpoints"][0]
    assert (await kit.kinds("run-1"))[2:] == [
        "run.started", "checkpoint.published", "checkpoint.published", "checkpoint.pruned", "run.completed",
    ]  # fmt: skip


async def test_a_checkpoint_of_one_file_is_said_to_have_one_file(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), published(5) | {"files": 1}, published(9), first_seq=1)
    said = [event["message"] for event in await kit.events("run-1") if event["kind"] == "checkpoint.published"]
    assert said == ["step_00000005 at step 5, 1 file", "step_00000009 at step 9, 2 files"]


async def test_what_was_said_twice_counts_once(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    for _ in range(3):
        assert (await agent.state(started(), published(5), first_seq=1))["seq"] == 2
        assert (await agent.tell(log(1, "a", "b"), first_seq=1))["seq"] == 1
    # A frame that overlaps: only what is new of it.
    assert (await agent.state(published(5), published(9), first_seq=2))["seq"] == 3
    assert (await agent.tell(log(1, "a", "b"), log(3, "c"), first_seq=1))["seq"] == 2
    assert await kit.lines("run-1") == ["a", "b", "c"]
    assert (await kit.run("run-1"))["published"] == 2
    assert (await kit.kinds("run-1")).count("checkpoint.published") == 2


async def test_another_connection_of_the_attempt_goes_on_where_it_was(kit: Kit) -> None:
    first = await kit.agent(incarnation="one")
    await first.acquire("run-1")
    await first.tell(log(1, "a"))
    second = await kit.agent(incarnation="one")
    second.run_id, second.epoch, second.token = first.run_id, first.epoch, first.token
    assert (await second.tell(log(1, "a"), log(2, "b"), first_seq=1))["seq"] == 2
    assert await kit.lines("run-1") == ["a", "b"]


@pytest.mark.parametrize("stream", ["state", "telemetry"])
async def test_a_gap_is_asked_for_never_skipped(kit: Kit, stream: str) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    report = started() if stream == "state" else log(1, "a")
    refused = await agent.report(stream, report, first_seq=3)
    assert (refused["type"], refused["code"], refused["expected"], refused["stream"]) == ("refused", "gap", 1, stream)
    assert (await agent.report(stream, report, first_seq=1))["seq"] == 1
    assert (await agent.report(stream, report, first_seq=3))["expected"] == 2


@pytest.mark.parametrize("stream", ["state", "telemetry"])
async def test_reports_of_a_lease_that_is_not_theirs_change_nothing(kit: Kit, stream: str) -> None:
    agent, other = await kit.agent("holder"), await kit.agent("other")
    await agent.acquire("run-1")
    await other.acquire("run-2")
    report = ended("failed") if stream == "state" else log(1, "evil")
    for claim, code in (
        ({"token": "x" * 64}, "not_holder"),
        ({"token": other.token}, "not_holder"),
        ({"epoch": 7}, "unknown"),
        ({"run_id": "run-3"}, "unknown"),
    ):
        refused = await agent.report(stream, report, first_seq=1, **claim)
        assert (refused["type"], refused["code"]) == ("refused", code), claim
    assert (await kit.run("run-1"))["status"] == "leased"
    assert await kit.lines("run-1") == []
    assert (await agent.report(stream, started() if stream == "state" else log(1, "fine"), first_seq=1))["seq"] == 1


async def test_a_lower_epoch_is_history_and_nothing_else(kit: Kit) -> None:
    old, new = await kit.agent("old"), await kit.agent("new")
    await old.acquire("run-1")
    await old.state(started())
    await kit.force("run-1", 1, pod_gone=True)
    await new.acquire("run-1")
    await new.state(started(20))
    await new.tell(step(21, 50, loss=1.0), log(1, "of the new one"))
    # The old one was cut off, trained on, and comes back with all it did.
    assert (await old.tell(step(99, 100, loss=9.0), log(1, "of the old one")))["type"] == "ack"
    assert (await old.state(published(99), {"type": "event", "kind": "checkpoint.torn", "message": "one"}))["seq"] == 3
    assert (await old.state(ended("completed", 100, exit_code=0)))["type"] == "ack"
    row = await kit.run("run-1")
    assert (row["status"], row["epoch"], row["step"], row["total"], row["loss"]) == ("running", 3, 21, 50, 1.0)
    assert "newest_checkpoint" not in row
    assert await kit.lines("run-1", "?epoch=1") == ["of the old one"]
    assert await kit.lines("run-1") == ["of the old one", "of the new one"]
    kinds = await kit.kinds("run-1")
    assert "checkpoint.orphan" in kinds
    assert "checkpoint.torn" in kinds
    assert "run.completed" not in kinds


async def test_a_terminal_status_is_final_for_its_epoch(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), ended("completed", 5, exit_code=0))
    await agent.state(started(), published(6), ended("failed", 6, exit_code=1))
    assert (await agent.tell(log(1, "last words")))["type"] == "ack"
    row = await kit.run("run-1")
    assert (row["status"], row.get("published", 0)) == ("completed", 0)
    assert (await kit.attempts("run-1"))[0]["outcome"] == "completed"
    assert await kit.lines("run-1") == ["last words"]


async def test_a_step_saved_again_is_the_newest(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), published(500), published(1000), published(500, "step_00000500.e00000001", "cd" * 32))
    row = await kit.run("run-1")
    assert (row["newest_checkpoint"], row["newest_step"], row["checkpoints"]) == ("step_00000500.e00000001", 500, 3)


async def test_each_attempt_says_where_it_started(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), published(10))
    await agent.tell(step(14, 50, loss=2.0))
    await agent.state(ended("preempted", 14, message="SIGTERM"))
    await agent.acquire("run-1")
    await agent.state(started(10, "step_00000010"))
    assert (await kit.run("run-1"))["step"] == 10
    await agent.tell(step(11, 50, loss=1.9))
    first, second = await kit.attempts("run-1")
    assert (first["last_step"], first["outcome"], first["message"]) == (14, "preempted", "SIGTERM")
    assert (second["started_step"], second["started_from"], second["last_step"]) == (10, "step_00000010", 11)
    row = await kit.run("run-1")
    assert (row["step"], row["first_loss"], row["loss"]) == (11, 2.0, 1.9)


async def test_a_diverged_loss_is_shown(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    await agent.tell(step(1, loss=2.0), step(2, loss="nan"), step(3, loss="inf"))
    row = await kit.run("run-1")
    assert (row["first_loss"], row["loss"]) == (2.0, "inf")
    points = (await kit.get("/api/runs/run-1/series?metric=loss"))[1]["points"]
    assert points == [[1, 1, 2.0], [1, 2, "nan"], [1, 3, "inf"]]


async def test_text_from_pods_is_harmless_wherever_it_comes_out(kit: Kit) -> None:
    evil = "\x1b]52;c;aGk=\x07\x1b[2J\u202eab\x9b31m\tc\x00\x7f"
    ws = await kit.session.ws_connect(kit.commander.url + "/ws/agent", headers=kit.headers("worker"))
    await ws.send_json(
        {"type": "hello", "protocol": 1, "worker": "w", "incarnation": "i", "host": evil, "version": evil,
         "capability": {"gpu": evil}}
    )  # fmt: skip
    await ws.receive()
    agent = await kit.agent("pod")
    await agent.acquire("run-1")
    await agent.state(started(), {"type": "event", "kind": "trainer.note", "message": evil, "data": {evil: evil}})
    await agent.tell(log(1, evil, "x" * 9_000, "[/bold]"), step(1, **{evil: 1.0, "loss": 1.0}))
    await agent.state(ended("failed", 1, message=evil, exit_code=1))
    said = ""
    for path in ("/api/runs/run-1", "/api/runs/run-1/log", "/api/events?run=run-1", "/api/workers"):
        async with kit.session.get(kit.commander.url + path, headers=kit.headers("operator")) as answer:
            said += str(await answer.json())
    for forbidden in ("\\x1b", "\\x07", "\\u202e", "\\x9b", "\\t", "\\x00", "\\x7f", "\\u009b"):
        assert forbidden not in said
    lines = await kit.lines("run-1")
    assert lines[0].startswith("ab")
    assert len(lines[1]) == 4_000
    assert lines[2] == "[/bold]"


async def test_a_pod_cannot_write_the_commanders_history(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started(), {"type": "event", "kind": "lease.forced", "message": "by nobody"})
    event = (await kit.events("run-1"))[-1]
    assert (event["kind"], event["actor"]) == ("agent.lease.forced", "pod")
    ours = ["checkpoint.published", "checkpoint.pruned", "run.completed", "RUN.Completed",
            "order.refused", "worker.connected", "commander.started", "lease", "lease.x." + "y" * 120]  # fmt: skip
    for kind in ours:
        await agent.state({"type": "event", "kind": kind, "message": "by nobody"})
    assert [kind.startswith("agent.") for kind in (await kit.kinds("run-1"))[-len(ours) :]] == [True] * len(ours)
    for kind in ("checkpoint.torn", "checkpoint.orphan", "hub.synced", "hub.failed", "leased.nothing"):
        await agent.state({"type": "event", "kind": kind, "message": "seen"})
        assert (await kit.kinds("run-1"))[-1] == kind


def test_every_kind_the_commander_writes_is_its_own() -> None:
    """Read from its code: a new kind of event that a pod could forge fails here."""
    written = set()
    for path in Path(kinds.__file__).parent.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_event":
                kind = node.args[2]
                first = kind.values[0] if isinstance(kind, ast.JoinedStr) else kind
                if isinstance(first, ast.Constant):
                    written.add(str(first.value))
    assert len(written) > 15
    assert sorted(kind for kind in written if not kinds.is_commanders(kind)) == sorted(kinds.SHARED)


async def test_only_the_commander_says_that_an_attempt_was_lost(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.send("state", started(), ended("lost"))
    said = await agent.hear()
    assert (said["code"], "lost" in said["message"]) == ("bad_field", True)
    assert (await kit.run("run-1"))["status"] == "leased"


async def test_a_rate_that_no_trainer_has_is_not_shown(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.state(started())
    for rate, shown in ((2.5, 2.5), (5e-324, None), (1e308, None), (-1.0, None), (0.0, None), (0.001, 0.001)):
        await agent.tell(step(1) | {"rate": rate})
        assert (await kit.run("run-1")).get("rate") == shown


async def test_pages_of_a_long_log(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    for start in range(1, 2_001, 50):
        await agent.tell(*(log(n, f"line {n}") for n in range(start, start + 50)))
    assert await kit.lines("run-1", "?limit=3") == ["line 1998", "line 1999", "line 2000"]
    assert await kit.lines("run-1", "?epoch=1&before=1998&limit=2") == ["line 1996", "line 1997"]
    assert len(await kit.lines("run-1", "?limit=5000")) == 2_000
    assert await kit.lines("run-1", "?epoch=1&before=1") == []
    assert await kit.lines("run-1", "?epoch=9") == []
    assert (await kit.attempts("run-1"))[0]["lines"] == 2_000


async def test_lines_that_gave_way_are_counted(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    await agent.tell(log(1, "a"), {"type": "gap", "n": 2, "count": 500}, log(502, "b"))
    assert await kit.lines("run-1") == ["a", "b"]
    assert (await kit.attempts("run-1"))[0]["lines"] == 502


async def test_a_long_curve_is_thinned_and_keeps_its_ends(kit: Kit) -> None:
    agent = await kit.agent()
    await agent.acquire("run-1")
    for start in range(0, 20_000, 500):
        await agent.tell(*(step(n, 20_000, loss=1.0 / (n + 1)) for n in range(start, start + 500)))
    points = (await kit.get("/api/runs/run-1/series?points=100"))[1]["points"]
    assert len(points) == 100
    assert (points[0][1], points[-1][1]) == (0, 19_999)
    assert [point[1] for point in points] == sorted(point[1] for point in points)
    await agent.tell(step(20_000, loss=0.5))
    assert (await kit.get("/api/runs/run-1/series?points=100"))[1]["points"][-1] == [1, 20_000, 0.5]


async def test_renewals_are_answered_while_telemetry_floods(kit: Kit) -> None:
    flood, calm = await kit.agent("flood"), await kit.agent("calm")
    await flood.acquire("run-1")
    await calm.acquire("run-2")
    for n in range(200):
        await flood.send("telemetry", *(log(n * 100 + k + 1, "x" * 80) for k in range(100)))
    assert (await calm.renew())["type"] == "renewed"
    assert (await calm.renew())["type"] == "renewed"
    acked = 0
    while acked < 20_000:
        acked = (await flood.hear("ack"))["seq"]
    assert (await kit.attempts("run-1"))[0]["lines"] == 20_000


async def test_cleaning_a_frame_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "SLICE", -1.0)  # no line is cleaned in less
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    frame: list[reports.AnyReport] = [
        reports.Log(1.0, 1, ["\x1b[31mred"] * 50), reports.Step(1.0, 1, metrics={"l\x1b[0moss": 2.0})
    ]  # fmt: skip
    said, raw = await telemetry.cleaned(frame, b"", tidy=False)
    beside.cancel()
    assert turns >= 50
    assert said == [reports.Log(1.0, 1, ["red"] * 50), reports.Step(1.0, 1, metrics={"loss": 2.0})]
    assert raw == encode(said)
    same = [reports.Log(1.0, 1, ["損失 2.5", "plain"])]
    assert await telemetry.cleaned(same, b"as it came", tidy=False) == (same, b"as it came")
