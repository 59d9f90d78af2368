"""What an agent noted on its pod: a note that was altered stops nobody, and one that died early leaves its reports."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from agent_rig import eventually, mock, rigged
from msgspec.structs import replace
from test_agent_pod import note

from relay_agent.pod.pod import NOTE, Pod, read_note, unread
from relay_agent.pod.takeover import backlog, look
from relay_agent.spool.spool import Spool
from relaytui.wire.clock import SystemClock
from relaytui.wire.reports import Event


def left(root: Path, *, started: bool) -> tuple[Pod, Path]:
    """A pod and the folder of an attempt whose agent is gone."""
    pod = Pod(root, SystemClock())
    folder = pod.make_folder("run-1", 1)
    pod.write(folder, replace(note(pod, folder), started=started))
    return pod, folder


def test_every_single_bit_of_a_note_counts(tmp_path: Path) -> None:
    _, folder = left(tmp_path, started=True)
    data = (folder / NOTE).read_bytes()
    for place in range(0, len(data), 3):
        (folder / NOTE).write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        assert read_note(folder) is None
    (folder / NOTE).write_bytes(data.replace(b'"epoch":1', b'"epoch":2'))
    assert (
        unread(folder) == "what an earlier agent noted there is damaged: it is not as it was written: its sum differs"
    )
    (folder / NOTE).write_bytes(data[: data.index(b',"sum":"')] + b"}")
    assert read_note(folder) is not None, "as before there were sums"


def test_a_note_of_a_grant_is_nothing_to_take_over_and_delivers_its_reports(tmp_path: Path) -> None:
    pod, folder = left(tmp_path, started=False)
    spool = Spool("run-1", 1, "t" * 43, folder)
    spool.state.append(Event(1.7e9, "resume.cold", "no checkpoint"))
    spool.close()
    assert look(pod, "run-1") is None
    (found,) = backlog(pod, "run-1", None)
    assert not found.empty
    other, _ = left(tmp_path / "other", started=True)
    assert look(other, "run-1") is not None


def test_that_there_never_was_a_note_is_said_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = Pod(tmp_path, SystemClock())
    folder = pod.make_folder("run-1", 1)
    (folder / "state.0000000001.log").write_bytes(b"x")
    assert backlog(pod, "run-1", None) == []
    said = capsys.readouterr().err
    assert "is set aside: an earlier agent died there before it noted whose attempt it was" in said
    assert not folder.exists()


def test_a_note_whose_token_was_altered_costs_no_lease(tmp_path: Path) -> None:
    with rigged(tmp_path) as rig:
        command = mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 10)
        first = rig.agent(command, ORPHAN_TIMEOUT="60", RELAY_STOP_GRACE="5")
        eventually(lambda: rig.run()["newest_step"], "a checkpoint")
        first.process.kill()
        first.process.wait()
        file = rig.pod_folder() / NOTE
        data = file.read_bytes()
        token = data.index(b'"token":"') + 9
        file.write_bytes(data[:token] + bytes([data[token] ^ 1]) + data[token + 1 :])
        second = rig.agent(command, ORPHAN_TIMEOUT="0", RELAY_STOP_GRACE="5")
        second.heard("is set aside: what an earlier agent noted there is damaged")
        second.heard("trainer started")
        assert "not_holder" not in second.says()
        assert "the next agent on this pod delivers it" not in second.says()
        second.process.send_signal(signal.SIGTERM)
        second.wait()
        resumed = [event for event in rig.events() if event["event"] == "resume.checkpoint"]
        assert resumed, "it goes on from what the other one saved when it was stopped"


@pytest.mark.parametrize("plant", ["fifo", "link", "folder"])
def test_a_spool_file_that_is_no_plain_file_is_said_and_set_aside(tmp_path: Path, plant: str) -> None:
    path = tmp_path / "telemetry.0000000001.s0000000000000001.log"
    if plant == "fifo":
        os.mkfifo(path)
    elif plant == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    said: list[str] = []
    spool = Spool("run-1", 1, "t" * 43, tmp_path, trouble=said.append)
    spool.load()
    assert said == [f"{path} is set aside: it is no plain file; what the spool had there is lost"]
    assert not os.path.lexists(path)
    spool.load()
    assert len(said) == 1


def test_a_telemetry_spool_that_is_lost_tells_nothing_twice(tmp_path: Path) -> None:
    with rigged(tmp_path) as rig:
        command = mock("--steps", 80, "--step-seconds", 0.03, "--save-every", 10)
        first = rig.agent(command, ORPHAN_TIMEOUT="60")
        eventually(lambda: rig.run()["newest_step"] >= 20, "checkpoints")
        first.process.kill()
        first.process.wait()
        for path in rig.pod_folder().glob("telemetry.*"):
            path.unlink()
        second = rig.agent(command, ORPHAN_TIMEOUT="60")
        assert second.wait() == 0, second.says()
        told = [line.split()[1] for line in rig.lines() if line.startswith("step ")]
        assert told == [f"{n}/80" for n in range(1, 81)]
