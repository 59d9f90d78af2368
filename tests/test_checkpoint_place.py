"""CHECKPOINT_DIR that can be none: said before anything starts, by the doctor too."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_agent.checkpoints.place import refuse_place
from relay_agent.config import load
from relay_agent.doctor import Level, examine
from relaytui.wire.errors import RelayError


def refused(root: Path, where: str, **more: str) -> str:
    settings = load({"COMMANDER_URL": "http://a:1", "RUN_ID": "run-1", "RELAY_L1_ROOT": str(root / "volume"),
                     "CHECKPOINT_DIR": where, **more})  # fmt: skip
    error: RelayError | None = None
    try:
        refuse_place(settings)
    except RelayError as refusal:
        error = refusal
    assert error is None or (error.exit_code == 2 and len(error.message) < 400)
    return error.message if error else ""


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("/", "is the system's"),
        ("//", "is the system's"),
        ("/proc/self", "is the system's"),
        ("/dev", "is the system's"),
        ("{root}/volume/runs", "is where the checkpoints of all runs lie"),
        ("{root}/volume/runs/run-2/out/e00000001", "is where another run's checkpoints lie"),
        ("{root}/volume/runs/run-1", "is Relay's own"),
        ("{root}/linked/run-1/.", "is Relay's own"),
        ("{root}/volume/runs/run-1/hf", "is Relay's own"),
        ("{root}/volume/runs/run-1/ckpt", "is Relay's own"),
        ("{root}/volume/runs/run-1/ckpt/.staging/e00000001", "is Relay's own"),
        ("{root}/linked/run-2", "is where another run's checkpoints lie"),
        ("{root}/file", "is not a folder"),
        ("{root}/file/below", "is not a folder"),
        ("{root}/dangling", "is a link that leads nowhere"),
        ("$RELAY_OUTPUT_DIR/checkpoints", "holds a variable"),
        ("${OUT}", "holds a variable"),
        ("/" + "x" * 5000, "cannot be reached: File name too long"),
        ("x" * 300, "cannot be reached: File name too long"),
    ],
)
def test_what_can_be_no_trainers_folder_is_refused(tmp_path: Path, where: str, why: str) -> None:
    (tmp_path / "volume" / "runs").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "linked").symlink_to("volume/runs")
    (tmp_path / "dangling").symlink_to("nowhere/at/all")
    where = where.format(root=tmp_path) if "{root}" in where else where
    assert why in refused(tmp_path, where)
    assert refused(tmp_path, where, CHECKPOINTS="none") == "", "nothing is looked for there"


@pytest.mark.parametrize(
    "where",
    [
        "{root}/new/one",
        "{root}/volume",
        "{root}/volume/mine",
        "{root}/volume/runs/run-1/out/mine",
        "below/it",
        "{root}/l",
    ],
)
def test_a_folder_of_the_trainers_own_is_not(tmp_path: Path, where: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "l").symlink_to("real")
    assert refused(tmp_path, where.format(root=tmp_path)) == ""
    assert refused(tmp_path, "/dev/shm/mine") == ""


async def test_the_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RELAY_L1_ROOT": str(tmp_path), "CHECKPOINT_DIR": "/", "TRAIN_CMD": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("COMMANDER_URL", raising=False)
    (said,) = [check for check in await examine() if check.what == "checkpoints"]
    assert (said.level, said.exit_code) == (Level.FAIL, 2)
    assert said.why.startswith("CHECKPOINT_DIR / is the system's")
