"""The end of an attempt says what of it is saved, what is in no checkpoint, and where the next one goes on."""

from __future__ import annotations

import re
import signal

import programs
import pytest
from agent_rig import TUI, Rig, eventually

from relay_agent.checkpoints.missed import IF_WHOLE
from relay_agent.outcome.stop import Stop, Why
from relay_agent.outcome.verdict import Ended, judge
from relay_agent.output.progress import Progress
from relaytui.wire.status import Outcome

SAVES = "save() { d=$RELAY_CKPT_STAGING_ROOT/step_$1; mkdir -p $d; echo x >$d/w; }; "
SAVED = SAVES + "save 20; : >$d/COMPLETE; "
WAITS = "while :; do sleep 0.05; done"
LOST = "its newest checkpoint is of step 20; steps 21-25 are in none"


def seen(*lines: str, start: int = 0, total: int | None = None) -> Progress:
    progress = Progress(start, total)
    for n, line in enumerate(lines):
        progress.see(line, float(n))
    return progress


def ends(rig: Rig, command: str, stop: str = "") -> tuple[int, str]:
    """The agent's code, and the words that its end has in all places: the agent's own last ones, the event, the
    attempt, and what `relay-tui runs` prints."""
    agent = rig.agent(command)
    if stop:
        eventually(lambda: rig.run()["step"] >= 25 and rig.run()["newest_step"] == 20, "all that it makes")
    if stop == "SIGTERM":
        agent.process.send_signal(signal.SIGTERM)
    elif stop:
        rig.call(f"/api/runs/{rig.run_id}/{stop}", expected_epoch=1, why="a test")
    code = agent.wait()
    words = str(rig.run()["attempts"][0]["message"])
    last = agent.says().splitlines()[-1]
    assert last.endswith(words)
    (event,) = [
        event["message"]
        for event in rig.call(f"/api/events?run={rig.run_id}&limit=1000")["events"]
        if event["kind"].startswith("run.") and "outcome" in event.get("data", {})
    ]
    assert event == words
    shown = programs.run(
        [TUI, "--state", rig.state, "runs", rig.run_id], capture_output=True, text=True, check=True
    ).stdout.split("\nattempts")[0]
    assert words in " ".join(shown.split())
    return code, words


def torn(rig: Rig) -> list[str]:
    return [event["message"] for event in rig.events() if event["event"] == "checkpoint.torn"]


def test_a_run_whose_last_steps_are_in_no_checkpoint_is_completed_and_says_which(rig: Rig) -> None:
    code, words = ends(rig, SAVED + "echo step 25/25 loss 1")
    assert (code, rig.run()["status"]) == (0, "completed"), "its final model may lie elsewhere"
    assert words == f"reached step 25 of 25; {LOST}"


@pytest.mark.parametrize(
    ("newest", "start", "words"),
    [
        (240, 0, ""),
        (239, 0, ""),  # it counts from another end
        (200, 0, "; its newest checkpoint is of step 200; steps 201-240 are in none"),
        (None, 0, "; steps 1-240 are in no checkpoint"),
        (None, 230, "; its newest checkpoint is of step 230; steps 231-240 are in none"),
        (0, 0, "; its newest checkpoint is of step 0; steps 1-240 are in none"),
    ],
)
def test_what_a_completed_run_says_of_its_last_steps(newest: int | None, start: int, words: str) -> None:
    verdict = judge(Ended(0, Stop(), seen("step 239/240 loss 1", "step 240/240 loss 1", start=start), newest, ""))
    assert (verdict.outcome, verdict.message) == (Outcome.COMPLETED, f"reached step 240 of 240{words}")


@pytest.mark.parametrize(
    ("code", "newest", "start", "says"),
    [(0, None, 0, True), (0, 240, 0, False), (0, None, 230, False), (1, None, 0, False)],
)
def test_where_none_was_found_the_end_says_where_was_looked(
    code: int, newest: int | None, start: int, says: bool
) -> None:
    ended = Ended(code, Stop(), seen("step 239/240", "step 240/240", start=start), newest, looked="$A and $B")
    assert judge(ended).message.endswith("; Relay looks for checkpoints in $A and $B alone") is says


def test_a_run_that_saves_where_nobody_looks_says_so_at_its_end(rig: Rig) -> None:
    code, words = ends(rig, "echo step 1/25 loss 1; echo step 25/25 loss 1")
    looked = "Relay looks for checkpoints in $RELAY_CKPT_STAGING_ROOT and $RELAY_OUTPUT_DIR alone"
    assert (code, words) == (0, f"reached step 25 of 25; steps 1-25 are in no checkpoint; {looked}")


def test_a_drain_whose_save_is_torn_says_that_it_is_not_there_and_from_where_it_goes_on(rig: Rig) -> None:
    """Its code is the trainer's own."""
    code, words = ends(rig, SAVED + f"trap 'save 25; exit 0' TERM; echo step 25/240 loss 1; {WAITS}", "drain")
    assert (code, rig.run()["status"]) == (0, "queued")
    assert words.startswith(
        "drained by operator: a test, but the save that it was asked for is not known to be whole; "
        f"{LOST}; the next attempt starts at step 20; 1 checkpoint could not be published: "
    )
    assert words.endswith(f"it lies in ckpt/.bad/e00000001.step_25{IF_WHOLE}")


def test_of_a_pod_that_went_in_the_middle_of_a_save_the_steps_are_named(rig: Rig) -> None:
    code, words = ends(rig, SAVED + f"save 25; rm -f $d/COMPLETE; echo step 25/240 loss 1; {WAITS}", "SIGTERM")
    assert code == 143
    assert words.startswith(
        f"the pod got SIGTERM, but its last save is not known to be whole; {LOST}; the next attempt starts at step 20; "
        "1 checkpoint could not be published: "
    )
    assert len(torn(rig)) == 1


@pytest.mark.parametrize(("takes", "which"), [(True, "the save that it was asked for"), (False, "its last save")])
def test_a_save_is_the_answer_only_where_the_wish_was_taken(rig: Rig, takes: bool, which: str) -> None:
    """Begun after the order it is in both."""
    wait = "while ! test -e $RELAY_SAVE_FILE; do sleep 0.05; done; "
    then = "rm $RELAY_SAVE_FILE; " if takes else ""
    writes = "n=0; while :; do n=$((n + 1)); echo $n >$d/w$n; sleep 0.05; done"
    agent = rig.agent(SAVED + f"echo step 25/240 loss 1; {wait}{then}save 25; {writes}", RELAY_STOP_GRACE="2")
    eventually(lambda: rig.run()["step"] >= 25 and rig.run()["newest_step"] == 20, "all that it makes")
    rig.call(f"/api/runs/{rig.run_id}/drain", expected_epoch=1, why="a test")
    assert agent.wait() == 143
    words = rig.run()["attempts"][0]["message"]
    assert words.startswith(f"drained by operator: a test, but {which} is not known to be whole; {LOST}; ")


def test_of_a_trainer_that_was_killed_in_the_middle_of_a_save_the_steps_are_named(rig: Rig) -> None:
    code, words = ends(rig, SAVED + "echo step 25/240 loss 1; save 25; kill -9 $$")
    assert (code, rig.run()["status"]) == (137, "failed")
    assert words.endswith(f"; {LOST}")
    assert len(torn(rig)) == 1


def test_a_torn_save_is_behind_by_as_little_as_a_step() -> None:
    """Without it one may be the trainer's way of counting."""
    stop = Stop()
    stop.ask(Why.DRAIN, "drained by root")
    lost = "its newest checkpoint is of step 20; step 21 is in none; the next attempt starts at step 20; why"
    said = "drained by root, but the save that it was asked for is not known to be whole; "
    assert judge(Ended(0, stop, seen("step 21/90 loss 1"), 20, "", "why", torn=True, asked=True)).message == said + lost
    unseen = judge(Ended(0, stop, seen(start=20), None, "", "why", torn=True, asked=True))
    assert unseen.message == f"{said}the next attempt starts at step 20; why"
    stop.ask(Why.CANCEL, "cancelled by root")
    assert judge(Ended(0, stop, seen(), None, "", "why", torn=True, asked=True)).message.endswith(
        "to be whole; it has no checkpoint; why"
    )


GONE = "8 checkpoints could not be published: the volume is not mounted any more"
UNLESS = "unless the next attempt finds them whole"


@pytest.mark.parametrize("why", [Why.SIGNAL, Why.DRAIN, Why.CANCEL])
@pytest.mark.parametrize("code", [0, 143])
def test_a_stop_whose_saves_may_still_come_names_the_steps_that_are_in_none(why: Why, code: int) -> None:
    """A volume that is lost, or refused them: they may lie there whole."""
    stop = Stop()
    stop.ask(why, "the pod got SIGTERM")
    lost = "its newest checkpoint is of step 20; steps 21-456 are in none"
    message = judge(Ended(code, stop, seen("step 456/900 loss 1"), 20, "", GONE)).message
    assert message == f"the pod got SIGTERM, but {GONE}; {lost}, {UNLESS}"
    message = judge(Ended(code, stop, seen("step 456/900 loss 1"), None, "", GONE)).message
    assert message == f"the pod got SIGTERM, but {GONE}; steps 1-456 are in no checkpoint, {UNLESS}"
    message = judge(Ended(code, stop, seen(start=20), None, "", GONE)).message
    later = "its newest checkpoint is of step 20, unless the next attempt finds a later one whole"
    assert message == f"the pod got SIGTERM, but {GONE}; {later}"


@pytest.mark.parametrize("code", [0, 1, 137])
@pytest.mark.parametrize("reached", [456, 900])
def test_so_does_one_that_ended_by_itself(code: int, reached: int) -> None:
    lost = f"; its newest checkpoint is of step 20; steps 21-{reached} are in none, {UNLESS}"
    message = judge(Ended(code, Stop(), seen(f"step {reached}/900 loss 1"), 20, "", GONE)).message
    assert GONE in message
    assert lost in message
    kept = judge(Ended(code, Stop(), seen(f"step {reached}/900 loss 1"), 20, "", GONE, kept=True)).message
    assert UNLESS not in kept, "it is known to be whole, and waits for room"


def test_a_volume_that_was_taken_away_under_a_trainer_costs_what_its_end_says(rig: Rig) -> None:
    gone = "mv $RELAY_RUN_ROOT/claims $RELAY_RUN_ROOT/x; save 24; : >$d/COMPLETE; "
    published = "while ! test -e $RELAY_RUN_ROOT/ckpt/step_00000020; do sleep 0.05; done; "
    agent = rig.agent(SAVED + published + gone + f"echo step 25/240 loss 1; {WAITS}")
    eventually(lambda: "volume.lost" in rig.kinds() and rig.run()["step"] >= 25, "the loss told")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 143
    words = str(rig.run()["attempts"][0]["message"])
    assert words.endswith(f"/claims is gone; {LOST}, {UNLESS}")


def test_whoever_exits_0_early_is_told_how_to_say_that_it_was_all(rig: Rig) -> None:
    code, words = ends(rig, SAVED + "echo step 25/240 loss 1")
    assert (code, rig.run()["status"]) == (1, "failed")
    hint = "if that was all there was to do, TARGET_STEPS: 25 says so"
    assert words == f"exited 0 at step 25 of 240; {LOST}; {hint}"
    assert "TARGET_STEPS" not in judge(Ended(0, Stop(), seen(total=10), None, "")).message, "nothing is no work done"
    assert judge(Ended(0, Stop(), seen("step 25/240 loss 1", total=25), 25, "")).outcome is Outcome.COMPLETED, (
        "it is true"
    )


def test_a_save_without_a_mark_that_is_set_aside_names_the_mark_and_where_it_lies_now(rig: Rig) -> None:
    _, words = ends(rig, SAVES + "save 20; echo step 25/240 loss 1; kill -9 $$")
    (event,) = torn(rig)
    assert re.sub(r"for \d s", "for N s", event) == (
        "step_20 is set aside in ckpt/.bad/e00000001.step_20: the trainer exited with 137 before it had kept still "
        "for N s (it had for N s); COMPLETE in it would say that it is whole"
    )
    assert (rig.folder / "ckpt/.bad/e00000001.step_20/w").exists()
    assert words.endswith("; steps 1-25 are in no checkpoint")
