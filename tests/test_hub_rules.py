"""What is decided about the Hub without asking anybody: names, choices, turns, the card, the end."""

from __future__ import annotations

import json
import math
import os
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from checkpoint_kit import new_run, put

from relay_agent.checkpoints.manifest import Manifest, read
from relay_agent.checkpoints.retention import Best, Retention
from relay_agent.config import load
from relay_agent.hub import card, layout
from relay_agent.hub.choosing import chosen, told
from relay_agent.hub.far.failures import classified, wait_of
from relay_agent.hub.keeping import doomed
from relay_agent.hub.metrics import MOST, Metrics
from relay_agent.hub.parcel import config_hash, rollouts
from relay_agent.hub.synced import LastSynced, last_synced, note
from relay_agent.outcome.stop import Why
from relay_agent.sending.patience import patience
from relay_agent.sending.schedule import FIRST, LONGEST, SOON, TRIES, Schedule
from relay_agent.volume import own_files
from relaytui.wire.reports import Log, Step
from relaytui.wire.status import Outcome

# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tag", "step"),
    [
        ("step_00000500", "step-500", 500),
        ("step_00000000", "step-0", 0),
        ("step_123456789", "step-123456789", 123456789),
        ("step_00000500.e00000003", "step-500.e3", 500),
        ("step_00000500.e00000003.2", "step-500.e3.2", 500),
    ],
)
def test_a_tag_is_made_of_a_name_and_says_the_step(name: str, tag: str, step: int) -> None:
    assert layout.tag_of(name) == tag
    assert layout.step_of(tag) == step


@pytest.mark.parametrize("tag", ["v1", "step-", "step-01", "step-5.e0", "step-5.e3.0", "step-5x", "STEP-5", "step-5\n"])
def test_other_peoples_tags_are_none_of_ours(tag: str) -> None:
    assert layout.step_of(tag) is None


@pytest.mark.parametrize("repo", ["me/model", "org-1/a.b_c", "a/b"])
def test_repositories_that_the_hub_takes(repo: str) -> None:
    assert layout.repo_trouble(repo) == ""


@pytest.mark.parametrize(
    "repo",
    [
        "",
        "model",
        "me/",
        "/m",
        "a/b/c",
        "me/mo del",
        "me/a--b",
        "me/a..b",
        "me/x.git",
        "me/-x",
        f"me/{'x' * 99}",
        "mé/x",
    ],
)
def test_repositories_that_it_does_not(repo: str) -> None:
    assert layout.repo_trouble(repo)


def test_the_runs_name_goes_into_the_repositorys() -> None:
    assert layout.repo_of(" me/{run_id}-ckpt ", "run-7") == "me/run-7-ckpt"


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 9999, b'{"relay_run":2}', b"\xff"])
def test_a_run_file_of_strangers_is_checked(data: bytes) -> None:
    with pytest.raises(layout.BadRun):
        layout.decode_run(data)


# -- which steps stay, and which files go ------------------------------------------------------------------------------


def manifest(step: int, seq: int, epoch: int = 1, **more: Any) -> Manifest:
    name = f"step_{step:08d}"
    return Manifest(1, "run-1", name, step, epoch, seq, None, "sft", "t", "staging", None, 0.0, [], **more)


def test_the_newest_stay_by_epoch_and_order_of_publishing() -> None:
    line = {"step-900": manifest(900, 1), "step-100": manifest(100, 2), "step-200": manifest(200, 3, epoch=2)}
    assert doomed(line, 2) == ["step-900"]
    assert doomed(line, 0) == []
    assert doomed(line, 1, spare=["step-900"]) == ["step-100"]


def test_milestones_the_best_and_the_last_healthy_stay_too() -> None:
    line = {
        f"step-{step}": manifest(step, step, metrics={"loss": loss}, healthy=step < 500)
        for step, loss in ((100, 3.0), (200, 1.0), (300, 2.0), (400, 2.0), (500, 9.0), (600, 9.0))
    }
    assert doomed(line, 1) == ["step-100", "step-200", "step-300", "step-500"]
    kept = doomed(line, 1, Retention(300, Best("loss")))
    assert kept == ["step-100", "step-500"]


def test_weights_or_patterns() -> None:
    paths = [
        "config.json",
        "model-00001-of-2.safetensors",
        "optimizer.pt",
        "optimizer.safetensors",
        "rng_state.pth",
        "sub/tokenizer.json",
    ]
    assert chosen(paths, ()) == paths
    assert chosen(paths, ("weights",)) == ["config.json", "model-00001-of-2.safetensors", "sub/tokenizer.json"]
    assert chosen(paths, ("*.json", "!sub/*")) == ["config.json"]
    assert chosen(paths, ("!*.pt",)) == [path for path in paths if path != "optimizer.pt"]


def test_no_secret_is_told_of_the_environment() -> None:
    environ = {
        "WORLD_SIZE": "8", "NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_x", "NCCL_SECRET": "x", "TORCH_HOME": "https://u:p@h/",
        "TORCH_LOGS": "a" * 40, "PATH": "/bin",
    }  # fmt: skip
    assert told(environ) == {"NCCL_DEBUG": "INFO", "WORLD_SIZE": "8"}


def test_a_variable_that_is_no_utf_8_ends_no_sync() -> None:
    odd = os.fsdecode(b"v\xff")
    assert told({"NCCL_DEBUG_FILE": odd}) == {"NCCL_DEBUG_FILE": "v\ufffd"}
    other = os.fsdecode(b"v\xfe")
    one, two = (
        config_hash(load({"COMMANDER_URL": "http://host:8080", "TRAIN_CMD": f"train {each}"})) for each in (odd, other)
    )
    assert one != two


# -- the card ----------------------------------------------------------------------------------------------------------

FIELDS: dict[str, str | list[str]] = {"tags": ["relay"], "base_model": "me/base"}


def head(text: str) -> Any:
    return yaml.safe_load(text.split("---")[1])


def test_a_new_card_and_its_next_edition() -> None:
    first = card.updated(None, "step 1", FIELDS)
    assert head(first) == {"tags": ["relay"], "base_model": "me/base"}
    second = card.updated(first, "step 2", FIELDS)
    assert "step 1" not in second
    assert second == first.replace("step 1", "step 2")


@pytest.mark.parametrize(
    "old",
    [
        "---\nlicense: mit\ntags: [mine]\n---\n# Mine\n\nWords.\n",
        "# Mine, without a head",
        "---\n---\nempty head\n",
        "---\n: [ broken yaml\n---\nWords.\n",
        "---\r\nlicense: mit\r\n---\r\nWindows.\r\n",
        "only\n---\nrules\n---\n",
    ],
)
def test_peoples_words_stay(old: str) -> None:
    new = card.updated(old, "step 1", FIELDS)
    for line in old.splitlines():
        assert line in new.splitlines()
    again = card.updated(new, "step 2", FIELDS)
    assert again == new.replace("step 1", "step 2")
    if "tags: [mine]" in old:
        assert head(new) == {"license": "mit", "tags": ["mine"], "base_model": "me/base"}


def test_what_people_write_round_the_markers_stays() -> None:
    text = card.updated(None, "step 1", {})
    edited = "Before.\n" + text + "After.\n"
    assert card.updated(edited, "step 2", {}) == edited.replace("step 1", "step 2")
    assert "<img" not in card.table({"Run": "a|b<img src=x>[x](y)"})


# -- turns -------------------------------------------------------------------------------------------------------------


def schedule(interval: float = 1000.0, since: float | None = None) -> Schedule:
    return Schedule(interval, random.Random(1), 0.0, since)


def test_the_first_is_due_at_once_and_each_later_one_in_its_turn() -> None:
    turns = schedule()
    assert turns.left(0.0) == 0
    turns.done(50.0)
    assert turns.left(50.0) == 1000
    assert schedule(since=400.0).left(0.0) == 600
    assert schedule(since=-1e9).left(0.0) == 1000  # a clock that was set back
    assert schedule(since=1e9).left(0.0) == 0


@pytest.mark.parametrize("raw", ["[Errno 111] Connection refused", "Connection refused"])
def test_a_hub_that_is_down_is_said_without_the_systems_number(raw: str) -> None:
    class ConnectError(Exception):
        pass

    assert classified(ConnectError(raw)).words == "the Hub cannot be reached: Connection refused"


def test_failures_wait_longer_each_time_and_end() -> None:
    turns = schedule()
    now, waited = 0.0, []
    for _ in range(TRIES - 1):
        assert turns.failed(now, "unknown")
        waited.append(turns.left(now))
        now += waited[-1]
    assert all(wait <= min(LONGEST, FIRST * 2**number) for number, wait in enumerate(waited))
    assert not turns.failed(now, "transient")
    assert turns.left(now) == 1000
    assert turns.tries == 1


def test_a_wait_that_the_hub_names_is_kept() -> None:
    turns = schedule()
    assert turns.failed(0.0, "transient", 300.0)
    assert 300 <= turns.left(0.0) <= 300 + FIRST


def test_what_is_for_good_waits_for_somebody() -> None:
    turns = schedule()
    assert not turns.failed(0.0, "permanent")
    assert math.isinf(turns.left(1e9))
    turns.at_once(5.0)
    assert turns.left(5.0) == 0


def test_a_better_one_comes_sooner_but_not_at_every_step() -> None:
    turns = schedule()
    turns.done(0.0)
    turns.better(10.0)
    assert turns.left(10.0) == SOON - 10
    turns.failed(100.0, "transient", 500.0)
    turns.better(100.0)
    assert turns.left(100.0) >= 500


# -- the end -----------------------------------------------------------------------------------------------------------

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("why", "outcome", "left", "size", "speed", "expected"),
    [
        (None, Outcome.COMPLETED, math.inf, GB, None, 1800.0),
        (None, Outcome.FAILED, math.inf, GB, None, 1800.0),
        (None, Outcome.CRASHED, math.inf, GB, None, 0.0),
        (Why.DRAIN, Outcome.DRAINED, math.inf, GB, None, 1800.0),
        (Why.DRAIN, Outcome.DRAINED, 100.0, GB, None, 95.0),
        (Why.SIGNAL, Outcome.PREEMPTED, math.inf, 1000, None, 0.0),
        (Why.SIGNAL, Outcome.PREEMPTED, 30.0, GB, None, 0.0),
        (Why.SIGNAL, Outcome.PREEMPTED, 120.0, GB, 100e6, 115.0),
        (Why.LOST, Outcome.COMPLETED, math.inf, GB, None, 0.0),
        (Why.CUT_OFF, Outcome.PREEMPTED, math.inf, GB, None, 0.0),
        (Why.AGAIN, Outcome.CRASHED, math.inf, GB, None, 0.0),
    ],
)
def test_how_long_an_end_may_wait(
    why: Why | None, outcome: Outcome, left: float, size: int, speed: float | None, expected: float
) -> None:
    seconds, words = patience(why, outcome, left, size, speed, 1800.0, "HF_END_WAIT")
    assert seconds == expected
    goes_on = why is Why.AGAIN or (why is None and outcome is Outcome.CRASHED)
    assert bool(words) == (expected == 0 and not goes_on)


# -- what is kept on the volume ----------------------------------------------------------------------------------------


def test_what_was_synced_last_is_read_back_or_not_believed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    synced = LastSynced("me/m", "a" * 40, 500, 1.5, "step-500", "step_00000500", "b" * 64, "of all files")
    assert last_synced(run.hf, "me/m", "of all files") is None
    note(run.hf, synced)
    assert last_synced(run.hf, "me/m", "of all files") == synced
    assert last_synced(run.hf, "me/other", "of all files") is None
    assert last_synced(run.hf, "me/m", "of the weights") is None
    (run.hf / "last_synced.json").unlink()
    (run.hf / "last_synced.json").symlink_to("/etc/passwd")
    assert last_synced(run.hf, "me/m", "of all files") is None
    note(run.hf, synced)
    assert not (run.hf / "last_synced.json").is_symlink()


def test_metrics_wait_for_a_volume_and_are_thinned(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    metrics = Metrics(run.hf / "metrics.jsonl", 1)
    metrics.hear(Log(1.0, 1, ["x"]))
    for step in range(3):
        metrics.hear(Step(1.0, step, metrics={"loss": 1.0 / (step + 1)}))
    metrics.flush()
    metrics.flush()
    assert [line.split(b",")[0] for line in metrics.path.read_bytes().splitlines()] == [
        b'{"step":0',
        b'{"step":1',
        b'{"step":2',
    ]
    for step in range(3 * MOST):
        metrics.hear(Step(1.0, step, metrics={"loss": 1.0}))
    metrics.flush()
    assert len(metrics.path.read_bytes().splitlines()) <= 3 + MOST


def test_two_who_write_metrics_at_once_lose_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an attempt does not wait for a look that goes on."""
    metrics = Metrics(new_run(tmp_path).hf / "metrics.jsonl", 1)
    other = threading.Thread(target=metrics.flush)
    monkeypatch.setattr("relay_agent.hub.metrics.LARGE", 100)

    def slow(path: Path, data: bytes) -> None:
        monkeypatch.setattr("relay_agent.hub.metrics.LARGE", 1 << 20)
        metrics.hear(Step(1.0, 99, metrics={"loss": 1.0}))
        other.start()
        other.join(0.2)
        own_files.replace(path, data)

    monkeypatch.setattr("relay_agent.hub.metrics.replace", slow)
    for step in range(8):
        metrics.hear(Step(1.0, step, metrics={"loss": 1.0}))
    metrics.flush()
    other.join()
    assert metrics.path.read_bytes().splitlines()[-1].startswith(b'{"step":99,')


def test_what_is_told_while_metrics_are_written_is_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics(new_run(tmp_path).hf / "metrics.jsonl", 1)
    written = list[bytes]()

    def slow(path: Path, data: bytes) -> None:
        if not written:
            for step in range(10, 10 + MOST + 1):  # as many as are thinned
                metrics.hear(Step(1.0, step, metrics={"loss": 1.0}))
        written.append(data)
        if len(written) == 2:
            raise OSError("it hangs")
        own_files.append(path, data)

    monkeypatch.setattr("relay_agent.hub.metrics.append", slow)
    metrics.hear(Step(1.0, 0, metrics={"loss": 1.0}))
    metrics.flush()
    with pytest.raises(OSError, match="it hangs"):
        metrics.flush()
    metrics.hear(Step(1.0, 99_998, metrics={"loss": 1.0}))
    metrics.hear(Step(1.0, 99_999, metrics={"loss": 1.0}))
    metrics.flush()
    metrics.flush()
    steps = [json.loads(line)["step"] for line in metrics.path.read_bytes().splitlines()]
    assert steps[0] == 0
    assert steps[1:-1] == list(range(11, 10 + MOST + 1, 2))
    assert steps[-1] in (99_998, 99_999)


def test_an_attempt_without_rollouts_hides_no_others(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for epoch in (1, 2, 3, 5):
        run.output(epoch).mkdir(parents=True, exist_ok=True)
    for epoch in (2, 5):
        (run.output(epoch) / "rollouts").mkdir()
        (run.output(epoch) / "rollouts" / "one.jsonl").write_text("{}\n")
    (run.output(3) / "rollouts").write_text("no folder")
    (run.output(0).parent / "e-strange").symlink_to("/nowhere")
    wish: Any = SimpleNamespace(rollouts=(Path("rollouts"), "*.jsonl"))
    found = sorted(beside.path for beside in rollouts(wish, run, math.inf))
    assert found == ["rollouts/e00000002/one.jsonl", "rollouts/e00000005/one.jsonl"]


def test_tags_that_one_may_have(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put(run, 1, 500)
    assert layout.tags_for(read(run.ckpt / "step_00000500").manifest)[:3] == [
        "step-500",
        "step-500.e1",
        "step-500.e1.2",
    ]


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "36000"}, 36_000.0),
        ({"retry-after": "9" * 400}, 86_400.0),
        ({"ratelimit": '"api";r=0;t=999999'}, 86_400.0),
        ({"ratelimit": '"api";r=0;t=59'}, 60.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 30.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:07 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT"}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:50:07", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, None),
        ({"retry-after": "Sun, 06 Nov 99999 08:50:07 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, None),
    ],
)
def test_a_wait_is_kept_a_day_at_most(headers: dict[str, str], wait: float | None) -> None:
    assert wait_of(SimpleNamespace(headers=headers)) == wait
