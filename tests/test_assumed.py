"""What is set and does nothing, and what is taken for granted where nothing is set, is said: by `relay-agent doctor`
and in an agent's first lines."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import programs
import pytest
from agent_rig import AGENT

from relay_agent.assumed import example_trainer, remarks, saves_unseen
from relay_agent.config import load
from relay_agent.trainer.command import find_launch, trainer_environment
from relay_agent.volume.volume import RunFolder
from relaytui.commander.settings import CommanderSettings
from relaytui.wire.messages import RunConfig
from relaytui.wire.variables import COMMANDERS, TRAINERS

SET = {"COMMANDER_URL": "http://127.0.0.1:9", "RUN_ID": "my-run", "TRAIN_CMD": "true"}


def said(**variables: str) -> list[str]:
    environ = {**SET, **variables}
    return [" — ".join(each) for each in remarks(load(environ), environ)]


def test_nothing_is_said_of_what_is_as_it_should_be() -> None:
    assert said(RELAY_STAMP="1", RELAY_LEASE_SECONDS=" ", PORT="8080") == []


@pytest.mark.parametrize("name", sorted(COMMANDERS))
def test_a_variable_of_the_commander_does_nothing_on_a_pod(name: str) -> None:
    assert said(**{name: "7"}) == [
        f"{name} is the commander's, and is not read on a pod — set it where `relay-tui serve` runs"
    ]


def test_all_that_the_commander_reads_is_known_as_its_own() -> None:
    class Asked(dict[str, str]):
        def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
            asked.add(name)
            return default

    asked = set[str]()
    CommanderSettings.from_env(Asked())
    assert {name for name in asked if name.startswith("RELAY_")} - {
        "RELAY_SHARED_SECRET",
        "RELAY_L1_ROOT",
    } == COMMANDERS


def test_what_the_trainer_is_told_cannot_be_set() -> None:
    settings = load(SET)
    config = RunConfig("/mnt/relay", "my-run", 600, 3, 0, "", False)
    told = trainer_environment({}, settings, config, RunFolder(Path("/mnt/relay/runs/my-run")), 1, None)
    assert {name for name in told if name.startswith("RELAY_")} - COMMANDERS == TRAINERS
    assert said(RELAY_RUN_ID="x") == [
        "RELAY_RUN_ID is what Relay tells the trainer, and is not read from a pod's environment — did you mean RUN_ID?"
    ]
    assert said(RELAY_OUTPUT_DIR="/x")[0].endswith("unset it: the trainer gets Relay's")


def test_a_slip_that_means_the_commanders_says_so() -> None:
    (words,) = said(RELAY_LEASE_SECOND="7")
    assert words.endswith(
        "did you mean RELAY_LEASE_SECONDS? It is the commander's: set it where `relay-tui serve` runs"
    )


def test_a_run_that_nobody_named_is_said(tmp_path: Path) -> None:
    environ = {name: value for name, value in SET.items() if name != "RUN_ID"}
    (remark,) = remarks(load(environ), environ)
    assert remark.why == "RUN_ID is not set: this pod trains the run relay-run, as does every pod without RUN_ID"
    (tmp_path / "run.yaml").write_text("RUN_ID: relay-run\n")
    assert list(remarks(load(environ, tmp_path / "run.yaml"), environ)) == []


@pytest.mark.parametrize("mode", ["sft", "rl"])
def test_the_example_trainer_is_called_that(mode: str) -> None:
    nothing = load({**SET, "TRAIN_CMD": "", "MODE": mode})
    remark = example_trainer(find_launch(nothing))
    assert remark is not None
    assert "trains the small example model that comes with Relay (char_lm)" in remark.why
    assert "TRAIN_CMD" in remark.todo
    assert example_trainer(find_launch(load({**SET, "MODE": mode}))) is None


def test_the_pod_of_the_readme_is_one_of_which_nothing_is_said() -> None:
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    lines = [line.strip() for line in readme.splitlines() if line.startswith("    export ")]
    words = [word for line in lines for word in shlex.split(line, comments=True)[1:]]
    environ = dict(word.split("=", 1) for word in words if not word.startswith("PATH="))
    environ["RELAY_SHARED_SECRET"] = "what-the-file-holds"
    settings = load(environ)
    assert settings.train_cmd, "its trainer is a plain one"
    assert not settings.slime_sft_cmd
    assert list(remarks(settings, environ)) == []
    for told in ('"$RELAY_OUTPUT_DIR"', '"$@"'):  # else it would save where nobody looks, and begin anew
        assert told in settings.train_cmd


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("save('./out')\n")
    (tmp_path / "asks.py").write_text("import os\nsave(os.environ['RELAY_OUTPUT_DIR'])\n")
    (tmp_path / "train.sh").write_text("python3 train.py\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    "command",
    [
        "exec python3 train.py",
        "python3 -u train.py --lr 1 2>&1 | tee train.log",
        "set -e; export A=1\nA=2 torchrun --nproc-per-node 2 train.py --out ./out; echo done",
        "cd . && python3 train.py > log 2>&1",
    ],
)
def test_a_plain_command_that_is_not_told_where_to_save_is_said(command: str) -> None:
    settings = load({**SET, "TRAIN_CMD": command})
    remark = saves_unseen(settings, find_launch(settings))
    assert remark is not None
    named = "TRAIN_CMD names none of $RELAY_CKPT_STAGING_ROOT, $RELAY_OUTPUT_DIR and $RELAY_RESUME_FROM"
    assert remark.why.startswith(f"{named}, nor does train.py: ")
    assert '--output_dir "$RELAY_OUTPUT_DIR" "$@"' in remark.todo
    assert "CHECKPOINT_DIR" in remark.todo
    elsewhere = load({**SET, "TRAIN_CMD": command, "CHECKPOINT_DIR": "/ckpt"})
    assert saves_unseen(elsewhere, find_launch(elsewhere)) is None


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    "command",
    [
        'python3 train.py --out "$RELAY_OUTPUT_DIR"',
        'python3 train.py "$@"',
        "python3 train.py ${@:1}",
        "python3 asks.py",
        "python3 train.py && python3 asks.py",
        "python3 nosuch.py",
        "bash train.sh",
        "./prepare; python3 train.py",
        "python3 -m trainer",
        "python3 $SCRIPT",
        "python3 train.py 'no end",
        "true",
        "",
    ],
)
def test_of_one_that_may_know_it_nothing_is_said(command: str) -> None:
    settings = load({**SET, "TRAIN_CMD": command})
    assert saves_unseen(settings, find_launch(settings)) is None


def test_an_agent_says_it_before_all_else(tmp_path: Path) -> None:
    """It ends at once here: it has no secret."""
    ours = ("RELAY_", "SLIME_", "HF_", "RUN_ID", "TRAIN_", "COMMANDER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {
        "COMMANDER_URL": "http://127.0.0.1:9",
        "RELAY_L1_ROOT": str(tmp_path),
        "RELAY_CKPT_INTERVAL": "60",
        "TRAIN_COMMAND": "python3 train.py",
    }
    done = programs.run([AGENT], env=env, capture_output=True, text=True, timeout=30, check=False)
    lines = done.stderr.splitlines()
    assert "relay-agent: RUN_ID is not set: this pod trains the run relay-run" in lines[0]
    assert "RELAY_CKPT_INTERVAL is the commander's" in lines[1]
    assert lines[2].endswith("TRAIN_COMMAND is no setting of Relay's, and is not read. did you mean TRAIN_CMD?")
    assert "(char_lm)" in lines[3]
    assert "RELAY_SHARED_SECRET is not set" in lines[4]
