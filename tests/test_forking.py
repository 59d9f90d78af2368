"""A run that begins with a checkpoint of another: a copy, published as its own first, that says whose it is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_kit import ManualClock, mine, new_run, not_mine, put, take
from test_beginning import Told
from test_restoring import Shelf

from relay_agent.attempt import forking
from relay_agent.attempt.around import Around
from relay_agent.attempt.forking import Forking
from relay_agent.checkpoints.forking import NoParent, Pruned, adopt, copied, find
from relay_agent.checkpoints.line import survey
from relay_agent.checkpoints.manifest import Sealed, Torn, read, verify
from relay_agent.checkpoints.prune import prune
from relay_agent.checkpoints.publish import Fenced
from relay_agent.checkpoints.resume import Resume, choose, is_fork
from relay_agent.config import load
from relay_agent.fork_from import ForkFrom
from relay_agent.outcome.stop import Stop
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder, open_run
from relay_agent.watchdog.resumed import Resumed
from relaytui.wire.errors import RelayError

WALL = ManualClock().wall


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("run-7@500", ForkFrom("run-7@500", "run-7", 500)),
        ("run-7", ForkFrom("run-7", "run-7")),
        ("hf:me/x@step-500", ForkFrom("hf:me/x@step-500", repo="me/x", tag="step-500")),
        ("hf:me/x@step-500.e3", ForkFrom("hf:me/x@step-500.e3", repo="me/x", tag="step-500.e3")),
        ("hf:me/x", ForkFrom("hf:me/x", repo="me/x")),
    ],
)
def test_what_it_can_name(text: str, what: ForkFrom) -> None:
    assert ForkFrom.parse(text) == what
    settings = load({"FORK_FROM": text}, needs_url=False)
    assert settings.fork_from == what


@pytest.mark.parametrize(
    "text",
    [
        "run-7@",
        "../run",
        "run@step-5",
        "run@-1",
        "hf:",
        "hf:x",
        "hf:me/x@",
        "hf:me/x@main",
        "hf:../x@step-5",
        "a b",
        "@5",
    ],
)
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(RelayError, match="FORK_FROM should be run, run@step or hf:"):
        load({"FORK_FROM": text}, needs_url=False)


@pytest.mark.parametrize(
    ("model", "good"), [("me/x", True), ("gpt2", True), ("/m/x", True), ("m x", False), ("../x", False)]
)
def test_a_base_model_is_a_folder_or_a_name(model: str, good: bool) -> None:
    if good:
        assert load({"BASE_MODEL": model}, needs_url=False).base_model == model
    else:
        with pytest.raises(RelayError, match="BASE_MODEL should be"):
            load({"BASE_MODEL": model}, needs_url=False)


@pytest.fixture
def parent(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path, 3)
    for step in (400, 500):
        put(run, 3, step, metrics={"eval_loss": 0.5}, trainer="theirs")
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = open_run(tmp_path, "run-2")
    take(run, 1)
    return run


def fork(run: RunFolder, source: Sealed) -> Any:
    return adopt(run, copied(run, source), 1, mine, mode="rl", wall=WALL)[0]


def test_the_first_manifest_names_its_parent_and_the_rest_is_its_own(parent: RunFolder, run: RunFolder) -> None:
    source = find(parent, None)
    done = fork(run, source)
    made = verify(run.ckpt / done.name, "run-2")
    assert (made.run_id, made.name, made.step, made.epoch, made.seq, made.base) == (
        "run-2",
        source.name,
        500,
        1,
        1,
        None,
    )
    assert (made.mode, made.trainer, made.metrics, made.files) == (
        "rl",
        "theirs",
        {"eval_loss": 0.5},
        source.manifest.files,
    )
    origin = made.forked_from
    assert origin is not None
    assert (origin.run_id, origin.name, origin.epoch, origin.manifest) == ("run-1", source.name, 3, source.sha256)
    resume = choose(run)
    assert resume is not None
    assert (resume.name, resume.forked, resume.on_line) == (done.name, True, True)
    assert is_fork(run, done.name)
    put(run, 1, 20)  # its counter began anew
    assert [sealed.name for sealed in survey(run).line] == ["step_00000020", "step_00000500"]
    assert survey(run).line[0].manifest.forked_from is None
    assert not is_fork(run, "step_00000020")
    assert [sealed.sha256 for sealed in survey(parent).line][:1] == [source.sha256], "the other run is only read"


def test_any_step_that_is_whole_and_else_what_there_is(parent: RunFolder, tmp_path: Path) -> None:
    assert find(parent, 400).name == "step_00000400"
    with pytest.raises(NoParent, match="it has the steps 500, 400"):
        find(parent, 450)
    (parent.ckpt / "step_00000500" / "weights.bin").write_bytes(b"torn")
    assert find(parent, None).name == "step_00000400"
    with pytest.raises(NoParent, match="step_00000500 is not whole"):
        find(parent, 500)
    assert (parent.ckpt / "step_00000500").is_dir(), "it is not ours to set aside"
    with pytest.raises(NoParent, match="nothing is published"):
        find(open_run(tmp_path, "run-3"), None)


def test_a_copy_that_was_broken_off_goes_on_and_one_that_is_wrong_is_none(parent: RunFolder, run: RunFolder) -> None:
    source = find(parent, 500)
    received = copied(run, source)
    with pytest.raises(Fenced):
        adopt(run, received, 1, not_mine, mode="sft", wall=WALL)
    assert copied(run, source) == received
    (received / "weights.bin").write_bytes((received / "weights.bin").read_bytes()[::-1])
    with pytest.raises(Torn, match="hash differs"):
        adopt(run, received, 1, mine, mode="sft", wall=WALL)
    shutil.rmtree(received)
    shutil.rmtree(source.path / "shard")
    with pytest.raises(Torn):
        copied(run, source)


class Attempted:
    """`Forking` as an attempt uses it."""

    def __init__(self, run: RunFolder, source: str, tmp_path: Path, **variables: str) -> None:
        self.told = Told()
        self.told.published = lambda done: self.told.append(("published", done.name))  # type: ignore[attr-defined]
        self.told.transfer = lambda report: None  # type: ignore[attr-defined]
        held: Any = SimpleNamespace(lease=SimpleNamespace(epoch=1), held=True, fenced=lambda: None)
        variables = {"FORK_FROM": source, "RUN_ID": run.run_id, "RELAY_AGENT_STATE": str(tmp_path), **variables}
        settings, config = load(variables, needs_url=False), SimpleNamespace(hf_repo="", hf_sync_interval_sec=1)
        config.hf_push_on_improve = False
        holding: Any = SimpleNamespace(config=config)
        given: Any = (settings, run, None, holding, held, None, self.told, Stop(), ManualClock(), None)
        self.forking = Forking(Around(*given))

    def fork(self) -> Resume | None:
        return asyncio.run(self.forking.fork())


def test_it_is_said_to_be_a_fork_and_known_to_the_commander(parent: RunFolder, run: RunFolder, tmp_path: Path) -> None:
    attempted = Attempted(run, "run-1@400", tmp_path)
    resume = attempted.fork()
    assert resume is not None
    assert (resume.step, resume.epoch, resume.forked) == (400, 1, True)
    assert attempted.told.kinds() == ["run.forked", "published"]
    assert "forked from step_00000400 of run run-1 (this volume)" in attempted.told[0][1]
    assert not list(run.incoming.iterdir())


@pytest.mark.parametrize(
    ("source", "words"),
    [("run-1@450", "it has the steps 500, 400"), ("run-9", "no run run-9"), ("run-2@500", "it is the run itself")],
)
def test_what_cannot_be_had_is_not_replaced_by_anything(
    parent: RunFolder, run: RunFolder, tmp_path: Path, source: str, words: str
) -> None:
    with pytest.raises(RelayError, match=words) as refused:
        Attempted(run, source, tmp_path).fork()
    assert (refused.value.code, refused.value.exit_code) == ("fork_impossible", 2)


class Prunes:
    """The parent trains on: each time that `when` says so it publishes three more and prunes all but the newest two."""

    def __init__(self, parent: RunFolder, when: Callable[[], bool], times: int = 100) -> None:
        self.parent, self.when, self.left, self.step = parent, when, times, 500

    def __call__(self) -> None:
        if self.left and self.when():
            self.left -= 1
            for _ in range(3):
                self.step += 100
                put(self.parent, 3, self.step)
            prune(self.parent, 2)


def coming(run: RunFolder) -> bool:
    """A copy has begun."""
    return run.incoming.is_dir() and any(run.incoming.iterdir())


def test_what_is_pruned_while_it_is_copied_is_chosen_anew(parent: RunFolder, run: RunFolder, tmp_path: Path) -> None:
    attempted = Attempted(run, "run-1", tmp_path)
    prunes = Prunes(parent, lambda: coming(run), times=1)
    attempted.forking._stop.unless_asked = prunes  # type: ignore[method-assign]
    resume = attempted.fork()
    assert prunes.left == 0
    assert resume is not None
    assert resume.step == 800, "the newest by then"
    assert not list(run.incoming.iterdir())


def test_what_is_pruned_while_it_is_looked_at_is_chosen_anew(parent: RunFolder) -> None:
    with pytest.raises(Pruned):
        find(parent, None, Prunes(parent, lambda: True, times=1))
    assert find(parent, None).manifest.step == 800


def test_a_parent_that_prunes_faster_than_it_is_copied_is_said(
    parent: RunFolder, run: RunFolder, tmp_path: Path
) -> None:
    attempted = Attempted(run, "run-1", tmp_path)
    attempted.forking._stop.unless_asked = Prunes(parent, lambda: coming(run))  # type: ignore[method-assign]
    with pytest.raises(RelayError, match="run-1 prunes its checkpoints faster than they can be copied") as refused:
        attempted.fork()
    assert refused.value.exit_code == 69, "it may go better later"
    attempted = Attempted(run, "run-1@500", tmp_path)
    with pytest.raises(RelayError, match="it has the steps"):
        attempted.fork()


def test_from_the_hub(parent: RunFolder, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(parent)
    shelf.stored = {"step-400": "step_00000400", "step-500": "step_00000500"}
    shelf.placed = lambda step: None
    monkeypatch.setattr(forking, "OnHub", lambda where, *given: shelf)
    with pytest.raises(RelayError, match="me/theirs has no such tag"):
        Attempted(run, "hf:me/theirs@step-450", tmp_path).fork()
    shelf.fails["step-500"] = Trouble("unreachable", "the Hub cannot be reached", "transient")
    with pytest.raises(RelayError, match="cannot be reached") as refused:
        Attempted(run, "hf:me/theirs", tmp_path).fork()
    assert refused.value.exit_code == 69
    shelf.fails["step-500"] = Trouble("not_whole", "'weights.bin' is missing on the Hub")
    with pytest.raises(RelayError, match="is missing on the Hub"):
        Attempted(run, "hf:me/theirs", tmp_path).fork()
    shelf.stored["step-900"] = "step_00000500"  # whole, with the same manifest
    resume = Attempted(run, "hf:me/theirs", tmp_path).fork()
    assert resume is not None
    origin = read(resume.path).manifest.forked_from
    assert origin is not None
    assert (origin.run_id, origin.repo, origin.tag) == ("run-1", "me/theirs", "step-900")


def test_no_alarm_where_the_trainer_of_a_fork_counts_its_own_steps() -> None:
    told: Any = Told()
    told.published = lambda done: None
    for forked, kinds in ((True, ["fork.counts_anew"]), (False, ["resume.ignored"])):
        told.clear()
        pruner: Any = SimpleNamespace(may_prune=True)
        resumed = Resumed(500, "step_00000500", told, forked=forked)
        resumed.publisher = pruner
        resumed.stepped(1, told=False)
        resumed.stepped(2, told=False)
        assert (told.kinds(), pruner.may_prune) == (kinds, forked)
