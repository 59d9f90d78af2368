"""slime's launchers: Relay's folders in slime's flags, stock scripts tamed, jobs stopped by id, endings told truly."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from agent_rig import LAUNCHERS, Rig, eventually
from slime_kit import BODY, Slime

sys.path.insert(0, str(LAUNCHERS))
import slime_flags
import slime_follow
import slime_ray
import slime_tame

sys.path.remove(str(LAUNCHERS))


@pytest.fixture
def slime(tmp_path: Path) -> Slime:
    return Slime(tmp_path)


def flags(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("flags "))


# -- from first to last ------------------------------------------------------------------------------------------


def test_a_stock_script_trains_saves_where_relay_looks_and_hurts_nobody(slime: Slime) -> None:
    code, output = slime.run(slime.whole)
    assert code == 0, output
    assert flags(output) == f"flags --num-rollout 5 --save {slime.saved} --save-interval 2 --load {slime.saved}"
    assert output.count("rollout/raw_reward") == 5
    assert (slime.saved / "latest_checkpointed_iteration.txt").read_text() == "4"
    assert not (slime.root / "real-kills").exists(), "its pkill never reached the machine"
    assert not slime.calls("stop"), "nor did its ray stop"
    for program in ("pkill -9 sglang", "pkill -9 ray", "pkill -9 python"):
        assert f"{program}: 0 of this attempt's processes got it" in output
    assert not slime.left(), "nothing is left of it"


def test_ray_is_this_attempts_own(slime: Slime) -> None:
    code, _ = slime.run(slime.stock)
    assert code == 0
    (start,) = slime.calls("start")
    assert "--num-gpus 8" in start
    assert "--node-ip-address 127.0.0.1" in start
    assert "8265" not in start
    assert "0.0.0.0" not in start, "whoever reaches a dashboard runs what they like"
    assert "--dashboard-host 127.0.0.1" in start
    (folder,) = re.findall(r"--temp-dir (\S+)", start)
    assert len(folder) < 40, "sockets lie below it, and their paths may have 107 letters"
    assert not Path(folder).exists()
    (submit,) = slime.calls("job submit")
    assert re.search(r"--submission-id relay-run-1-e3-[0-9a-f]{8} ", submit)
    assert '--runtime-env-json={"env_vars": {"A": "b c"}}' in submit


def test_two_attempts_live_beside_each_other(slime: Slime, tmp_path: Path) -> None:
    other = Slime(tmp_path / "other")
    first = slime.start(slime.stock, FAKE_ROLLOUT_SECONDS=0.3)
    eventually(lambda: slime.calls("job submit"), "the first one's job")
    assert other.run(other.whole)[0] == 0
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 0, output
    assert output.count("rollout/raw_reward") == 5


@pytest.mark.parametrize(("mode", "script"), [("rl", "train.py"), ("sft", "train_async.py")])
def test_flags_alone_are_those_of_slimes_own_script(slime: Slime, mode: str, script: str) -> None:
    slime.train.rename(slime.root / script)
    code, output = slime.run("--num-rollout", 2, mode=mode, SLIME_NUM_GPUS=4, SLIME_SAVE_INTERVAL=1)
    assert code == 0, output
    assert flags(output).startswith("flags --num-rollout 2 --save ")
    assert "--save-interval 1" in flags(output)
    assert "--num-gpus 4" in slime.calls("start")[0]
    assert sorted(path.name for path in slime.saved.glob("iter_*")) == ["iter_0000000", "iter_0000001"]


# -- resuming ----------------------------------------------------------------------------------------------------


def test_it_goes_on_with_the_next_rollout_and_its_data(slime: Slime) -> None:
    published = slime.published(2)
    code, output = slime.run(slime.stock, RELAY_RESUME_FROM=published)
    assert code == 0, output
    assert flags(output).endswith(f"--load {published} --start-rollout-id 3")
    assert "load metadata from" in output
    assert re.findall(r"- rollout (\d+)", output) == ["3", "4"]
    assert not (slime.saved / "iter_0000002").exists(), "only what this attempt trained is saved by it"


def test_what_lacks_its_tracker_does_not_begin_anew_without_a_word(slime: Slime) -> None:
    published = slime.published(2)
    (published / "latest_checkpointed_iteration.txt").unlink()
    code, output = slime.run(slime.stock, RELAY_RESUME_FROM=published)
    assert code == 0, output
    assert re.findall(r"- rollout (\d+)", output) == ["3", "4"]
    assert "load metadata from" in output
    found = slime_flags.checkpoint_in(published / "iter_0000002")
    assert found is not None
    assert found == slime_flags.checkpoint_in(published)._replace(folder=found.folder)  # type: ignore[union-attr]


@pytest.mark.parametrize("names", [[], ["model.safetensors"], ["iter_0000001", "iter_0000002"], ["iter_1"]])
def test_what_is_no_checkpoint_of_slimes_is_refused(slime: Slime, names: list[str]) -> None:
    given = slime.root / "published"
    given.mkdir()
    for name in names:
        (given / name).mkdir()
    code, output = slime.run(slime.stock, RELAY_RESUME_FROM=given)
    assert code == 3
    assert str(given) in output
    assert not slime.calls(), "Ray was not even started"


def test_a_dataset_state_that_is_missing_is_said(slime: Slime, capsys: pytest.CaptureFixture[str]) -> None:
    load = {"from": str(slime.published(2)), "rollout": 2}
    slime_ray._say_without_data(load)
    assert capsys.readouterr().err == ""
    slime_ray._say_without_data(load | {"rollout": 3})
    assert "has no rollout/global_dataset_state_dict_3.pt: the data begins anew" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "load", "expected"),
    [
        ("--save /a --load /a/", {}, "--save S --save-interval 20 --load S"),
        (
            "--save=/a --load=/b",
            {},
            "--load=/b --save S --save-interval 20",
        ),  # weights to start from, as the script says
        ("--a 1", {}, "--a 1 --save S --save-interval 20 --load S"),
        ("--save-interval 3 --save-hf /h", {}, "--save-hf /h --save S --save-interval 3 --load S"),
        (
            "--load /b --ckpt-step 4 --start-rollout-id=9 --x",
            {"from": "/p", "rollout": 19},
            "--x --save S --save-interval 20 --load /p --start-rollout-id 20",
        ),
    ],
)
def test_relays_folders_take_the_place_of_the_scripts(words: str, load: dict[str, object], expected: str) -> None:
    wish = {"save": "S", "load": load, "interval": ""}
    assert " ".join(slime_flags.as_relay_wishes(words.split(), wish)) == expected


# -- endings -----------------------------------------------------------------------------------------------------


def test_the_exit_code_is_the_jobs_own_whatever_the_script_makes_of_it(slime: Slime) -> None:
    """Ray's client knows only 1."""
    script = slime.script(more='|| echo "it ended with $?"\nexit 0')
    ended, output = slime.run(script, FAKE_CRASH_AT=2, FAKE_EXIT=134)
    assert ended == 134
    assert "it ended with 134" in output
    assert not slime.left()


def test_no_rollout_is_no_success(slime: Slime) -> None:
    published = slime.published(4)
    code, output = slime.run(slime.stock, RELAY_RESUME_FROM=published)
    assert code == 81
    assert "it resumes after rollout 4, and --num-rollout is 5; nothing is left to do" in output
    assert not slime.calls("job submit"), "no GPU is held for it"


def test_nor_is_a_job_that_made_none_and_ended_well(slime: Slime) -> None:
    code, output = slime.run(slime.stock, ROLLOUTS=0)
    assert code == 81
    assert "without a rollout" in output


def test_nor_is_a_script_that_submits_no_job(slime: Slime) -> None:
    assert slime.run(slime.script(text="#!/bin/bash\necho hello\n"))[0] == 82
    assert slime.run(slime.script(text="#!/bin/bash\nexit 4\n"))[0] == 4


def test_somebody_elses_ray_is_followed_by_its_client_alone(slime: Slime) -> None:
    """And where that stops following, what it prints again from the beginning is printed once."""
    (slime.ray_home / "logs" / "session_latest" / "logs").mkdir(parents=True)
    (slime.ray_home / "cluster-8265").write_text(str(slime.ray_home / "logs"))
    script = slime.script(text="".join(line for line in BODY.splitlines(True) if "ray start" not in line))
    code, output = slime.run(script, FAKE_FOLLOW_BYTES=150, FAKE_ROLLOUT_SECONDS=0.1)
    assert code == 0, output
    assert re.findall(r"- rollout (\d+)", output) == ["0", "1", "2", "3", "4"]
    assert output.count("flags ") == 1
    assert "--address http://127.0.0.1:8265" in slime.calls("job submit")[0]
    assert not slime.calls("start")
    assert slime.run(script)[0] == 81, "what was saved before is not what this one made"
    failed = slime.run(script, RELAY_OUTPUT_DIR=slime.root / "other", FAKE_CRASH_AT=1, FAKE_EXIT=7)
    assert failed[0] == 1, "that is all that it tells"


def test_a_job_that_was_killed_has_failed(slime: Slime) -> None:
    process = slime.start(slime.stock, FAKE_ROLLOUT_SECONDS=30)
    eventually(lambda: list(slime.ray_home.glob("job-*/pid")), "a job that runs")
    (folder,) = slime.ray_home.glob("job-*")
    eventually(lambda: (folder / "log").exists() and "flags" in (folder / "log").read_text(), "its first line")
    os.killpg(int((folder / "pid").read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 137, output
    assert "the job's driver was killed" in output


@pytest.mark.parametrize(("said", "code"), [([None] * 3, 1), (["PENDING", "FAILED"], 1), (["STOPPED"], 143)])
def test_a_job_that_never_begins_has_failed(
    slime: Slime, monkeypatch: pytest.MonkeyPatch, said: list[str | None], code: int
) -> None:
    monkeypatch.setattr(slime_follow, "ASK", -1.0)
    nothing = slime.root / "nothing"
    answers = iter(said)
    ended = slime_follow.own_job(nothing, nothing, nothing, lambda: next(answers), slime_follow.Output())
    assert ended == code


def test_sigterm_stops_the_job_by_its_id_and_leaves_nothing(slime: Slime) -> None:
    process = slime.start(slime.stock, FAKE_ROLLOUT_SECONDS=0.05, ROLLOUTS=5000)
    eventually(lambda: (slime.saved / "latest_checkpointed_iteration.txt").exists(), "a save")
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    (stop,) = slime.calls("job stop")
    (submit,) = slime.calls("job submit")
    assert stop.split()[-1] in submit
    assert not slime.left()


def test_a_job_is_stopped_without_the_client_where_ray_answers(tmp_path: Path) -> None:
    """The client takes seconds to load, and a pod that is taken away has few."""
    asked: list[str] = []

    class Ray(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Ray) as server:
        where = ["--address", f"http://127.0.0.1:{server.server_address[1]}"]
        (tmp_path / "job.relay-run-1").write_text(json.dumps(where))
        (tmp_path / "job.relay-run-0").write_text(json.dumps(where))
        (tmp_path / "exit.relay-run-0").write_text("0")
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert slime_ray.stop_jobs(tmp_path)
        thread.join()
    assert asked == ["/api/jobs/relay-run-1/stop"], "and none that has ended"


def test_sigterm_before_there_is_a_job(slime: Slime) -> None:
    process = slime.start(slime.script(text="#!/bin/bash\ntouch started\nsleep 600\n"))
    eventually(lambda: (slime.root / "started").exists(), "the script")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 143
    process.stdout.close()  # type: ignore[union-attr]
    assert not slime.left()


# -- pkill -------------------------------------------------------------------------------------------------------

KILLS = (
    ("pkill -9 sleep", 1, 0),
    ("pkill -f sglang", 1, 0),
    ("pkill --signal KILL -x sleep", 1, 0),
    ("killall -9 sleep", 1, 0),
    ("pkill -9 nothing-here", 0, 1),
    ("pkill -u root sleep", None, 2),
    ("pkill -FOO sleep", None, 2),
    ("PATH=$HOME; pkill -9 sleep", 1, 0),  # bash knows functions before it looks at PATH
)


def test_pkill_reaches_this_attempt_and_nobody_else(slime: Slime) -> None:
    lines = [f"""bash -c 'exec -a sglang-worker sleep 600' & {kill}; echo "code $?"; kill $!""" for kill, _, _ in KILLS]
    wait = "until read name < /proc/$!/comm && test $name = sleep; do :; done"
    script = "#!/bin/bash\n" + "\n".join(line.replace(" & ", f" & {wait}; ") for line in lines)
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        _, output = slime.run(slime.script(text=script))
        assert re.findall(r"code (\d)", output) == [str(code) for _, _, code in KILLS], output
        for _, reached, _ in KILLS:
            words = "nothing is done" if reached is None else f"{reached} of this attempt's processes got it"
            assert words in output
        assert bystander.poll() is None
        assert not (slime.root / "real-kills").exists()
        assert not slime.left()
    finally:
        bystander.kill()
        bystander.wait()


def test_whoever_asks_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that calls pkill, and the launcher above it."""
    state = tmp_path / "state"
    state.mkdir()
    table = {1: 0, 100: 1, 200: 100, 300: 200, 301: 200, 302: 301}
    monkeypatch.setattr(slime_tame, "ours", lambda state: {pid: (table[pid], "python") for pid in (200, 300, 301, 302)})
    monkeypatch.setattr(slime_tame, "_parent", lambda pid: table[pid])
    monkeypatch.setattr(os, "getpid", lambda: 300)
    sent: list[int] = []
    monkeypatch.setattr(slime_tame, "send", lambda pids, number: sent.extend(pids) or len(pids))
    assert slime_tame.kill_by_name(state, "pkill", ["-9", "python"]) == 0
    assert sent == [301, 302]


UNSHARE = shutil.which("unshare") or "unshare"


def _namespaces() -> bool:
    try:
        return (
            subprocess.run([UNSHARE, "-pf", "--mount-proc", "true"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


@pytest.mark.skipif(not shutil.which("pkill") or not _namespaces(), reason="no pid namespaces")
def test_a_pkill_called_by_its_whole_path_spares_the_launcher(slime: Slime) -> None:
    """In a pid namespace of its own, which is seen to first: outside of one it would end all Python of this machine."""
    inside = f"""
test "$(cat /proc/1/comm)" = bash && test $$ = 1 || exit 99
{LAUNCHERS}/slime_rl.sh {slime.script(text=BY_PATH % shutil.which("pkill"))}
"""
    done = subprocess.run(
        [UNSHARE, "-pf", "--mount-proc", slime.bin / "bash", "-c", inside + "exit $?"],
        env=slime.env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "others: 137" in done.stdout
    assert done.stdout.count("rollout/raw_reward") == 5


BY_PATH = """#!/bin/bash
test "$(cat /proc/1/comm)" = bash || exit 99
python3 -c 'import time; time.sleep(600)' &
other=$!
sleep 0.3
%s -9 python
wait $other
echo "others: $?"
set -e
ray start --head --dashboard-port=8265
ray job submit -- python3 $HOME/train.py --num-rollout 5
"""


# -- under an agent ----------------------------------------------------------------------------------------------


def test_under_an_agent_it_is_published_stopped_and_resumed(rig: Rig, tmp_path: Path) -> None:
    slime = Slime(tmp_path / "slime")
    variables = {"PATH": f"{slime.bin}:{os.environ['PATH']}", "FAKE_RAY": str(slime.ray_home), "MODE": "rl"}
    command = f'exec "$RELAY_LAUNCHERS/slime_rl.sh" {slime.stock}'
    first = rig.agent(None, SLIME_RL_CMD=command, ROLLOUTS="5000", FAKE_ROLLOUT_SECONDS="0.2", **variables)
    saved = eventually(lambda: rig.run()["newest_step"], "a checkpoint on the volume")
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 143, first.says()
    assert slime.calls("job stop")
    assert not slime.left()
    saved = rig.run()["newest_step"]
    second = rig.agent(None, "pod-b", SLIME_RL_CMD=command, ROLLOUTS=str(saved + 3), **variables)
    assert second.wait() == 0, second.says()
    log = (rig.folder / "logs/e00000002.log").read_text()
    assert re.findall(r"- rollout (\d+)", log) == [str(saved + 1), str(saved + 2)]
    assert "load metadata from" in log
    assert rig.run()["status"] == "completed"
