"""`relay-tui` from a shell: stdout is data, stderr is words, exit codes are an interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from cli_kit import RELAY, Served, clean_environment, relay
from ports import free_port

from relaytui.cli.lium import unreachable
from relaytui.cli.serve import exposed, weak
from relaytui.commander.settings import CommanderSettings


def test_version_and_help_are_quick_and_load_no_screen() -> None:
    probe = (
        "import sys; sys.argv=['relay-tui','--version']\n"
        "from relaytui.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "loaded = {'textual', 'aiohttp', 'huggingface_hub', 'sqlite3'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("relay-tui 0.")


def test_help_teaches_commands_and_exit_codes() -> None:
    words = relay("--help").stdout
    for word in ("serve", "status", "runs", "events", "force-acquire", "drain", "print-lium-command", "demo", "77"):
        assert word in words


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "status",
        "runs",
        "workers",
        "events",
        "log",
        "force-acquire",
        "drain",
        "cancel",
        "save",
        "sync",
        "requeue",
        "stop",
        "token",
        "print-lium-command",
        "demo",
    ],
)
def test_every_command_has_help(command: str) -> None:
    done = relay(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage:")


def test_status_runs_workers_events_print_data(served: Served) -> None:
    state = ("--state", served.state)
    status = json.loads(relay("status", *state, "--json").stdout)
    assert status["url"] == served.url
    assert status["runs"] == {"running": 1}
    (run,) = json.loads(relay("runs", *state, "--json").stdout)["runs"]
    assert (run["run_id"], run["holder"], run["step"], run["epoch"]) == ("tiny", "pod-1", 7, 1)
    detail = json.loads(relay("runs", "tiny", *state, "--json").stdout)
    assert [attempt["worker"] for attempt in detail["attempts"]] == ["pod-1"]
    kinds = [event["kind"] for event in json.loads(relay("events", *state, "--json").stdout)["events"]]
    assert "lease.granted" in kinds
    table = relay("runs", *state).stdout
    assert table.splitlines()[0].split()[:3] == ["RUN", "STATUS", "HOLDER"]
    assert "tiny" in table
    assert relay("workers", *state, "--json").returncode == 0


def test_options_may_stand_before_the_command(served: Served) -> None:
    assert json.loads(relay("--state", served.state, "status", "--json").stdout)["url"] == served.url


def test_connect_takes_the_token_from_the_environment(served: Served, tmp_path: Path) -> None:
    token = relay("token", "operator", "--state", served.state).stdout.strip()
    elsewhere = ("--connect", served.url, "--state", tmp_path / "none")
    good = relay("status", *elsewhere, "--json", env=clean_environment(RELAY_TOKEN=token))
    assert json.loads(good.stdout)["url"] == served.url
    bad = relay("status", *elsewhere, env=clean_environment(RELAY_TOKEN="wrong" * 8))
    assert bad.returncode == 77
    assert bad.stdout == ""
    none = relay("status", *elsewhere)
    assert none.returncode == 77
    assert "RELAY_TOKEN" in none.stderr


def test_no_commander_is_said_with_its_own_code(tmp_path: Path) -> None:
    done = relay("status", "--state", tmp_path)
    assert done.returncode == 69
    assert f"`relay-tui --state {tmp_path} serve`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_refused_connection_is_plain_words(tmp_path: Path) -> None:
    port = free_port()
    done = relay(
        "status",
        "--connect",
        f"http://127.0.0.1:{port}",
        "--state",
        tmp_path,
        env=clean_environment(RELAY_TOKEN="t" * 64),
    )
    assert done.returncode == 69
    assert "(connection refused)" in done.stderr


def test_stop_ends_the_commander_of_a_folder(tmp_path: Path) -> None:
    commander = Served(tmp_path / "state")
    status = json.loads(relay("status", "--state", commander.state, "--json").stdout)
    assert status["pid"] == commander.process.pid
    done = relay("stop", "--state", commander.state)
    assert done.returncode == 0, done.stderr
    commander.process.communicate(timeout=10)
    assert commander.process.returncode == 0
    assert relay("stop", "--state", commander.state).returncode == 69


def test_a_run_that_failed_is_queued_again_on_a_word(tmp_path: Path) -> None:
    commander = Served(tmp_path / "state")
    try:
        state = ("--state", commander.state)
        grant = commander.call("/api/lease/acquire", {"worker_id": "pod-1", "run_id": "broken"})
        commander.call(
            "/api/job/report", {"lease_token": grant["lease_token"], "run_id": "broken", "step": 3, "status": "FAILED"}
        )
        refused = relay("drain", "broken", *state, stdin="y\n")
        assert refused.returncode == 75
        assert "nothing to drain" in refused.stderr
        again = relay("requeue", "broken", "--why", "mended", "--json", *state, stdin="y\n")
        assert json.loads(again.stdout)["run"]["status"] == "queued", again.stderr
        twice = relay("requeue", "broken", *state, stdin="y\n")
        assert twice.returncode == 75
        kinds = [event["kind"] for event in json.loads(relay("events", *state, "--json").stdout)["events"]]
        assert "run.requeued" in kinds
    finally:
        commander.stop()


def test_a_queued_run_is_cancelled_on_a_word_and_taken_back_on_another(tmp_path: Path) -> None:
    commander = Served(tmp_path / "state")
    try:
        state = ("--state", commander.state)
        grant = commander.call("/api/lease/acquire", {"worker_id": "pod-1", "run_id": "wrong"})
        deaf = relay("save", "wrong", *state)
        assert (deaf.returncode, deaf.stdout) == (75, "")
        assert relay("sync", "wrong", *state).stderr == deaf.stderr
        assert "takes no orders" in deaf.stderr
        commander.call(
            "/api/job/report",
            {"lease_token": grant["lease_token"], "run_id": "wrong", "step": 3, "status": "PREEMPTED"},
        )
        assert relay("cancel", "wrong", *state, stdin="n\n").returncode == 130
        idle = relay("save", "wrong", *state)
        assert (idle.returncode, idle.stderr.count("\n")) == (75, 1)
        done = relay("cancel", "wrong", "--why", "wrong data", *state, stdin="y\n")
        assert (done.returncode, done.stdout) == (0, "")
        assert "wrong is queued, held by nobody" in done.stderr
        assert "no agent gets it again; requeue takes that back" in done.stderr
        assert done.stderr.endswith("wrong is cancelled\n")
        twice = relay("cancel", "wrong", *state, stdin="y\n")
        assert twice.returncode == 75
        for refused in (twice, relay("save", "wrong", *state), relay("sync", "wrong", *state)):
            assert refused.returncode == 75
            assert f"`relay-tui --state {commander.state} requeue wrong` queues it again" in refused.stderr
        again = relay("requeue", "wrong", "--yes", "--expected-epoch", "1", "--json", *state)
        assert json.loads(again.stdout)["run"]["status"] == "queued"
        plain = relay("cancel", "wrong", "--yes", "--expected-epoch", "1", "--json", *state)
        assert json.loads(plain.stdout)["run"]["status"] == "cancelled"
        assert json.loads(plain.stdout)["order_id"] is None
        assert relay("save", "nothing", *state).returncode == 1
    finally:
        commander.stop()


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "nothing"),
        ("runs", "nothing", "--json"),
        ("log", "nothing"),
        ("log", "nothing", "--epoch", "1"),
        ("log", "nothing", "--json"),
        ("events", "nothing"),
        ("events", "nothing", "--after", "0", "--json"),
        ("events", "--run", "nothing"),
        ("artifacts", "list", "nothing"),
        ("artifacts", "list", "nothing", "--json"),
        ("artifacts", "attach", "nothing", __file__, "--name", "x"),
        *((act, "nothing") for act in ("save", "sync", "drain", "cancel", "requeue", "force-acquire")),
        *((act, "nothing", "--yes", "--expected-epoch", "1") for act in ("drain", "cancel", "requeue")),
        ("force-acquire", "nothing", "--yes", "--expected-epoch", "1"),
    ],
)
def test_an_unknown_run_is_one_line(served: Served, words: tuple[str, ...]) -> None:
    done = relay(*words, "--state", served.state)
    assert done.returncode == 1
    assert done.stderr == f"relay-tui: no run nothing. see `relay-tui --state {served.state} runs`\n"
    assert done.stdout == ""


@pytest.mark.parametrize("act", ["fetch", "verify", "delete"])
def test_an_unknown_artifact_is_one_line(served: Served, act: str) -> None:
    for number, code, words in (("7", 1, "no artifact 7"), ("nothing", 2, "'nothing' is not a plain whole number")):
        done = relay("artifacts", act, number, "--state", served.state)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
        assert words in done.stderr


def test_drain_and_force_ask_first_and_hold_to_the_epoch(served: Served) -> None:
    state = ("--state", served.state)
    asked = relay("force-acquire", "tiny", *state, stdin="n\n")
    assert asked.returncode == 130
    assert "pod-1" in asked.stderr  # who loses it is said before the question
    assert "that one takes up" in asked.stderr, "what it has saved whole is not lost"
    assert "are lost" not in asked.stderr
    other = relay("force-acquire", "tiny", *state, stdin="tiny-2\n")
    assert other.returncode == 130, "another run's name is no yes"
    needs = relay("drain", "tiny", "--yes", *state)
    assert needs.returncode == 2
    stale = relay("drain", "tiny", "--yes", "--expected-epoch", "0", *state)
    assert stale.returncode == 75
    deaf = relay("drain", "tiny", "--yes", "--expected-epoch", "1", *state)
    assert deaf.returncode == 75
    assert "takes no orders" in deaf.stderr  # a worker of the original's kind cannot hear one
    forced = relay("force-acquire", "tiny", "--pod-gone", "--why", "going home", "--json", *state, stdin="y\n")
    assert json.loads(forced.stdout)["epoch"] == 2
    (run,) = json.loads(relay("runs", *state, "--json").stdout)["runs"]
    assert run["status"] == "queued"
    events = json.loads(relay("events", "tiny", *state, "--json").stdout)["events"]
    assert any("going home" in json.dumps(event) for event in events)


def test_the_name_of_the_run_is_a_yes(tmp_path: Path) -> None:
    """As it is in the dashboard, which wants it typed."""
    commander = Served(tmp_path / "state")
    try:
        commander.call("/api/lease/acquire", {"worker_id": "pod-1", "run_id": "tiny"})
        forced = relay("force-acquire", "tiny", "--json", "--state", commander.state, stdin="tiny\n")
        assert forced.returncode == 0, forced.stderr
        assert json.loads(forced.stdout)["epoch"] == 2
    finally:
        commander.stop()


def test_the_state_folder_is_for_its_owner_alone(served: Served) -> None:
    assert stat.S_IMODE(served.state.stat().st_mode) == 0o700
    for path in served.state.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


def test_a_second_commander_names_the_first(served: Served) -> None:
    done = relay("serve", "--port", "0", "--state", served.state)
    assert done.returncode == 74
    assert str(served.process.pid) in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        done = relay("serve", "--port", str(port), "--state", tmp_path / "state")
    assert done.returncode == 69
    assert not (tmp_path / "state").exists()
    assert str(port) in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (("--host", "0.0.0.0"), {}),
        (("--host", "10.255.255.254"), {"RELAY_SHARED_SECRET": "s" * 20, "RELAY_TLS_PROXY": "1"}),
        (("--host", "a..b"), {"RELAY_SHARED_SECRET": "s" * 20, "RELAY_TLS_PROXY": "1"}),
        (("--lease-seconds", "nan"), {}),
        ((), {"RELAY_LEASE_SECONDS": "ten"}),
    ],
)
def test_a_serve_that_cannot_be_leaves_no_folder(
    arguments: tuple[str, ...], variables: dict[str, str], tmp_path: Path
) -> None:
    done = relay(
        "serve", "--port", "0", "--state", tmp_path / "new" / "state", *arguments, env=clean_environment(**variables)
    )
    assert done.returncode in (2, 69)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("secret", "warned"), [("hunter2", True), ("s" * 15, True), ("s" * 16, False), (None, False)])
def test_a_secret_that_may_be_guessed_is_said(secret: str | None, warned: bool) -> None:
    said = weak(secret)
    assert bool(said) == warned
    if secret == "hunter2":
        assert "RELAY_SHARED_SECRET has 7 characters" in said
        assert "relay-tui token worker" in said
        assert "\n" not in said
        assert "hunter2" not in said


def test_serve_says_that_it_listens_beyond_this_machine(tmp_path: Path) -> None:
    secret = {"RELAY_SHARED_SECRET": "s" * 32}
    beyond = Served(tmp_path / "a", RELAY_HOST="0.0.0.0", RELAY_TLS_PROXY="1", **secret)
    port = beyond.url.rpartition(":")[2]
    said = f"it listens on 0.0.0.0 port {port}, beyond this machine and without TLS: let only the proxy reach it"
    assert said in beyond.stop()
    assert "beyond this machine" not in Served(tmp_path / "b", **secret).stop()


@pytest.mark.parametrize(("host", "said"), [("127.0.0.2", False), ("::1", False), ("::", True), ("10.0.0.7", True)])
def test_what_is_beyond_this_machine(host: str, said: bool, tmp_path: Path) -> None:
    settings = CommanderSettings(state=tmp_path, host=host)
    assert bool(exposed(settings, "http://127.0.0.1:8080")) == said


def test_serve_says_it_once(tmp_path: Path) -> None:
    commander = Served(tmp_path / "state", RELAY_SHARED_SECRET="hunter2")  # this machine alone: a tunnel reaches it
    assert commander.stop().count("RELAY_SHARED_SECRET has 7 characters") == 1
    (tmp_path / "state" / "key").unlink()
    said = Served(tmp_path / "state", "--new-key").stop()
    assert said.count("new worker token") == 1
    assert "WARNING" not in said


def test_a_stranger_on_the_port_gets_no_token(tmp_path: Path) -> None:
    """The folder names an address where somebody else sits now: he hears a challenge and nothing more."""
    commander = Served(tmp_path / "state")
    port = int(commander.url.rpartition(":")[2])
    commander.process.kill()  # without taking its address back
    commander.process.communicate(timeout=10)
    token = relay("token", "operator", "--state", commander.state).stdout.strip()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        stranger.settimeout(20)
        asking = programs.Popen(
            [RELAY, "status", "--state", commander.state],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        connection, _ = stranger.accept()
        with connection:
            heard = connection.recv(65_536).decode()
            body = '{"ok":true,"name":"relay","version":"0.1.0","proof":{"operator":"' + "0" * 64 + '"}}'
            answer = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            connection.sendall(answer.encode())
        _, words = asking.communicate(timeout=20)
    assert asking.returncode == 77, words
    assert "X-Relay-Challenge" in heard
    assert token not in heard
    assert "Authorization" not in heard


def test_a_state_that_is_a_file_or_no_database(tmp_path: Path) -> None:
    file = tmp_path / "commander_state.json"
    file.write_text("{}")
    done = relay("serve", "--port", "0", "--state", file)
    assert done.returncode == 74
    assert "folder" in done.stderr

    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "relay.db").write_bytes(b"this is not a database" * 1000)
    done = relay("serve", "--port", "0", "--state", folder)
    assert done.returncode == 74
    assert "relay.db" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (folder / "relay.db").read_bytes().startswith(b"this is not")  # nothing was lost


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PORT", "http"), ("PORT", "70000"), ("RELAY_LEASE_SECONDS", "ten"), ("RELAY_LEASE_SECONDS", "-1"),
     ("RELAY_CKPT_KEEP_LAST_N", "many"), ("RELAY_HF_PUSH_ON_IMPROVE", "maybe")],
)  # fmt: skip
def test_an_ill_typed_variable_is_named(variable: str, value: str, tmp_path: Path) -> None:
    done = relay("serve", "--state", tmp_path / "state", env=clean_environment(**{variable: value}))
    assert done.returncode == 2
    assert variable in done.stderr
    assert done.stderr.count("\n") == 1


def test_serve_stops_on_sigterm_and_sigint_within_seconds(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        commander = Served(tmp_path / "state")
        commander.process.send_signal(number)
        commander.process.communicate(timeout=5)
        assert commander.process.returncode == 0
        assert not (tmp_path / "state" / "commander.json").exists()


def test_a_locale_without_utf8_still_prints(served: Served) -> None:
    latin = clean_environment(LC_ALL="en_US.ISO-8859-1", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    done = subprocess.run(
        [RELAY, "runs", "--state", served.state], capture_output=True, timeout=60, check=False, env=latin
    )
    assert done.returncode == 0, done.stderr
    assert b"tiny" in done.stdout


# -- Lium ----------------------------------------------------------------------------------------------------------

LIUM = ("print-lium-command", "--commander-url", "https://relay.example.org", "--run-id", "tiny")


def test_the_lium_recipe_is_shell_that_keeps_the_secret_out_of_argv(tmp_path: Path) -> None:
    done = relay(*LIUM, "--template-id", "T 1", "--gpu", "H100", "--volume", "brave-fox", "--hf-repo", "me/model")
    assert done.returncode == 0
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "lium"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> calls\n[ "$1" != scp ] || cp "$3" copied\n')
    fake.chmod(0o755)
    secret = "s3cr3t 'with' \"quotes\" $HOME"
    env = clean_environment(
        RELAY_SHARED_SECRET=secret, HF_TOKEN="hf_x", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    )
    ran = subprocess.run(["bash", "-e"], input=done.stdout, text=True, cwd=tmp_path, env=env, check=False)
    assert ran.returncode == 0
    up, scp, start = (tmp_path / "calls").read_text().splitlines()
    assert "--template_id T 1" in up
    assert "--volume id:brave-fox" in up
    assert "--env" not in up
    assert scp.startswith("scp relay-pod ./relay-pod.env")
    assert start.endswith("exec relay-agent")
    assert secret not in up + scp + start + done.stdout
    assert not (tmp_path / "relay-pod.env").exists()
    shown = subprocess.run(
        ["bash", "-c", '. ./copied; printf %s "$RELAY_SHARED_SECRET|$RUN_ID|$HF_DRY_RUN|$COMMANDER_URL"'],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == f"{secret}|tiny|false|https://relay.example.org"
    assert "RELAY_L1_ROOT=/workspace" in done.stdout  # where a template of Lium's mounts its volume


@pytest.mark.parametrize("failing", ["up", "scp", "exec"])
def test_the_lium_recipe_leaves_no_secret_behind_where_a_step_fails(failing: str, tmp_path: Path) -> None:
    done = relay(*LIUM, "--template-id", "T", "--gpu", "H100")
    fake = tmp_path / "bin" / "lium"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ntest -e relay-pod.env && : >seen\n[ "$1" != {failing} ]\n')
    fake.chmod(0o755)
    env = clean_environment(RELAY_SHARED_SECRET="s" * 32, PATH=f"{fake.parent}:{os.environ['PATH']}")
    ran = subprocess.run(["bash", "-e"], input=done.stdout, text=True, cwd=tmp_path, env=env, check=False)
    assert ran.returncode != 0
    assert (tmp_path / "seen").exists()
    assert not (tmp_path / "relay-pod.env").exists()


def test_each_step_of_the_lium_recipe_can_be_run_by_itself(tmp_path: Path) -> None:
    """As data they are for whoever runs one after the other: the first one took the variables away with it."""
    steps = json.loads(relay(*LIUM, "--template-id", "T", "--gpu", "H100", "--json").stdout)["steps"]
    fake = tmp_path / "bin" / "lium"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\n[ "$1" != scp ] || test -e "$3"\n')
    fake.chmod(0o755)
    env = clean_environment(RELAY_SHARED_SECRET="s" * 32, PATH=f"{fake.parent}:{os.environ['PATH']}")
    for step in steps:
        subprocess.run(["bash", "-ec", step["command"]], cwd=tmp_path, env=env, check=True)
    assert not (tmp_path / "relay-pod.env").exists()


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://127.0.0.1:8096", True),
        ("https://localhost", True),
        ("http://[::1]:8096", True),
        ("http://0.0.0.0:8096", True),
        ("http://10.1.2.3:8096", False),
        ("https://localhost.example.org", False),
    ],
)
def test_an_address_of_this_machine_alone_is_no_address_for_a_pod(url: str, warned: bool) -> None:
    assert (f"{url} means the pod itself there: it needs a tunnel" in unreachable(url)) is warned


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--template-id", "T"), "--gpu"),
        (("--gpu", "H100"), "--image"),
        (("--gpu", "H100", "--image", "i", "--template-id", "T"), "--image"),
        (("--gpu", "H100", "--node", "n", "--image", "i"), "--node"),
        (("--node", "n", "--image", "i", "--count", "2"), "--count"),
        (("--node", "n", "--image", "i", "--ttl", "soon"), "--ttl"),
        (("--node", "n", "--image", "i", "--pod-name", "a/b"), "--pod-name"),
        (("--node", "n", "--image", "i", "--volume", "a b"), "--volume"),
        (("--node", "n", "--template-id", ""), "--template-id"),
        (("--node", "", "--image", "i"), "--node"),
        (("--node", "n", "--image", "--help"), "--image"),
        (("--node", "n", "--image", "i", "--commander-url", "http://["), "--commander-url"),
        (("--node", "n", "--image", "i", "--commander-url", "http://h:99999"), "--commander-url"),
        (("--node", "n", "--image", "i", "--pod-name", "all"), "--pod-name"),  # to lium, every pod there is
        (("--node", "n", "--image", "i", "--pod-name", "1"), "--pod-name"),  # to lium, a row of its last list
        (("--node", "n", "--image", "i", "--ttl", "0h"), "--ttl"),
        (("--node", "n", "--image", "i", "--l1-root", "mnt"), "--l1-root"),
        (("--node", "n", "--image", "i", "--hf-repo", "a b"), "--hf-repo"),
    ],
)
def test_the_lium_recipe_refuses_what_lium_would(arguments: tuple[str, ...], word: str) -> None:
    done = relay(*LIUM, *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("mode", ["sft", "rl"])
def test_the_lium_recipe_starts_the_trainer_that_was_named(mode: str, tmp_path: Path) -> None:
    pod = ("--template-id", "T", "--gpu", "H100", "--mode", mode)
    command = """exec python3 'my train.py' --name "it's" $HOME"""
    done = relay(*LIUM, *pod, "--command", command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "HF_" not in done.stdout, "nothing was said of the Hub"
    made, _, _ = done.stdout.partition("# rent the pod")
    shell = f'{made}. ./relay-pod.env; printf %s "$TRAIN_CMD|$SLIME_{mode.upper()}_CMD"'
    env = clean_environment(RELAY_SHARED_SECRET="s" * 32, SLIME_SFT_CMD="the image's", SLIME_RL_CMD="the image's")
    shown = subprocess.run(["bash", "-ec", shell], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{command}|", "what an image sets for a mode would come before it"
    bare = relay(*LIUM, *pod)
    assert "_CMD" not in bare.stdout
    assert bare.stderr == (
        "no --command: Relay's own small trainer runs there, unless the image sets TRAIN_CMD or "
        f"SLIME_{mode.upper()}_CMD\n"
    ), "what would run instead is said"


def test_the_lium_recipe_says_that_the_secret_is_short() -> None:
    for secret, warned in (("hunter2", True), ("s" * 16, False), ("", False)):
        done = relay(
            *LIUM,
            "--template-id",
            "T",
            "--gpu",
            "H100",
            "--command",
            "true",
            env=clean_environment(RELAY_SHARED_SECRET=secret),
        )
        assert done.returncode == 0
        assert ("has 7 characters" in done.stderr) == warned
        assert done.stderr.count("\n") == warned
        assert "hunter2" not in done.stdout + done.stderr
