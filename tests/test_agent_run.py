"""The agent as a pod starts it, against a real commander: acquire, train, hand over, survive."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

from agent_rig import PATIENCE, SECRET, Rig, eventually, mock, rigged
from commander_kit import FakeClock
from ports import free_port

from relay_agent import guardian
from relay_agent.lease.acquire import _Denials


def test_a_run_from_first_to_last(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 20, "--step-seconds", 0.02, "--save-every", 5))
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    assert (run["status"], run["step"], run["total"], run["published"]) == ("completed", 20, 20, 4)
    when, said = zip(*(line.split(" ", 1) for line in agent.says().splitlines()), strict=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", each) for each in when), "a log is read days later"
    told = [line for line in said if line.startswith("relay-agent: published ")]
    assert [line.split()[2] for line in told] == [f"step_{step:08d}," for step in (5, 10, 15, 20)]
    assert "relay-agent: step 1 of 20, loss " in agent.says()
    assert run["loss"] < run["first_loss"]
    (attempt,) = run["attempts"]
    assert (attempt["outcome"], attempt["exit_code"], attempt["last_step"]) == ("completed", 0, 20)
    assert attempt.get("started_step", 0) == 0
    lines = rig.lines()
    assert [line.split()[1] for line in lines if line.startswith("step ")] == [f"{n}/20" for n in range(1, 21)]
    assert "\n".join(lines) + "\n" == (rig.folder / "logs/e00000001.log").read_text()
    assert (rig.folder / "logs/e00000001.exit").read_text() == "0\n"
    assert rig.checkpoints() == ["step_00000010", "step_00000015", "step_00000020"]
    assert rig.told() == {
        "status": "COMPLETED",
        "latest_ckpt": "step_00000020",
        "last_hf_revision": None,
        "updated_at": rig.told()["updated_at"],
        "exit_code": 0,
    }
    for event in rig.events():
        assert {"at", "event", "epoch", "worker"} <= event.keys()
    assert [event["event"] for event in rig.events()][:2] == ["lease.acquired", "resume.cold"]


def test_sigterm_saves_publishes_and_the_next_pod_goes_on(rig: Rig) -> None:
    command = mock("--steps", 40, "--step-seconds", 0.1, "--save-every", 100)
    first = rig.agent(command)
    eventually(lambda: rig.run()["step"] >= 3, "three steps")
    asked = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 143
    assert time.monotonic() - asked < 5
    run = rig.run()
    assert run["status"] == "queued", "a preempted run is free at once"
    saved = run["newest_step"]
    assert saved >= 3
    assert run["attempts"][0]["outcome"] == "preempted"
    assert (rig.told()["status"], rig.told()["exit_code"]) == ("PREEMPTED", 143)

    second = rig.agent(mock("--steps", saved + 3, "--step-seconds", 0.02), worker="pod-b")
    assert second.wait() == 0, second.says()
    run = rig.run()
    attempts = run["attempts"]
    assert [attempt["epoch"] for attempt in attempts] == [1, 2]
    assert (attempts[1]["started_step"], attempts[1]["last_step"]) == (saved, saved + 3)
    assert run["status"] == "completed"


def test_an_agent_killed_leaves_nothing_and_its_run_goes_on_elsewhere(rig: Rig) -> None:
    command = mock("--steps", 300, "--step-seconds", 0.05, "--save-every", 5, "--children", 1, "--daemons")
    first = rig.agent(command)
    eventually(lambda: rig.run()["newest_step"] >= 5, "a checkpoint")
    waiting = rig.agent(mock("--steps", 60, "--step-seconds", 0.01, "--save-every", 10), worker="pod-b")
    waiting.heard("waiting for run")
    guard = rig.guard()
    assert guardian.tree(guard)
    first.process.kill()
    eventually(lambda: not guardian.tree(guard), "the trainer's tree gone", 6)
    assert waiting.wait() == 0, waiting.says()
    run = rig.run()
    attempts = run["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["lost", "completed"]
    assert attempts[1]["started_step"] == int(attempts[1]["started_from"].removeprefix("step_"))
    assert attempts[1]["started_step"] >= 5
    rig.checkpoints()


def test_what_an_agent_died_over_is_published_by_the_next_one(rig: Rig) -> None:
    """The trainer saves when its guardian stops it: nobody is left to publish that but the next agent."""
    command = mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 100_000)
    first = rig.agent(command)
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    first.process.kill()
    staging = rig.folder / "ckpt" / ".staging" / "e00000001"
    saved = eventually(lambda: [path.parent for path in staging.glob("step_*/COMPLETE")], "its last save")[0]
    step = int(saved.name.removeprefix("step_"))
    second = rig.agent(mock("--steps", step + 3, "--step-seconds", 0.01, "--save-every", 100_000), worker="pod-b")
    assert second.wait() == 0, second.says()
    second.heard(f"resuming from step_{step:08d}")
    assert f"step_{step:08d}" in rig.checkpoints()
    run = rig.run()
    assert run["status"] == "completed"
    assert (run["attempts"][-1]["started_step"], run["attempts"][-1]["started_from"]) == (step, f"step_{step:08d}")
    assert "checkpoint.salvaged" in [event["event"] for event in rig.events()]
    assert not staging.exists()


def test_a_commander_killed_stops_no_training_and_misses_nothing(tmp_path: Path) -> None:
    with rigged(tmp_path) as rig:
        _kill_it_twice(rig)


def _kill_it_twice(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 60, "--step-seconds", 0.15, "--save-every", 10))
    for at in (10, 30):
        eventually(lambda at=at: rig.run()["step"] >= at, f"step {at}")
        rig.kill_commander()
        log = rig.folder / "logs/e00000001.log"
        printed = log.stat().st_size
        eventually(lambda log=log, printed=printed: log.stat().st_size > printed + 100, "training while it is away")
        rig.start_commander()
    assert agent.wait() == 0, agent.says()
    run = rig.run()
    assert (run["status"], run["published"]) == ("completed", 6)
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["completed"]
    steps = [line.split()[1] for line in rig.lines() if line.startswith("step ")]
    assert steps == [f"{n}/60" for n in range(1, 61)], "every line, once, in order"


def test_an_agent_waits_for_a_commander_that_is_not_there_yet(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.volume.mkdir()
    rig.port = free_port()
    try:
        agent = rig.agent(mock("--steps", 2, "--step-seconds", 0.01))
        agent.heard(f"no commander at {rig.url}")
        rig.start_commander()
        assert agent.wait() == 0, agent.says()
    finally:
        rig.close()


def test_a_wrong_secret_ends_it_with_a_code_of_its_own(rig: Rig) -> None:
    agent = rig.agent(mock(), RELAY_SHARED_SECRET="another-secret-altogether")
    assert agent.wait() == 77
    assert "RELAY_SHARED_SECRET" in agent.says().splitlines()[-1]
    assert "another-secret" not in agent.says()
    assert list(rig.volume.rglob("*")) == [], "nothing is made for who is not let in"


def test_a_stranger_on_the_port_gets_no_secret(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.volume.mkdir()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(PATIENCE)
    rig.port = listener.getsockname()[1]
    try:
        agent = rig.agent(mock())
        heard = b""
        body = b'{"ok":true,"name":"relay","proof":{"operator":"00","worker":"00"}}'
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
        while agent.process.poll() is None:
            listener.settimeout(0.2)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                heard += connection.recv(65536)
                connection.sendall(answer + str(len(body)).encode() + b"\r\n\r\n" + body)
        assert agent.wait() == 77, agent.says()
        assert b"/api/health" in heard
        assert SECRET.encode() not in heard
    finally:
        listener.close()
        rig.close()


def test_a_run_that_has_ended_is_not_asked_for_again(rig: Rig) -> None:
    assert rig.agent(mock("--steps", 2, "--step-seconds", 0.01)).wait() == 0
    again = rig.agent(mock("--steps", 9), worker="pod-b")
    assert again.wait() == 75
    assert "completed" in again.says()


def test_what_a_killed_pod_left_behind_is_stopped_by_the_next_agent(rig: Rig) -> None:
    """Agent and guardian die in the same moment: what is in another session by then is found by its mark."""
    first = rig.agent(mock("--steps", 500, "--step-seconds", 0.05, "--children", 2, "--daemons"))
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    guard = rig.guard()
    parents = {pid: parent for pid, (parent, _) in guardian.processes().items()}
    (keeper,) = [pid for pid, parent in parents.items() if parent == first.process.pid]
    first.process.send_signal(signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)
    first.process.kill()
    eventually(lambda: guardian.tree(guard), "daemons that outlived them")
    rig.agent(mock("--steps", 500)).heard("that an earlier agent left here")
    assert not guardian.tree(guard)


def test_cut_off_longer_than_its_lease_it_trains_on_and_revives_it(tmp_path: Path) -> None:
    with rigged(tmp_path, lease_seconds=1.5) as rig:
        agent = rig.agent(mock("--steps", 200, "--step-seconds", 0.05, "--save-every", 20))
        eventually(lambda: rig.run()["step"] >= 3, "three steps")
        assert rig.commander is not None
        rig.commander.send_signal(signal.SIGSTOP)
        agent.heard("cut off from the commander for longer than the lease")
        log = rig.folder / "logs/e00000001.log"
        printed = log.stat().st_size
        eventually(lambda: log.stat().st_size > printed + 200, "training while it is away")
        rig.commander.send_signal(signal.SIGCONT)
        assert agent.wait() == 0, agent.says()
        (attempt,) = rig.run()["attempts"]
        assert (attempt["outcome"], rig.run()["status"]) == ("completed", "completed")
        assert "agent.lease.cut_off" in rig.kinds()
        assert [line.split()[1] for line in rig.lines()] == [f"{n}/200" for n in range(1, 201)]


def test_a_second_signal_does_not_wait_for_a_commander_that_is_gone(tmp_path: Path) -> None:
    with rigged(tmp_path) as rig:
        agent = rig.agent(mock("--steps", 500, "--step-seconds", 0.05))
        eventually(lambda: rig.run()["step"] >= 2, "two steps")
        rig.kill_commander()
        agent.process.send_signal(signal.SIGTERM)
        agent.heard("preempted at step")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.wait(5) == 143


def test_drain_saves_and_releases(rig: Rig) -> None:
    agent = rig.agent(mock("--steps", 500, "--step-seconds", 0.05, "--save-every", 1000))
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    rig.call(f"/api/runs/{rig.run_id}/drain", expected_epoch=1, why="maintenance")
    assert agent.wait() == 143
    run = rig.run()
    assert (run["status"], run["attempts"][0]["outcome"]) == ("queued", "drained")
    assert run["newest_step"] >= 2
    assert "maintenance" in agent.says()


def test_the_last_words_of_a_stopped_trainer_arrive(rig: Rig) -> None:
    """All that it prints between the signal and its end, after every line before."""
    words = "for n in $(seq 500); do echo last words $n; done; exit 143"
    agent = rig.agent(
        f"trap '{words}' TERM; n=0; while :; do n=$((n + 1)); echo step $n/100000 loss 1; sleep 0.02; done"
    )
    eventually(lambda: rig.run()["step"] >= 5, "five steps")
    rig.call(f"/api/runs/{rig.run_id}/drain", expected_epoch=1, why="maintenance")
    assert agent.wait() == 143
    lines = rig.lines()
    assert lines == (rig.folder / "logs/e00000001.log").read_text().splitlines()
    assert lines[-500:] == [f"last words {n}" for n in range(1, 501)]


def test_force_acquire_stops_the_old_holder_and_a_new_one_takes_over(rig: Rig) -> None:
    old = rig.agent(mock("--steps", 500, "--step-seconds", 0.05, "--save-every", 4))
    eventually(lambda: rig.run()["newest_step"] >= 4, "a checkpoint")
    rig.call(f"/api/runs/{rig.run_id}/force-acquire", expected_epoch=1, why="that pod is too slow")
    published = rig.checkpoints()
    assert old.wait() == 75
    assert set(rig.checkpoints()) <= set(published) | {rig.run()["newest_checkpoint"]}
    new = rig.agent(mock("--steps", 30, "--step-seconds", 0.01), worker="pod-b")
    assert new.wait() == 0, new.says()
    attempts = rig.run()["attempts"]
    assert attempts[0]["outcome"] == "superseded"
    assert attempts[-1]["outcome"] == "completed"
    assert attempts[-1]["epoch"] > 2


def test_a_holder_that_was_replaced_leaves_its_successors_state_alone(rig: Rig) -> None:
    old = rig.agent(mock("--steps", 500, "--step-seconds", 0.05))
    eventually(lambda: rig.run()["step"] >= 2, "two steps")
    old.process.send_signal(signal.SIGSTOP)
    # It saves nothing, so that it does not write over what the old one must not have written.
    new = rig.agent(mock("--steps", 2000, "--step-seconds", 0.05, "--save-every", 100_000), worker="pod-b")
    new.heard("trainer started")
    old.process.send_signal(signal.SIGTERM)
    old.process.send_signal(signal.SIGCONT)
    assert old.wait() in (75, 143)
    told = rig.told()
    assert told["status"] == "RUNNING"
    assert "exit_code" not in told
    new.process.send_signal(signal.SIGTERM)
    new.wait()


def test_how_it_ended_is_kept_for_a_commander_that_is_away_for_a_while(
    tmp_path: Path,
) -> None:
    with rigged(tmp_path) as rig:
        agent = rig.agent(
            "echo step 1/2 loss 1; while ! test -e $RELAY_RUN_ROOT/go; do sleep 0.05; done; echo step 2/2 loss 1"
        )
        eventually(lambda: rig.run()["step"] >= 1, "a step")
        rig.kill_commander()
        (rig.folder / "go").touch()
        agent.heard("waiting up to 300 s for the commander")
        agent.process.send_signal(signal.SIGTERM)
        agent.heard("SIGTERM")
        assert rig.told()["status"] == "COMPLETED", "it had ended by then"
        rig.start_commander()
        assert agent.wait() == 0, agent.says()
        assert rig.run()["status"] == "completed"


def test_a_reason_that_counts_seconds_down_is_said_once_a_minute() -> None:
    clock, said = FakeClock(), list[str]()
    denied = _Denials(said.append, clock)
    for left in range(269, 239, -1):
        denied.tell("r", f"the state was restored: whoever held a run before has {left} s to come back")
        clock.advance(1)
    assert len(said) == 1
    denied.tell("r", "pod-a holds it, its lease runs 30 s")
    denied.tell("r", "pod-a holds it, its lease runs 29 s")
    assert len(said) == 2
    clock.advance(60)
    denied.tell("r", "pod-a holds it, its lease runs 28 s")
    assert [line[:20] for line in said[1:]] == ["waiting for run r: p"] * 2
