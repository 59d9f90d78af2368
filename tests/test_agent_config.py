"""run.yaml and the environment: what is taken, and how what cannot be taken is refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay_agent.commands import cli
from relay_agent.config import KEYS, load
from relay_agent.trainer import command as trainer
from relay_agent.trainer.command import Launch, find_launch, pod_environment, refuse_too_large, trainer_environment
from relay_agent.volume.volume import RunFolder
from relaytui.wire.errors import RelayError
from relaytui.wire.messages import RunConfig

URL = {"COMMANDER_URL": "http://10.0.0.1:8080"}
ROOT = Path(__file__).resolve().parent.parent


def refused(environ: dict[str, str], config: Path | None = None) -> str:
    with pytest.raises(RelayError) as error:
        load(environ, config)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def test_defaults_are_the_originals() -> None:
    settings = load({**URL, "HOSTNAME": "pod-7"})
    assert (settings.run_id, settings.mode, settings.worker_id) == ("relay-run", "sft", "pod-7")
    assert (settings.hf_dry_run, settings.l1_root) == (True, Path("/mnt/relay"))
    assert load(URL).worker_id == "relay-worker"
    assert load({**URL, "HOSTNAME": "my host!"}).worker_id == "my-host-"


def test_the_environment_is_above_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("commander_url: http://file:1/\nRUN_ID: from-file\nMODE: rl\nHF_DRY_RUN: false\nHF_REPO:\n")
    settings = load({"RELAY_RUN_CONFIG": str(file), "RUN_ID": "from-env", "MODE": ""})
    assert (settings.commander_url, settings.run_id, settings.mode) == ("http://file:1", "from-env", "rl")
    assert settings.hf_dry_run is False
    assert settings.hf_repo == ""


def test_the_example_file_is_printed_and_the_help_says_how() -> None:
    printed, told = (CliRunner().invoke(cli, [words]) for words in ("example", "--help"))
    assert printed.output == (ROOT / "agent" / "run.example.yaml").read_text()
    assert "`relay-agent example` explains every key" in told.output


def test_the_example_file_is_valid_and_knows_every_key(tmp_path: Path) -> None:
    example = ROOT / "agent" / "run.example.yaml"
    load({}, example)
    text = example.read_text()
    for key in KEYS:
        assert key.name in text
    everything = tmp_path / "all.yaml"
    lines = (line.removeprefix("#") for line in text.splitlines() if line.startswith("#") and line[1:2].isupper())
    everything.write_text("\n".join(lines))
    load(URL, everything)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("COMANDER_URL: http://a:1", ["COMANDER_URL", "did you mean COMMANDER_URL"]),
        ("settle_secs: 3", ["settle_secs"]),
        ("COMMANDER_URL: http://a:1\ncommander_url: http://b:1", ["COMMANDER_URL is set twice"]),
        ("RUN_ID: 7", ["RUN_ID", "should be text; put it in quotes"]),
        ("RUN_ID: [a, b]", ["RUN_ID", "should be text"]),
        ("RUN_ID: a/b", ["RUN_ID", "a/b"]),
        ("RUN_ID: ..", ["RUN_ID"]),
        ("MODE: dpo", ["MODE", "sft or rl", "dpo"]),
        ("RETRIES: -1", ["RETRIES", "0 is none"]),
        ("RETRIES: 1.5", ["RETRIES", "a whole number up to 1000"]),
        ("RETRY_BACKOFF: soon", ["RETRY_BACKOFF", "a plain number of seconds"]),
        ("RETRY_ON: [crash, oom]", ["RETRY_ON", "should be one or more of these endings: ", "cuda_oom"]),
        ("NO_RETRY_ON: completed", ["NO_RETRY_ON", "these endings"]),
        ("NO_RETRY_ON: {crash: 1}", ["NO_RETRY_ON", "should be text"]),
        ("HF_DRY_RUN: maybe", ["HF_DRY_RUN", "true or false", "maybe"]),
        ("HF_DRY_RUN: 1", ["HF_DRY_RUN"]),
        ("RELAY_SETTLE_SECONDS: 10m", ["RELAY_SETTLE_SECONDS", "10m", "number of seconds"]),
        ("RELAY_STOP_GRACE: -1", ["RELAY_STOP_GRACE", "between"]),
        ("RELAY_STOP_GRACE: .inf", ["RELAY_STOP_GRACE"]),
        ("SAVE_SIGNAL: KILL", ["SAVE_SIGNAL", "USR1, USR2 or HUP"]),
        ("SAVE_SIGNAL: 10", ["SAVE_SIGNAL", "should be text"]),
        ("RELAY_STOP_GRACE: .nan", ["RELAY_STOP_GRACE"]),
        ("TARGET_STEPS: 1.5", ["TARGET_STEPS", "whole number"]),
        ("COMMANDER_URL: commander:8080", ["COMMANDER_URL", "http(s)://host"]),
        ("COMMANDER_URL: ftp://a", ["COMMANDER_URL"]),
        ("COMMANDER_URL: http://a:1/path", ["COMMANDER_URL"]),
        ("COMMANDER_URL: http://a:999999", ["COMMANDER_URL"]),
        ("- a\n- b", ["`KEY: value` lines, without a dash before them"]),
        ("STALL_STEP: 10m", ["it means: seconds without a new step before the trainer counts as stalled"]),
        ("a: b: c", ["is not YAML", "line 1"]),
        ("a: !!python/object/apply:os.system [id]", ["is not plain YAML"]),
        ("RUN_ID: \"a\\u0007b\"", ["RUN_ID", "control character"]),
        ("\x00", ["is not YAML"]),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: str, words: list[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    message = refused({} if "COMMANDER" in content else URL, file) if "COMMANDER" not in content else refused({}, file)
    assert str(file) in message
    for word in words:
        assert word in message


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    assert "does not exist" in refused({**URL, "RELAY_RUN_CONFIG": str(tmp_path / "no.yaml")})
    assert "cannot be read" in refused({**URL, "RELAY_RUN_CONFIG": str(tmp_path)})
    (tmp_path / "latin.yaml").write_bytes(b"RUN_ID: caf\xe9")
    assert "is not YAML" in refused(URL, tmp_path / "latin.yaml")


def test_crlf_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(b"\xef\xbb\xbfRUN_ID: windows\r\nMODE: rl\r\n")
    assert load(URL, file).run_id == "windows"


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\n\0", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n", b"\xc2\x85"]
)
def test_what_is_left_of_a_file_is_no_empty_one(tmp_path: Path, data: bytes) -> None:
    """Half of one that was written is not the wish for every default."""
    file = tmp_path / "run.yaml"
    file.write_bytes(data)
    assert f"{file} holds no `KEY: value` line" in refused(URL, file)


@pytest.mark.parametrize(
    "data", [b"", b"\n \r\n", b"# RUN_ID: a\n", b"\xef\xbb\xbf# a\n", "# a\n".encode("utf-16"), b"{}"]
)
def test_an_empty_file_and_one_of_comments_say_nothing(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(data)
    assert load(URL, file).run_id == "relay-run"


@pytest.mark.parametrize("words", ["cuda_oom, crash", "cuda_oom crash", "[cuda_oom, crash]", "cuda_oom,\n  crash"])
def test_endings_are_named_in_a_list_or_a_line(tmp_path: Path, words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"RETRY_ON: {words}\nRETRIES: 0\n")
    settings = load({**URL, "NO_RETRY_ON": "killed,"}, file)
    assert (settings.retry_on, settings.no_retry_on, settings.retries) == (("cuda_oom", "crash"), ("killed",), 0)


def test_secrets_are_trimmed_and_never_shown(tmp_path: Path) -> None:
    assert load({**URL, "RELAY_SHARED_SECRET": " s3cret\n"}).shared_secret == "s3cret"
    for bad in ("s3cret two", "s3cret\nX-Evil: 1", "s3crét"):
        message = refused({**URL, "RELAY_SHARED_SECRET": bad})
        assert "RELAY_SHARED_SECRET" in message
        assert "s3cr" not in message
    assert "user and password" in (message := refused({"COMMANDER_URL": "http://me:hunter2@a:1"}))
    assert "s3cret" not in repr(load({**URL, "RELAY_SHARED_SECRET": "s3cret"}))


def test_no_commander_is_said(tmp_path: Path) -> None:
    assert "COMMANDER_URL is not set" in refused({})


@pytest.mark.parametrize("mode", ["sft", "rl"])
def test_one_command_for_any_trainer_and_that_of_the_mode_before_it(mode: str) -> None:
    both = {**URL, "MODE": mode, "TRAIN_CMD": "exec python3 train.py"}
    launch = find_launch(load(both))
    assert (launch.argv, launch.name) == (("bash", "-c", "exec python3 train.py"), "TRAIN_CMD")
    launch = find_launch(load({**both, f"SLIME_{mode.upper()}_CMD": "exec slime"}))
    assert (launch.argv[-1], launch.name) == ("exec slime", f"SLIME_{mode.upper()}_CMD")
    other = {"sft": "SLIME_RL_CMD", "rl": "SLIME_SFT_CMD"}[mode]
    assert find_launch(load({**both, other: "exec slime"})).name == "TRAIN_CMD"
    assert "TRAIN_CMD" not in pod_environment(both), "it may hold secrets, and the trainer has it already"


def test_the_command_of_the_example_hands_over_the_checkpoint_where_there_is_one(tmp_path: Path) -> None:
    """As the documentation shows it, for a trainer that has a flag for it."""
    example = (ROOT / "agent" / "run.example.yaml").read_text()
    line = next(line for line in example.splitlines() if line.startswith("#TRAIN_CMD: "))
    assert line[line.index("${RELAY_RESUME_FROM") :] in (ROOT / "docs" / "trainers.md").read_text()
    file = tmp_path / "run.yaml"
    file.write_text(line.removeprefix("#"))
    command = find_launch(load(URL, file)).argv[-1].replace("exec python3 train.py", "printf '<%s>'")
    for checkpoint, words in {"": "", "/a b/step_7": "<--resume_from_checkpoint></a b/step_7>"}.items():
        env = {**os.environ, "RELAY_OUTPUT_DIR": "/out", "RELAY_RESUME_FROM": checkpoint}
        done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == "<--output_dir></out>" + words


def test_the_launcher_of_the_mode_is_found_or_missed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_launch(load({**URL, "SLIME_RL_CMD": "python3 rl.py | tee x", "MODE": "rl"})).argv == (
        "bash", "-c", "python3 rl.py | tee x",
    )  # fmt: skip
    monkeypatch.setattr(trainer, "launcher_folders", lambda: [tmp_path])
    with pytest.raises(RelayError, match=r"no launcher launch_sft\.sh") as missing:
        find_launch(load(URL))
    assert missing.value.exit_code == 2
    (tmp_path / "launch_sft.sh").write_text("#!/bin/sh\n")
    with pytest.raises(RelayError, match="not an executable file"):
        find_launch(load(URL))
    (tmp_path / "launch_sft.sh").chmod(0o755)
    assert find_launch(load(URL)).argv == (str(tmp_path / "launch_sft.sh"),)


def test_nothing_of_the_agents_own_reaches_the_trainer(tmp_path: Path) -> None:
    ours = tmp_path / "relay-venv"
    theirs = tmp_path / "train-venv"
    environ = {
        "PATH": f"{ours}/bin:{theirs}/bin:/usr/bin",
        "PYTHONPATH": f"{ours}/lib:/opt/megatron",
        "PYTHONHOME": str(ours),
        "VIRTUAL_ENV": str(ours),
        "VIRTUAL_ENV_PROMPT": "(relay)",
        "RELAY_SHARED_SECRET": "s3cret",
        "RELAY_TOKEN": "t0ken",
        "COMMANDER_URL": "http://a",
        "HF_TOKEN": "hf_x",
        "MOCK_MAX_STEPS": "3",
    }
    env = pod_environment(environ, (ours,))
    assert env == {
        "PATH": f"{theirs}/bin:/usr/bin",
        "PYTHONPATH": "/opt/megatron",
        "HF_TOKEN": "hf_x",
        "MOCK_MAX_STEPS": "3",
    }
    assert pod_environment({"VIRTUAL_ENV": str(theirs), "PATH": f"{theirs}/bin"}, (ours,))["VIRTUAL_ENV"] == str(theirs)


def test_a_trainers_virtual_environment_within_a_checkout_stays_its_own(tmp_path: Path) -> None:
    checkout, ours, theirs = tmp_path, tmp_path / ".venv", tmp_path / ".venv-train"
    for venv in (ours, theirs):
        (venv / "bin").mkdir(parents=True)
        (venv / "pyvenv.cfg").touch()
    environ = {"VIRTUAL_ENV": str(theirs), "PATH": f"{theirs}/bin:{ours}/bin:{checkout}/tools:/usr/bin"}
    env = pod_environment(environ, (ours, checkout))
    assert env == {"VIRTUAL_ENV": str(theirs), "PATH": f"{theirs}/bin:/usr/bin"}


def test_the_trainer_is_told_where_everything_is(tmp_path: Path) -> None:
    config = RunConfig(str(tmp_path), "run-1", 600, 3, 14400, "", False)
    folder = RunFolder(tmp_path / "runs" / "run-1")
    settings = load({**URL, "RUN_ID": "run-1", "MODE": "rl"})
    env = trainer_environment({"PATH": "/bin"}, settings, config, folder, 3, folder.ckpt / "step_00000020")
    run = f"{tmp_path}/runs/run-1"
    assert env == {
        "PATH": "/bin",
        "RELAY_RUN_ROOT": run,
        "RELAY_OUTPUT_DIR": f"{run}/out/e00000003",
        "RELAY_RESUME_FROM": f"{run}/ckpt/step_00000020",
        "RELAY_RESUME_ARGS": "",
        "RELAY_BASE_MODEL": "",
        "RELAY_CKPT_STAGING_ROOT": f"{run}/ckpt/.staging/e00000003",
        "RELAY_SAVE_FILE": f"{run}/ckpt/.staging/e00000003/.save-now",
        "RELAY_TRAIN_MODE": "rl",
        "RELAY_RUN_ID": "run-1",
        "RELAY_EPOCH": "3",
        "RELAY_CKPT_INTERVAL": "600",
        "RELAY_LAUNCHERS": str(trainer.launcher_folders()[1]),
        "PYTHONUNBUFFERED": "1",
    }
    assert trainer_environment({}, settings, config, folder, 3, None)["RELAY_RESUME_FROM"] == ""
    assert trainer_environment({}, settings, config, folder, 3, None)["PATH"] == os.defpath
    based = load({**URL, "BASE_MODEL": "me/model"})
    assert trainer_environment({}, based, config, folder, 3, None)["RELAY_BASE_MODEL"] == "me/model"
    assert trainer_environment({}, based, config, folder, 3, folder.ckpt)["RELAY_BASE_MODEL"] == ""


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", "-1", "1.5", "0x" + "f" * 5000, "9" * 5000])
def test_a_number_that_is_none_is_refused_in_one_line(tmp_path: Path, value: str) -> None:
    assert "a whole number above 0" in refused({**URL, "TARGET_STEPS": value})
    (tmp_path / "run.yaml").write_text(f"TARGET_STEPS: {value.replace('inf', '.inf').replace('nan', '.nan')}\n")
    assert len(refused(URL, tmp_path / "run.yaml")) < 500


def test_a_file_that_is_no_file_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_bytes(b"#" * (2 << 20))
    for path, words in (
        (tmp_path / "fifo", "not a plain file"),
        (Path("/dev/zero"), "not a plain file"),
        (tmp_path, "directory"),
        (tmp_path / "big", "over 1 MiB"),
        (Path("/" + "a" * 3000), "too long"),
        (Path("a\udc80\0"), "is no path that can be opened"),
    ):
        assert words in refused(URL, path)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x]\nb: &b [*a,*a]\n? *b\n: 1\n",
        "? 0x" + "f" * 5000 + "\n: 1\n",
        "? [a, b]\n: 1\n",
        "? [" + ",".join(["x"] * 100_000) + "]\n: 1\n",
        "[" * 50_000,
        "\n".join(f"k{number}: 1" for number in range(50_000)),
        "? " + "x " * 100_000 + "\n: 1\n",
    ],
)
def test_a_file_made_to_keep_us_busy_does_not(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    before = time.process_time()
    assert len(refused(URL, tmp_path / "run.yaml")) < 1000
    assert time.process_time() - before < 5


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64 + ".b"])
def test_a_host_that_cannot_be_is_refused(host: str) -> None:
    assert "should name a host" in refused({"COMMANDER_URL": f"http://{host}:8080"})
    assert load({"COMMANDER_URL": "http://a.b.:8080"}).commander_url == "http://a.b.:8080"
    assert load({"COMMANDER_URL": "http://[::1]:8080"}).commander_url == "http://[::1]:8080"


@pytest.mark.parametrize("name", ["RUN_ID", "RELAY_L1_ROOT", "RELAY_AGENT_STATE", "RELAY_RUN_CONFIG"])
def test_a_variable_that_is_set_and_empty_is_no_guess(name: str) -> None:
    assert f"{name} is set and empty" in refused({**URL, name: ""})


def test_a_home_of_nobody_is_refused() -> None:
    assert "user that does not exist" in refused({**URL, "RELAY_L1_ROOT": "~nosuchuser/x"})


def test_a_command_longer_than_the_system_takes_is_named() -> None:
    settings = load({**URL, "SLIME_SFT_CMD": "true " + "x" * 200_000})
    with pytest.raises(RelayError, match="SLIME_SFT_CMD is 200005 bytes long") as error:
        find_launch(settings)
    assert error.value.exit_code == 2
    assert len(str(error.value)) < 300


SHELL = Launch(("bash", "-c", "true"), "SLIME_SFT_CMD")


def test_a_variable_that_is_too_long_is_named_and_not_shown() -> None:
    with pytest.raises(RelayError, match="the variable HF_TOKEN is 200009 bytes long") as error:
        refuse_too_large(SHELL, {"PATH": "/bin", "HF_TOKEN": "secret-" * 28_571 + "abc"})
    assert error.value.exit_code == 2
    assert "secret" not in str(error.value)


def test_an_environment_that_is_too_large_says_what_fills_it() -> None:
    sizes = {f"V{number}": "x" * (130_000 - number) for number in range(60)}
    with pytest.raises(
        RelayError, match=r"60 environment variables .* the largest are V0 \(1300\d\d bytes\), V1 "
    ) as error:
        refuse_too_large(SHELL, sizes)
    assert error.value.exit_code == 2
    assert len(str(error.value)) < 400


def test_what_is_not_called_too_large_starts() -> None:
    """The largest environment that passes is one that the system takes."""
    few, many = 0, 60
    while many - few > 1:
        number = (few + many) // 2
        env = {"PATH": os.defpath} | {f"V{each}": "x" * 100_000 for each in range(number)}
        try:
            refuse_too_large(SHELL, env)
        except RelayError:
            many = number
        else:
            few = number
            assert subprocess.run(SHELL.argv, env=env, check=True).returncode == 0
    assert few > 10


@pytest.mark.parametrize("said", ["USR1", "SIGUSR1", " usr1 "])
def test_a_signal_as_people_write_it(said: str) -> None:
    assert load({**URL, "SAVE_SIGNAL": said}).save_signal is signal.SIGUSR1
    assert load(URL).save_signal is None


@pytest.mark.parametrize(
    "text",
    [
        "RELAY_SHARED_SECRET: !S3cretValue",
        "RELAY_SHARED_SECRET: !S3cretValue!x y",
        "RELAY_SHARED_SECRET: !<S3cretValue> x",
        "RELAY_SHARED_SECRET: *S3cretValue",
        "RELAY_SHARED_SECRET: &S3cretValue",
        "{RELAY_SHARED_SECRET:S3cretValue}",
        "{RELAY_SHARED_SECRET, S3cretValue}",
        "RELAY_SHARED_SECRET:S3cretValue",
        "RELAY_SHARED_SECRET:S3cretValue: 1",
        "RELAY_SHARED_SECRET=S3cretValue: 1",
        "RELAY_SHARED_SECRET: S3cretValue: 1",
        "RELAY_SHARED_SECRET: [S3cretValue]",
        "RELAY_SHARED_SECRET: {S3cretValue: 1}",
        "%S3cretValue\n---\nRUN_ID: x",
        "COMMANDER_URL: http://u:S3cretValue@h:80",
        "COMMANDER_URL: http://h:80/?key=S3cretValue",
        "COMMANDER_URL: http://h:80/#S3cretValue",
    ],
)
def test_no_error_repeats_a_secret(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text + "\n")
    with pytest.raises(RelayError) as refused:
        load({}, path)
    assert refused.value.exit_code == 2
    assert "S3cret" not in f"{refused.value} {refused.value.message} {refused.value.hint}"
    if text.startswith("COMMANDER_URL"):
        with pytest.raises(RelayError) as refused:
            load({"COMMANDER_URL": text.partition(": ")[2]})
        assert "S3cret" not in f"{refused.value} {refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("tag", ["timestamp", "bool", "int", "float", "binary", "set", "omap", "null", "merge", "x"])
@pytest.mark.parametrize("form", ['TARGET_STEPS: !!{} "abc"', 'TARGET_STEPS: !!{} ""', '!!{} "": 1', "!!{} abc: 1"])
def test_what_yaml_makes_of_a_tag_is_one_line(tmp_path: Path, tag: str, form: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("COMMANDER_URL: http://127.0.0.1:1\n" + form.format(tag) + "\n")
    with pytest.raises(RelayError, match="line 2") as refused:
        load({}, path)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ["RUN_ID: 2024-99-99", "2024-99-99: 1", "RUN_ID: 0o9", "TARGET_STEPS: 0b", "=: 1", "<<: 1"]
)
def test_what_only_looks_like_a_date_or_number_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"COMMANDER_URL: http://127.0.0.1:1\n{text}\n")
    with contextlib.suppress(RelayError):
        load({}, path)


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("MOED: rl\nCKPT_KEEP_LAST_N: many\nRUN_ID: a\nRUN_ID: b\n")
    with pytest.raises(RelayError) as refused:
        load({"COMMANDER_URL": "http://c:1", "RELAY_STOP_GRACE": "soon"}, path)
    said = str(refused.value)
    for words in ("there is no key 'MOED' (did you mean MODE?)", "CKPT_KEEP_LAST_N", "RUN_ID is set twice"):
        assert words in said
    assert "the environment: RELAY_STOP_GRACE" in said
    assert refused.value.exit_code == 2
    path.write_text("".join(f"NO_SUCH_{letter}: 1\n" for letter in "ABCDEFGH"))
    with pytest.raises(RelayError, match=r"and 3 more$"):
        load({"COMMANDER_URL": "http://c:1"}, path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RELAY_L1_ROOT", "/mnt/v\udcff"),
        ("RELAY_AGENT_STATE", "/var/v\udcff/s"),
        ("CHECKPOINT_DIR", "v\udcff"),
        ("RELAY_ROLLOUT_TRAJECTORY_ROOT", "v\udcff"),
        ("BASE_MODEL", "/models/v\udcff"),
        ("ARTIFACTS_FILES", "*.json v\udcff/*"),
        ("HF_PUSH", "v\udcff/*"),
        ("HF_REPO", "me/v\udcff"),
    ],
)
def test_what_is_told_to_others_is_utf_8(tmp_path: Path, name: str, value: str) -> None:
    """It ended the agent in the middle, the run leased."""
    words = refused({**URL, name: value})
    assert f"{name} holds a byte that is no UTF-8" in words
    assert "\n" not in words
    (tmp_path / "run.yaml").write_text(json.dumps({name: value}))
    assert "no UTF-8" in refused(URL, tmp_path / "run.yaml")


def test_so_is_the_default_of_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", os.fsdecode(b"/home/v\xff"))
    words = refused(URL)
    assert "RELAY_AGENT_STATE" in words
    assert "no UTF-8" in words
    assert load({**URL, "RELAY_AGENT_STATE": "/var/s"}).agent_state == Path("/var/s")


def test_a_command_may_hold_any_byte() -> None:
    assert load({**URL, "TRAIN_CMD": "train v\udcff"}).train_cmd == "train v\udcff"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("./x/*", "x/*"),
        (".//x//y.json", "x/y.json"),
        ("x/./y/././*.json", "x/y/*.json"),
        ("././*.json", "*.json"),
        (".x/*.json", ".x/*.json"),
        ("x./*", "x./*"),
        ("x..y/*", "x..y/*"),
    ],
)
def test_a_pattern_may_begin_where_it_is(given: str, meant: str) -> None:
    """A shell takes it so; none of it stands in a path."""
    settings = load({**URL, "ARTIFACTS_FILES": f"{given} *.txt", "HF_PUSH": f"{given} !{given}"})
    assert settings.artifacts_files == (meant, "*.txt")
    assert settings.hf_push == (meant, f"!{meant}")
    assert load({**URL, "HF_PUSH": "./weights"}).hf_push == ("./weights",), "no word of ours is made of a file's name"


@pytest.mark.parametrize(
    "pattern", ["../x", "x/../*.json", "configs/", "./", "/", "/etc/*", "!../x", "!/x", "!configs/"]
)
def test_a_pattern_that_no_file_matches_is_refused(pattern: str) -> None:
    """It was taken, and matched nothing without a word."""
    assert "HF_PUSH" in refused({**URL, "HF_PUSH": f"*.json {pattern}"})
    assert "ARTIFACTS_FILES" in (words := refused({**URL, "ARTIFACTS_FILES": f"*.json {pattern}"}))
    assert pattern in words
    assert "\n" not in words
