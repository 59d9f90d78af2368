"""Where text leaves the agent no secret does, whoever printed it: each of the joints by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_sync_kit import RUN, new_run, put

from relay_agent import secret_words
from relay_agent.attempt.telling import Teller
from relay_agent.checkpoints.manifest import read
from relay_agent.commands import as_told
from relay_agent.doctor import Check, Level, print_checks
from relay_agent.hub import layout
from relay_agent.hub.far.beside import content
from relay_agent.hub.metrics import Metrics
from relay_agent.hub.parcel import About, packed
from relay_agent.hub.protocol import Beside, ListSteps
from relay_agent.hub.wish import Wish, wish_of
from relay_agent.output.follow import Follower
from relay_agent.output.lines import Lines
from relay_agent.output.printed import last_lines
from relay_agent.output.progress import Progress
from relay_agent.process import say
from relay_agent.sending.calls import words_of
from relay_agent.sending.protocol import Failed, line
from relay_agent.spool.spool import Spool
from relay_agent.volume.journal import Journal
from relaytui.wire.clock import SystemClock
from relaytui.wire.errors import RelayError
from relaytui.wire.messages import RunConfig
from relaytui.wire.reports import Ended, Event, Log, Step, Transfer
from relaytui.wire.status import Outcome, TransferKind

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
LEAK = f"RuntimeError: 401 for https://me:{TOKEN}@huggingface.co with {TOKEN}"
SAID = "RuntimeError: 401 for https://me:[HF_TOKEN]@huggingface.co with [HF_TOKEN]"
CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def token() -> Iterator[None]:
    before = secret_words.known()
    secret_words.know({})
    secret_words.learn({"HF_TOKEN": TOKEN})
    yield
    secret_words.know(before)


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    say(LEAK)
    say("x" * 990 + TOKEN + "x" * 9000)  # cut off behind it is replaced
    said = capsys.readouterr().err
    assert SAID in said
    assert TOKEN[:8] not in said


def test_what_ends_it_and_what_doctor_says(capsys: pytest.CaptureFixture[str]) -> None:
    error = as_told(RelayError("x", LEAK, f"use {TOKEN}", exit_code=2))
    assert (error.code, str(error), error.exit_code) == ("x", f"{SAID}. use [HF_TOKEN]", 2)
    checks = [Check("hub", Level.WARN, LEAK, TOKEN)]
    print_checks(checks, as_json=False)
    print_checks(checks, as_json=True)
    told = capsys.readouterr().out
    assert TOKEN not in told
    assert told.count(SAID) == 2


async def test_what_is_written_beside_the_checkpoints(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    journal = Journal(run, "pod", CLOCK)
    spool = Spool(RUN, 1, "t")
    journal.open()
    tell = Teller(spool, journal, CLOCK, lambda: None)
    tell.event("x", "y" * 480 + TOKEN, {"words": LEAK})
    await journal.close()
    line = json.loads(run.events.read_text())
    assert line["words"] == SAID
    assert TOKEN[:8] not in line["message"]
    frame = spool.state.take()
    assert frame is not None
    assert TOKEN[:8].encode() not in frame.data


def test_what_goes_to_the_commander(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    spool = Spool(RUN, 1, "lease-token", folder)
    spool.telemetry.append(Log(1.0, 1, ["a", LEAK, "b"]))
    spool.telemetry.append(Step(1.0, 7, None, {"loss": 1.0, TOKEN: 2.0}))
    spool.telemetry.append(Transfer(1.0, TransferKind.HUB, 7, error=LEAK))
    spool.telemetry.flush()
    spool.state.append(Event(1.0, "x", LEAK, {"a": LEAK}))
    spool.state.append(Ended(1.0, Outcome.FAILED, 7, 1, LEAK))
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert TOKEN.encode() not in kept
    told = []
    for lane in spool.lanes:
        frame = lane.take()
        assert frame is not None
        told += json.loads(frame.data)["reports"]
    ended = next(each for each in told if each["type"] == "ended")
    assert ended["message"] == SAID
    assert next(each for each in told if each["type"] == "log")["lines"] == ["a", SAID, "b"]
    assert next(each for each in told if each["type"] == "step")["metrics"] == {"loss": 1.0, "[HF_TOKEN]": 2.0}
    assert next(each for each in told if each["type"] == "transfer")["error"] == SAID
    assert next(each for each in told if each["type"] == "event")["data"] == {"a": SAID}


def test_what_of_a_report_names_something_stays() -> None:
    secret_words.learn({"ODD_KEY": "step_00000500", "OTHER_KEY": "checkpoint.torn"})
    spool = Spool(RUN, 1, "t")
    spool.state.append(Event(1.0, "checkpoint.torn", "step_00000500"))
    frame = spool.state.take()
    assert frame is not None
    [event] = json.loads(frame.data)["reports"]
    assert (event["kind"], event["message"]) == ("checkpoint.torn", "[ODD_KEY]")


async def test_the_last_words_of_a_trainer(tmp_path: Path) -> None:
    follower = Follower(Progress(0), CLOCK, lambda report: None, lambda mark: None, lambda: None)
    follower.feed(LEAK.encode() + b"\n")
    assert follower.last_line == SAID
    log = tmp_path / "log"
    log.write_bytes(b"x\n" + LEAK.encode() + b"\n")
    assert SAID in await last_lines(log)
    assert TOKEN.encode() in log.read_bytes(), "the trainer's own log is the trainer's"


def test_a_line_is_not_cut_in_the_middle_of_one() -> None:
    lots = Lines().feed(b"x" * 3990 + TOKEN.encode() + b"y" * 5000 + b"\n", 0.0)
    assert TOKEN[:5] not in "".join(line for lot in lots for line in lot.lines)


def test_what_a_child_process_complains_of() -> None:
    assert words_of(Failed("x", "y" * 390 + TOKEN, "unknown").words, 400).endswith("y[HF_TOKEN]")


def test_what_goes_to_the_hub_beside_a_checkpoint(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put(run, 1, 500)
    run.events.write_text(json.dumps({"message": LEAK}) + "\n", encoding="utf-8")  # of an agent before
    metrics = Metrics(tmp_path / "metrics.jsonl", 1)
    metrics.hear(Step(1.0, 7, None, {TOKEN: 2.0}))
    metrics.flush()
    assert TOKEN not in metrics.path.read_text()
    about = About("sft", f"run --token {TOKEN}", "digest", "hash", lineage=layout.Lineage(base_model=f"me/{TOKEN}"))
    job = packed(_wish(tmp_path), run, 1, read(run.ckpt / "step_00000500"), about, metrics.path, 1e12)
    assert TOKEN not in repr((job.beside, job.card, job.card_fields, job.message))
    assert job.where.secrets == {TOKEN: "[HF_TOKEN]"}
    secret_words.know({})  # the child knows what its job says
    secret_words.know(job.where.secrets)
    [events] = [each for each in job.beside if each.path == layout.EVENTS]
    assert json.loads(content(events, {}) or b"")["message"] == SAID
    assert content(Beside("x", text=LEAK), {}) == SAID.encode()


def test_one_that_is_no_utf_8_ends_no_job(tmp_path: Path) -> None:
    """It stands in no text that goes to the Hub."""
    secret_words.know({TOKEN: "[HF_TOKEN]", "pa55w\udcffrd": "[MY_SECRET]"})
    assert b"[MY_SECRET]" not in line(ListSteps(_wish(tmp_path).where))


def _wish(tmp_path: Path) -> Wish:
    from relay_agent.config import load

    environ = {"HF_REPO": "me/x", "HF_TOKEN": TOKEN, "RELAY_AGENT_STATE": str(tmp_path), "RUN_ID": RUN}
    return wish_of(load(environ, needs_url=False), RunConfig("", RUN, 0, 0, 0, "", False))


async def test_nothing_is_looked_for_where_nothing_is_known() -> None:
    secret_words.know({})
    assert secret_words.scrub(LEAK) == LEAK
    await asyncio.sleep(0)
