"""A watchdog over real trainers: one that prints and makes no step, one whose loss goes bad, by each policy."""

from __future__ import annotations

from agent_rig import Rig, commander, mock, rig  # noqa: F401 - fixtures

from relay_agent.checkpoints.manifest import verify


def test_one_that_prints_and_makes_no_step_is_started_anew(rig: Rig) -> None:  # noqa: F811
    command = mock("--steps", 6, "--step-seconds", 0.01, "--hang-at", 1, "--chatter", "--only-epochs", 1)
    agent = rig.agent(command, STALL_LOAD="1", ON_STALL="restart", RETRIES="3", RETRY_BACKOFF="0")
    assert agent.wait() == 0, agent.says()
    agent.heard("the trainer has stalled in loading")
    run = rig.run()
    assert run["status"] == "completed"
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["crashed", "completed"]
    stalled = next(event for event in rig.events() if event["event"] == "trainer.stalled")
    assert (stalled["phase"], "GET /health" in stalled["message"]) == ("loading", True)
    assert "python3" in stalled["stacks"]
    assert "stalled in loading" in (rig.folder / stalled["kept"]).read_text()


def test_one_whose_loss_is_no_number_any_more_goes_back_to_before(rig: Rig) -> None:  # noqa: F811
    command = mock("--steps", 120, "--step-seconds", 0.03, "--save-every", 10, "--nan-at", 15, "--only-epochs", 1)
    agent = rig.agent(command, ON_NAN="rollback", RETRIES="0")
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    assert (run["status"], run["step"]) == ("completed", 120)
    first, second = run["attempts"]
    assert (first["outcome"], second["outcome"]) == ("crashed", "completed")
    assert "the loss is not finite since step 15: going back to step_00000010 (rollback 1 of 2)" in first["message"]
    assert (second["started_from"], second["started_step"]) == ("step_00000010", 10)
    told = rig.events()
    assert {"loss.nonfinite", "loss.rollback"} <= {event["event"] for event in told}
    published = {event["name"] for event in told if event["event"] == "checkpoint.published" and event["epoch"] == 1}
    passed_over = max(published) > "step_00000010"
    assert ("resume.rolled_back" in {event["event"] for event in told}) is passed_over


def test_by_the_other_policy_it_ends_and_queued_again_it_goes_on_from_before(rig: Rig) -> None:  # noqa: F811
    flags = ("--steps", 200, "--step-seconds", 0.02, "--save-every", 10)
    agent = rig.agent(mock(*flags, "--diverge-at", 61), ON_DIVERGE="stop", RETRIES="3")
    assert agent.wait() != 0
    run = rig.run()
    assert (run["status"], len(run["attempts"])) == ("failed", 1)
    assert "the loss is diverging since step 61: stopped, as ON_DIVERGE says" in run["message"]
    assert run["newest_step"] % 10 == 0, "what it saved on its way out is not published"
    healthy = {name: verify(rig.folder / "ckpt" / name).healthy for name in rig.checkpoints()}
    assert healthy["step_00000060"]
    assert not any(well for name, well in healthy.items() if name > "step_00000060"), "from where it began on"
    rig.call(f"/api/runs/{rig.run_id}/requeue", expected_epoch=1, why="mended")
    anew = "export RELAY_RESUME_FROM=; " + mock("--steps", 5, "--step-seconds", 0.01)
    again = rig.agent(anew, worker="pod-b", COUNTER_RESTARTS="true")
    assert again.wait() == 0, again.says()
    assert rig.run()["attempts"][-1]["started_from"] == "step_00000060"
    assert "resume.ignored" not in rig.kinds(), "it counts anew, and that was said"
